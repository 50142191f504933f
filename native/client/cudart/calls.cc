// SPDX-License-Identifier: Apache-2.0
// The exported functions of libcudart that a profiler is told of (client/profile/api_calls.h).
#define SLUICE_EXPORTED_NAMES
#include "abi/cuda_runtime.h"
#include "client/profile/api_calls.h"

extern "C" [[gnu::weak]] void sluice_profile_attach(sluice::client::HookSlot* slot);

namespace sluice::cudart {

namespace {

client::HookSlot hooks{nullptr};

// Another driver than ours has no profiler for it.
[[gnu::constructor]] void attach() {
  if (sluice_profile_attach != nullptr) sluice_profile_attach(&hooks);
}

inline const client::ApiHooks* sluice_hook_slot() { return hooks.load(std::memory_order_acquire); }

constexpr uint32_t kSluiceDomain = 2;  // CUPTI_CB_DOMAIN_RUNTIME_API

}  // namespace

}  // namespace sluice::cudart

using sluice::cudart::kSluiceDomain;
using sluice::cudart::sluice_hook_slot;

#if SLUICE_CUDART_MAJOR >= 13
#define SLUICE_CALL_NUMBER(newest, older) newest
#else
#define SLUICE_CALL_NUMBER(newest, older) older
#endif
#include "client/profiled_runtime.inc"
