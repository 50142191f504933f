// SPDX-License-Identifier: Apache-2.0
// Addresses of the variables of loaded code that the client has asked for (GlobalGet). They are the
// driver's own and lie outside of the vGPUs' windows; a range is the session's until its code is
// unloaded.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

namespace sluice::worker {

class GlobalRanges {
 public:
  // `code`: the module's or library's id.
  void add(uint64_t address, uint64_t bytes, uint64_t code);
  void drop_of(uint64_t code);
  // Whether one variable has all of [address, address + bytes).
  bool holds(uint64_t address, uint64_t bytes) const;

 private:
  struct Range {
    uint64_t bytes, code;
  };
  mutable std::mutex mutex_;
  std::map<uint64_t, Range> ranges_;
};

}  // namespace sluice::worker
