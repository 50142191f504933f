// SPDX-License-Identifier: Apache-2.0
// The exported functions of libcuda.so.1 that a profiler is told of, and those of the forwarding
// libraries, which are one call each.
#include "client/profile/driver_calls.h"

#include "abi/cuda_driver.h"

namespace sluice::client {

HookSlot driver_hooks{nullptr};

namespace {

[[gnu::constructor]] void attach() { sluice_profile_attach(&driver_hooks); }

inline const ApiHooks* sluice_hook_slot() { return driver_hooks.load(std::memory_order_acquire); }

constexpr uint32_t kSluiceDomain = 1;  // CUPTI_CB_DOMAIN_DRIVER_API

}  // namespace

}  // namespace sluice::client

using sluice::client::kSluiceDomain;
using sluice::client::sluice_hook_slot;

// A driver is one library for all versions.
#define SLUICE_CALL_NUMBER(newest, older) newest
#include "client/profiled_driver.inc"
