// SPDX-License-Identifier: Apache-2.0
// The receiving half of a resumable stream: records come in, and what they hold goes where it is
// wanted, with as few copies as can be.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "channel/resumable_place.h"

namespace sluice::channel {

namespace {

using wire::StreamRecord;

constexpr size_t kScratch = 64 << 10;
constexpr size_t kBehind = 4 << 10;     // received with it
constexpr size_t kTellAfter = 4 << 20;  // received bytes that the other side has to know of
constexpr size_t kMostRecord = 2 * wire::kMaxReplyBytes;  // the largest write and some

}  // namespace

bool ResumableStream::has_taken_in() const {
  return waiting_in_.load(std::memory_order_acquire) > 0 ||
         bulk_bytes_.load(std::memory_order_acquire) > 0;
}

// What the connection has taken in is not in its socket any more either: records of TLS that came
// with the one that was read.
bool ResumableStream::pending() const {
  if (has_taken_in()) return true;
  const Link there = link();
  return there && there->stream->pending();
}

bool ResumableStream::readable() const {
  if (has_taken_in()) return true;
  const Link there = link();
  return !there || there->stream->readable();
}

// Of what has been received; read_mutex_ held.
size_t ResumableStream::take_waiting(Place* place) {
  const size_t have = waiting_in_.load(std::memory_order_relaxed);
  if (have == 0) return 0;
  const size_t took = place->put(in_.data() + in_begin_, have);
  in_begin_ += took;
  if (in_begin_ == in_.size()) in_.clear(), in_begin_ = 0;
  waiting_in_.store(have - took, std::memory_order_release);
  return took;
}

ssize_t ResumableStream::read_present(const iovec* parts, int count) {
  std::lock_guard reads(read_mutex_);
  Place place{parts, count};
  if (const size_t took = take_waiting(&place)) return static_cast<ssize_t>(took);
  const Link there = link();
  if (!there || over() || bulk_bytes_ || !there->stream->readable()) return 0;
  if (const ssize_t got = receive(there, &place); got <= 0) broke(there, true);
  return static_cast<ssize_t>(place.filled);
}

ssize_t ResumableStream::read(const iovec* parts, int count) {
  for (;;) {
    Link there;
    {
      std::lock_guard reads(read_mutex_);
      Place place{parts, count};
      if (const size_t took = take_waiting(&place)) return static_cast<ssize_t>(took);
      there = link();
      if (there && !over()) {
        const ssize_t got = receive(there, &place);
        if (got <= 0) broke(there, got == 0 || errno == ECONNRESET || errno == EPIPE);
        if (place.filled > 0) return static_cast<ssize_t>(place.filled);
      }
    }
    if (!there && !await_link()) return 0;
    if (over()) return 0;
  }
}

std::byte* ResumableStream::await_placed(size_t bytes) {
  std::lock_guard reads(read_mutex_);
  const Link there = link();
  const bool next = there && !over() && reading_ == there && left_ >= bytes && !has_taken_in();
  return next ? there->stream->await_placed(bytes) : nullptr;
}

// One read of the connection; read_mutex_ held. Bytes go where they are wanted at once, as far as
// is known what they are: the rest of a record, or what follows a header. Without a place, or where
// theirs is full, they wait in `in_`.
ssize_t ResumableStream::receive(const Link& link, Place* place) {
  if (scratch_.empty()) scratch_.resize(kScratch);
  if (reading_ != link) {
    reading_ = link;
    left_ = 0;
    header_bytes_ = 0;
    bulk_bytes_ = 0;
    behind_bulk_.clear();
  }
  if (bulk_bytes_) return receive_bulk(link, place);
  const size_t room = place ? place->room_here() : 0;
  std::byte* const here = room ? place->here() : nullptr;
  const size_t header = left_ == 0 ? sizeof header_ - header_bytes_ : 0;
  const size_t direct = left_ > 0 ? std::min<size_t>(left_, room) : std::min(room, kScratch);
  // A record that ends here is followed by another's header.
  const size_t next = left_ > 0 && direct == left_ ? sizeof header_ : 0;
  const size_t behind = direct > 0 && left_ == 0 ? 0 : place ? kBehind : kScratch;
  iovec parts[4];
  int count = 0;
  const auto add = [&](std::byte* to, size_t n) {
    if (n > 0) parts[count++] = {to, n};
  };
  add(header_ + header_bytes_, header);
  add(here, direct);
  if (left_ == 0 || next) {
    add(header_, next);
    add(scratch_.data(), behind);
  } else if (direct == 0) {
    add(scratch_.data(), std::min<size_t>(kScratch, left_));
  }
  const ssize_t got = link->stream->read(parts, count);
  if (got <= 0) return got;
  arrivals_.store(arrivals_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  auto n = static_cast<size_t>(got);
  const auto end_with = [&](bool good) { return received(good, got); };
  if (header > 0) {
    header_bytes_ += std::min(n, header);
    n -= std::min(n, header);
    if (!take_header(link)) return end_with(false);
  }
  const size_t landed = std::min(n, direct), placed = std::min<size_t>(landed, left_);
  if (landed > placed) {  // it belongs to the records that follow
    std::memcpy(scratch_.data(), here + placed, landed - placed);
  }
  if (placed > 0) {
    place->went(placed);
    left_ -= static_cast<uint32_t>(placed);
    received_.fetch_add(placed, std::memory_order_release);
  }
  if (landed > placed) return end_with(scan(scratch_.data(), landed - placed, place, link));
  n -= landed;
  if (next > 0) {
    header_bytes_ = std::min(n, next);
    n -= header_bytes_;
    if (!take_header(link)) return end_with(false);
  }
  return end_with(scan(scratch_.data(), n, place, link));
}

// What a read comes back with; `good`: what came was the other side's. Acknowledges now and then.
ssize_t ResumableStream::received(bool good, ssize_t got) {
  if (!good) return end(), 0;
  if (received_.load(std::memory_order_relaxed) - told_.load(std::memory_order_relaxed) >=
      kTellAfter)
    owes_acknowledgement_.store(true, std::memory_order_seq_cst);
  acknowledge();
  return got;
}

// Of the record that begins, once all of its header is there. False: it is none.
bool ResumableStream::take_header(const Link& link) {
  if (header_bytes_ < sizeof header_) return true;
  header_bytes_ = 0;
  StreamRecord record;
  std::memcpy(&record, header_, sizeof record);
  if (record.bytes > kMostRecord) return false;
  if (record.flags & wire::kOverSubflows) {
    bulk_subflows_ = record.flags >> kSubflowShift & 0xff;
    if (bulk_subflows_ == 0 || record.bytes == 0) return false;
    bulk_bytes_.store(record.bytes, std::memory_order_release);
  } else {
    left_ = record.bytes;
  }
  acknowledged(record.received, link);
  if (record.flags & wire::kWantsAcknowledgement)
    owes_acknowledgement_.store(true, std::memory_order_seq_cst);
  return true;
}

bool ResumableStream::scan(const std::byte* data, size_t n, Place* place, const Link& link) {
  while (n > 0) {
    if (bulk_bytes_) {
      behind_bulk_.assign(data, data + n);
      return true;
    }
    if (left_ == 0) {
      const size_t take = std::min(n, sizeof header_ - header_bytes_);
      std::memcpy(header_ + header_bytes_, data, take);
      header_bytes_ += take;
      data += take;
      n -= take;
      if (!take_header(link)) return false;
      continue;
    }
    const size_t take = std::min<size_t>(n, left_);
    const size_t placed = place ? place->put(data, take) : 0;
    if (placed < take) {
      if (in_.size() - in_begin_ + take - placed > kMostUntaken) return false;
      in_.insert(in_.end(), data + placed, data + take);
      waiting_in_.store(in_.size() - in_begin_, std::memory_order_release);
    }
    received_.fetch_add(take, std::memory_order_release);
    left_ -= static_cast<uint32_t>(take);
    data += take;
    n -= take;
  }
  return true;
}

}  // namespace sluice::channel
