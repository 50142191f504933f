// SPDX-License-Identifier: Apache-2.0
// Variables of loaded modules. Their addresses are the driver's own, in no vGPU's window, so they
// are looked up here; they go with their code. Of several nodes each has its own driver, and what
// one has at an address another may have there, too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>

namespace sluice::client {

struct Device;

struct ModuleGlobal {
  uint64_t start = 0, bytes = 0;
  Device* device = nullptr;
  uint64_t code = 0;  // the handle of its module or library
  uint32_t node = 0;  // the device's
};

class ModuleGlobals {
 public:
  void add(const ModuleGlobal& global) {
    std::lock_guard lock(mutex_);
    by_node_[global.node][global.start] = global;
  }

  // A node's that contains all of these bytes.
  bool find(uint64_t address, uint64_t bytes, uint32_t node, ModuleGlobal* global) {
    std::lock_guard lock(mutex_);
    const auto there = by_node_.find(node);
    return there != by_node_.end() && find_in(there->second, address, bytes, global);
  }
  // Any node's.
  bool find(uint64_t address, uint64_t bytes, ModuleGlobal* global) {
    std::lock_guard lock(mutex_);
    return std::ranges::any_of(
        by_node_, [&](const auto& there) { return find_in(there.second, address, bytes, global); });
  }

  void drop_of(uint64_t code) {
    std::lock_guard lock(mutex_);
    for (auto& [_, globals] : by_node_)
      std::erase_if(globals, [&](const auto& g) { return g.second.code == code; });
  }

 private:
  using ByStart = std::map<uint64_t, ModuleGlobal>;

  static bool find_in(const ByStart& globals, uint64_t address, uint64_t bytes,
                      ModuleGlobal* global) {
    auto it = globals.upper_bound(address);
    if (it == globals.begin()) return false;
    --it;
    const uint64_t at = address - it->first;
    if (at >= it->second.bytes || bytes > it->second.bytes - at) return false;
    *global = it->second;
    return true;
  }

  std::mutex mutex_;
  std::map<uint32_t, ByStart> by_node_;
};

}  // namespace sluice::client
