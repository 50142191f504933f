// SPDX-License-Identifier: Apache-2.0
#include "client/core/runtime_version.h"

#include <atomic>
#include <string>

#include "abi/runtime_version.h"
#include "client/core/enter.h"
#include "client/core/log.h"

namespace {

std::atomic<int> g_runtime_version{0};

}  // namespace

void sluice_runtime_version(int version) {
  int first = 0;
  if (g_runtime_version.compare_exchange_strong(first, version) || first / 1000 == version / 1000)
    return;
  sluice::client::log_once(
      sluice::client::LogLevel::kError,
      "this program has libraries of CUDA " + std::to_string(first / 1000) + " and of CUDA " +
          std::to_string(version / 1000) +
          " in it; their structures differ, so install packages for one of the two");
}

const uint32_t* sluice_runtime_contexts() { return &sluice::client::thread_state().depth; }

namespace sluice::client {

uint32_t runtime_version() {
  const int said = g_runtime_version.load(std::memory_order_acquire);
  return static_cast<uint32_t>(said != 0 ? said : SLUICE_CUDART_VERSION);
}

}  // namespace sluice::client
