// SPDX-License-Identifier: Apache-2.0
// Host memory that the program sees at an address of the device's, and this library at a second
// one: so a page can be filled before the program may read it, and stored after the program may not
// write it any more. Both are mappings of one file in memory. Not inherited by fork, as CUDA's own
// is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace sluice::client {

class ManagedMapping {
 public:
  // kWindow: over a vGPU's address window, which this process has reserved (core/open_device.cc);
  // kFree: where nothing of this process may lie yet.
  enum class Where { kWindow, kFree };

  // Whole pages at `start`, zeros, not accessible yet. nullptr: `error` says why.
  static std::unique_ptr<ManagedMapping> make(uint64_t start, uint64_t bytes, Where where,
                                              std::string* error);
  ~ManagedMapping();
  ManagedMapping(const ManagedMapping&) = delete;
  ManagedMapping& operator=(const ManagedMapping&) = delete;

  uint64_t start() const { return start_; }
  uint64_t bytes() const { return bytes_; }
  // Where this library reads and writes what the program sees at `address`.
  std::byte* second(uint64_t address) const { return second_ + (address - start_); }
  bool protect(uint64_t at, uint64_t bytes, int protection) const;
  // Has the kernel map the pages of a readable range at once, rather than by a fault for a few.
  void populate(uint64_t at, uint64_t bytes) const;
  // Zeros again, and their memory back. Nothing of it is accessible.
  void clear(uint64_t at, uint64_t bytes) const;

 private:
  ManagedMapping(uint64_t start, uint64_t bytes, Where where)
      : start_(start), bytes_(bytes), where_(where) {}

  uint64_t start_, bytes_;
  Where where_;
  bool mapped_ = false;
  std::byte* second_ = nullptr;
};

}  // namespace sluice::client
