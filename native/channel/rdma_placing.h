// SPDX-License-Identifier: Apache-2.0
// Bulk that is written straight to where the receiver wants it, and not through the ring. The
// receiver grants a place, in memory that Sluice allocated, ahead of time or when the sender offers
// a part; the sender writes the next large part there in pieces, whose completions say, in order
// with all else, that they are there. The part belongs to the stream at the point of the ring that
// had come before it. Grants are used in the order in which they are given, each once.
//
// What the other side writes into a place at other times, or at other places of the same
// registration, harms the bulk of its own session: nothing that is decided on ever lies there.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>

namespace sluice::channel {

// As it stands in the other side's memory while it is announced.
struct RdmaGrant {
  uint64_t address;
  uint32_t key;
  uint32_t bytes;  // 0: none, to one who has offered
};

class RdmaPlacing {
 public:
  static constexpr size_t kMostGrants = 4;          // not used yet
  static constexpr uint32_t kMostBytes = 16 << 20;  // of a grant or an offer
  static constexpr size_t kLeast = 256 << 10;       // smaller parts go through the ring

  // ---- the receiver of bulk. False: the other side breaks the rules.
  // A place is about to be granted. False: there are too many, or it was ended.
  bool granted(std::byte* at, size_t bytes);
  // The other side offers a part at this point of the ring.
  bool offered(uint32_t bytes, uint64_t arrived);
  // A piece of a part has come, the last of it.
  bool placed(uint32_t bytes, bool last, uint64_t arrived);
  // Whether bytes may come through the ring now: not between an offer and its answer, nor inside of
  // a part.
  bool ring_is_open() const;
  // An offer that is to be answered once so much has been read; 0: none. Answered by one grant.
  uint32_t offer(uint64_t consumed) const;
  void answered();
  // Up to where the ring may be read: there a part has its place.
  uint64_t next_part(uint64_t none) const;
  bool has_part(uint64_t consumed) const { return next_part(~uint64_t{0}) == consumed; }
  // Where the next part lies; nullptr: it has another length, or has been read from.
  std::byte* place_of(size_t bytes) const;
  // Of the part at this point; bytes that lie where they are wanted are not touched.
  size_t take(std::byte* to, size_t bytes);
  // Bytes of parts that were read where they lay already.
  uint64_t read_in_place() const { return in_place_.load(std::memory_order_relaxed); }
  // Whether the other side may still write somewhere.
  bool expects() const;
  // No place is granted from here on. The same: where one was before, it is still to be closed.
  bool end();

  // ---- the sender of bulk
  // False: the other side breaks the rules.
  bool was_granted(const RdmaGrant& grant);
  bool has_grant() const { return grants_.load(std::memory_order_acquire) > 0; }
  size_t next_bytes() const;
  bool use_grant(RdmaGrant* grant);

 private:
  struct Given {
    std::byte* at;
    size_t bytes;
    size_t filled = 0;
  };
  struct Part {
    uint64_t point;  // of the ring
    std::byte* at;
    size_t bytes;
    size_t taken = 0;
  };

  mutable std::mutex mutex_;  // of all that follows
  bool ended_ = false;
  std::deque<Given> given_;
  std::deque<Part> parts_;
  uint32_t offer_ = 0;
  uint64_t offer_at_ = 0;
  std::atomic<uint64_t> next_part_{~uint64_t{0}};
  std::atomic<uint64_t> in_place_{0};
  std::deque<RdmaGrant> granted_;
  std::atomic<size_t> grants_{0};
};

}  // namespace sluice::channel
