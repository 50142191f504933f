// SPDX-License-Identifier: Apache-2.0
// What a stream has sent and the other side has not acknowledged, by its place in the stream:
// copies, in pieces that are filled one after the other, and memory of others that stays as it is
// for as long. No locks of its own.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

namespace sluice::channel {

class KeptBytes {
 public:
  uint64_t sent() const { return sent_; }
  uint64_t acknowledged() const { return acknowledged_; }
  size_t copied_bytes() const { return copied_; }
  size_t lent_bytes() const { return lent_; }

  void copy(const void* data, size_t n) {
    const auto* at = static_cast<const std::byte*>(data);
    while (n > 0) {
      if (room_ == 0) {
        piece_ = std::shared_ptr<std::byte[]>(new std::byte[kPiece]);
        room_ = kPiece;
      }
      const size_t take = std::min(n, room_);
      std::byte* to = piece_.get() + (kPiece - room_);
      std::memcpy(to, at, take);
      room_ -= take;
      append(to, take, piece_, false);
      at += take;
      n -= take;
    }
  }

  // `held`, if given, is kept until then; else whose memory it is waits.
  void lend(const void* data, size_t n, std::shared_ptr<const void> held) {
    if (n > 0) append(static_cast<const std::byte*>(data), n, std::move(held), true);
  }

  // False: it was never sent, or an earlier word said more.
  bool acknowledge(uint64_t upto) {
    if (upto < acknowledged_ || upto > sent_) return false;
    while (!segments_.empty()) {
      Segment& s = segments_.front();
      const auto n = static_cast<size_t>(std::min<uint64_t>(s.bytes, upto - acknowledged_));
      (s.lent ? lent_ : copied_) -= n;
      acknowledged_ += n;
      s.data += n;
      s.bytes -= n;
      if (s.bytes > 0) break;
      segments_.pop_front();
    }
    return true;
  }

  // Up to so many bytes from a place on, as pieces, and what keeps them; how many those are.
  struct Gathered {
    std::vector<iovec> parts;
    std::vector<std::shared_ptr<const void>> held;
  };
  size_t gather(uint64_t from, size_t most, Gathered* into) const {
    uint64_t at = acknowledged_;
    size_t gathered = 0;
    for (const Segment& s : segments_) {
      const uint64_t end = at + s.bytes;
      if (end > from && gathered < most) {
        const size_t skip = from > at ? static_cast<size_t>(from - at) : 0;
        const size_t n = std::min(s.bytes - skip, most - gathered);
        into->parts.push_back({const_cast<std::byte*>(s.data + skip), n});
        into->held.push_back(s.held);
        gathered += n;
      }
      at = end;
      if (gathered == most || into->parts.size() == kMostParts) break;
    }
    return gathered;
  }

 private:
  static constexpr size_t kPiece = 64 << 10, kMostParts = 64;
  struct Segment {
    const std::byte* data;
    size_t bytes;
    std::shared_ptr<const void> held;
    bool lent;
  };

  void append(const std::byte* data, size_t n, std::shared_ptr<const void> held, bool lent) {
    sent_ += n;
    (lent ? lent_ : copied_) += n;
    if (!lent && !segments_.empty()) {
      Segment& last = segments_.back();
      if (!last.lent && last.held == held && last.data + last.bytes == data) {
        last.bytes += n;
        return;
      }
    }
    segments_.push_back({data, n, std::move(held), lent});
  }

  std::deque<Segment> segments_;
  std::shared_ptr<std::byte[]> piece_;
  size_t room_ = 0;
  uint64_t sent_ = 0, acknowledged_ = 0;
  size_t copied_ = 0, lent_ = 0;
};

}  // namespace sluice::channel
