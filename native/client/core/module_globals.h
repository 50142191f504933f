// SPDX-License-Identifier: Apache-2.0
// Variables of loaded modules. Their addresses are the driver's own, in no vGPU's window, so they
// are looked up here; they go with their code.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

namespace sluice::client {

struct Device;

struct ModuleGlobal {
  uint64_t start = 0, bytes = 0;
  Device* device = nullptr;
  uint64_t code = 0;  // the handle of its module or library
};

class ModuleGlobals {
 public:
  void add(const ModuleGlobal& global) {
    std::lock_guard lock(mutex_);
    by_start_[global.start] = global;
  }

  // The one that contains `address`.
  bool find(uint64_t address, ModuleGlobal* global) {
    std::lock_guard lock(mutex_);
    auto it = by_start_.upper_bound(address);
    if (it == by_start_.begin()) return false;
    --it;
    if (address - it->first >= it->second.bytes) return false;
    *global = it->second;
    return true;
  }

  void drop_of(uint64_t code) {
    std::lock_guard lock(mutex_);
    std::erase_if(by_start_, [&](const auto& g) { return g.second.code == code; });
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, ModuleGlobal> by_start_;
};

}  // namespace sluice::client
