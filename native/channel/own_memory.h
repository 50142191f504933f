// SPDX-License-Identifier: Apache-2.0
// Memory that Sluice itself allocated to carry bulk: the program's pinned memory, a worker's pinned
// buffers. RDMA connections register this and no other memory: what a program mapped it may unmap
// behind their back, and the adapter would go on with pages that are nobody's. Whoever allocates
// says so, and takes it back before it is freed; whoever has registered some of it lets go then.
// One list for the process, with no more entries than there are allocations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace sluice::channel {

class OwnMemory {
 public:
  struct Range {
    uint64_t begin = 0, bytes = 0;
  };
  // Who has something of it.
  class Holder {
   public:
    // None of the range is used by the adapter any more when this returns.
    virtual void let_go(const Range& range) = 0;

   protected:
    ~Holder() = default;
  };

  static void add(const void* at, size_t bytes);
  // Before it is freed. Waits for holders.
  static void remove(const void* at);
  // Whether all of it lies in one range.
  static bool has(const void* at, size_t bytes);
  // Calls `use` with the range around it, which stays for as long. False: it lies in none.
  static bool with(const void* at, size_t bytes, const std::function<void(const Range&)>& use);

  static void join(Holder* holder);
  static void leave(Holder* holder);  // waits until it is told of nothing any more
};

}  // namespace sluice::channel
