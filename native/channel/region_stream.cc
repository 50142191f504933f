// SPDX-License-Identifier: Apache-2.0
#include "channel/region_stream.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "channel/end_reason.h"
#include "channel/futex.h"

namespace sluice::channel {

namespace {
// A round trip over a near network fits in.
constexpr uint64_t kSpinNs = 100'000;
constexpr uint64_t kSleepSliceNs = 100'000'000;  // then look whether the relay lives
constexpr uint64_t kPauseMinNs = 20'000, kPauseMaxNs = 2'000'000;
constexpr size_t kAtOnce = 64 << 10;  // so much is handed over before the next is copied

int split(std::byte* ring, size_t ring_bytes, uint64_t at, size_t n, iovec parts[2]) {
  if (n == 0) return 0;
  const size_t begin = at & (ring_bytes - 1), first = std::min(n, ring_bytes - begin);
  parts[0] = {ring + begin, first};
  parts[1] = {ring, n - first};
  return n > first ? 2 : 1;
}
}  // namespace

void ByteProducer::attach(std::atomic<uint64_t>& tail, const std::atomic<uint64_t>& head,
                          std::byte* ring, size_t ring_bytes) {
  tail_word_ = &tail;
  head_word_ = &head;
  ring_ = ring;
  bytes_ = ring_bytes;
  tail_ = head_seen_ = 0;
}

int ByteProducer::room(iovec parts[2], size_t most) {
  if (tail_ - head_seen_ + std::min(most, bytes_) > bytes_) {
    const uint64_t head = head_word_->load(std::memory_order_acquire);
    if (head > tail_ || head < head_seen_) return -1;
    head_seen_ = head;
  }
  return split(ring_, bytes_, tail_, std::min<uint64_t>(most, bytes_ - (tail_ - head_seen_)),
               parts);
}

void ByteProducer::commit(size_t n) {
  tail_ += n;
  tail_word_->store(tail_, std::memory_order_seq_cst);
}

void ByteConsumer::attach(const std::atomic<uint64_t>& tail, std::atomic<uint64_t>& head,
                          std::byte* ring, size_t ring_bytes) {
  tail_word_ = &tail;
  head_word_ = &head;
  ring_ = ring;
  bytes_ = ring_bytes;
  head_ = tail_seen_ = 0;
}

int ByteConsumer::there(iovec parts[2], size_t most) {
  if (tail_seen_ - head_ < most) {
    const uint64_t tail = tail_word_->load(std::memory_order_acquire);
    if (tail < tail_seen_ || tail - head_ > bytes_) return -1;
    tail_seen_ = tail;
  }
  return split(ring_, bytes_, head_, std::min<uint64_t>(most, tail_seen_ - head_), parts);
}

void ByteConsumer::release(size_t n) {
  head_ += n;
  head_word_->store(head_, std::memory_order_release);
}

RegionEnd::RegionEnd(MappedSlot mapped, bool shares, int relay, int region, Bell with)
    : slot(std::move(mapped)),
      shares_futex(shares),
      relay_pidfd(relay),
      region_fd(region),
      bell(std::move(with)),
      generation(slot.header().generation.load()) {}

RegionEnd::~RegionEnd() {
  if (relay_pidfd >= 0) ::close(relay_pidfd);
  if (region_fd >= 0) ::close(region_fd);
}

bool RegionEnd::over() const {
  const SlotHeader& h = slot.header();
  return h.state.load(std::memory_order_acquire) != static_cast<uint32_t>(SlotState::kReady) ||
         h.generation.load(std::memory_order_relaxed) != generation;
}

uint32_t RegionEnd::last_words(std::string* why) const {
  SlotHeader& h = slot.header();
  if (h.generation.load(std::memory_order_relaxed) != generation) return 0;
  const uint32_t error = h.sticky_error.load(std::memory_order_acquire);
  if (error == 0) return 0;
  *why = read_end_reason(slot);
  // The relay waits for this a moment, as the slot is blank after it.
  uint32_t expected = static_cast<uint32_t>(SlotState::kDead);
  h.state.compare_exchange_strong(expected, static_cast<uint32_t>(SlotState::kClosed));
  return error;
}

// The pidfd is of the first relay.
RegionStream::RegionStream(std::shared_ptr<RegionEnd> end, uint32_t link)
    : Stream(-1),
      end_(std::move(end)),
      h_(end_->slot.header()),
      link_(link),
      relay_pidfd_(link <= kFirstLink ? end_->relay_pidfd : -1) {
  out_.attach(h_.tail, h_.head, end_->slot.ring(), end_->slot.layout().ring_bytes);
  in_.attach(h_.back_tail, h_.back_head, end_->slot.arena(), end_->slot.layout().ring_bytes);
}

RegionStream::RegionStream(MappedSlot slot, bool shares_futex, int relay_pidfd, int region_fd,
                           Bell bell)
    : RegionStream(std::make_shared<RegionEnd>(std::move(slot), shares_futex, relay_pidfd,
                                               region_fd, std::move(bell)),
                   0) {}

RegionStream::~RegionStream() { cut(); }

bool RegionStream::closed() const {
  return cut_.load(std::memory_order_acquire) || end_->over() ||
         (link_ != 0 && h_.link.load(std::memory_order_acquire) != link_);
}

bool RegionStream::gone() const {
  if (closed()) return true;
  if (relay_pidfd_ < 0) return false;
  pollfd p{relay_pidfd_, POLLIN, 0};
  return poll(&p, 1, 0) > 0;
}

bool RegionStream::begin() {
  if (link_ == 0) return true;
  h_.tail.store(0, std::memory_order_relaxed);
  h_.back_head.store(0, std::memory_order_relaxed);
  h_.link_taken.store(link_, std::memory_order_seq_cst);
  wake();
  return !closed();
}

// The relay learns of it, too: it is of no more use.
void RegionStream::cut() {
  if (cut_.exchange(true)) return;
  uint32_t taken = link_;
  const bool ours = h_.generation.load(std::memory_order_relaxed) == end_->generation;
  if (link_ != 0 && ours && h_.link_taken.compare_exchange_strong(taken, 0)) wake();
  if (!end_->shares_futex) return;  // a reader looks now and then
  h_.reader_wake.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(h_.reader_wake, 1 << 20);
}

uint32_t RegionStream::round_trip_us() const {
  return h_.node_round_trip_us.load(std::memory_order_relaxed);
}

ssize_t RegionStream::take(const iovec* parts, int count) {
  ssize_t taken = 0;
  for (int i = 0; i < count; ++i) {
    auto* to = static_cast<std::byte*>(parts[i].iov_base);
    for (size_t left = parts[i].iov_len; left > 0;) {
      iovec from[2];
      const int n = in_.there(from, left);
      if (n < 0) return taken ? taken : -1;
      if (n == 0) return taken;
      for (int k = 0; k < n; ++k) {
        std::memcpy(to, from[k].iov_base, from[k].iov_len);
        to += from[k].iov_len;
        left -= from[k].iov_len;
        taken += static_cast<ssize_t>(from[k].iov_len);
        in_.release(from[k].iov_len);
      }
    }
  }
  return taken;
}

ssize_t RegionStream::read(const iovec* parts, int count) {
  Idle idle;
  for (;;) {
    // Read before the bytes: what was put there before the end is still to be had.
    const bool over = idle.slept >= kSleepSliceNs ? gone() : closed();
    if (idle.slept >= kSleepSliceNs) idle.slept = 0;
    const bool ours = h_.generation.load(std::memory_order_relaxed) == end_->generation;
    if (const ssize_t n = ours ? take(parts, count) : 0; n != 0) return n;
    if (over) return 0;
    wait_a_little(&idle);
  }
}

bool RegionStream::wait_readable(int milliseconds) {
  const uint64_t until = now_ns() + static_cast<uint64_t>(milliseconds) * 1'000'000;
  for (Idle idle; !readable(); wait_a_little(&idle))
    if (now_ns() >= until) return false;
  return true;
}

void RegionStream::wait_a_little(Idle* idle) const {
  const uint64_t now = now_ns();
  if (idle->since == 0) idle->since = now, idle->pause = kPauseMinNs;
  if (now - idle->since < kSpinNs) {
    for (int i = 0; i < 50 && in_.empty(); ++i) cpu_relax();
    if (in_.empty()) spin_round();
  } else if (end_->shares_futex) {
    const uint32_t seen = h_.reader_wake.load(std::memory_order_seq_cst);
    h_.reader_sleeps.store(1, std::memory_order_seq_cst);
    if (in_.empty() && !closed()) futex_wait(h_.reader_wake, seen, kSleepSliceNs);
    h_.reader_sleeps.store(0, std::memory_order_relaxed);
    idle->slept = kSleepSliceNs;
  } else {
    sleep_ns(idle->pause);
    idle->slept += idle->pause;
    idle->pause = std::min(idle->pause * 2, kPauseMaxNs);
  }
}

void RegionStream::wake() {
  if (h_.sleeping.load(std::memory_order_seq_cst) == 0 ||
      h_.sleeping.exchange(0, std::memory_order_seq_cst) == 0)
    return;
  if (end_->shares_futex) {
    h_.wake.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(h_.wake);
  } else {
    h_.doorbell.store(1, std::memory_order_seq_cst);
    end_->bell.ring();
  }
}

bool RegionStream::put(const std::byte* data, size_t n) {
  uint64_t start = 0, pause = kPauseMinNs, slept = 0;
  while (n > 0) {
    iovec to[2];
    const int parts = closed() ? -1 : out_.room(to, std::min(n, kAtOnce));
    if (parts < 0) return false;
    if (parts > 0) {
      size_t all = 0;
      for (int i = 0; i < parts; ++i) {
        std::memcpy(to[i].iov_base, data + all, to[i].iov_len);
        all += to[i].iov_len;
      }
      out_.commit(all);
      data += all;
      n -= all;
      if (n >= kAtOnce) wake();
      start = 0;
      pause = kPauseMinNs;
      continue;
    }
    const uint64_t now = now_ns();
    if (start == 0) {
      start = now;
      wake();
    }
    if (now - start < kSpinNs) {
      for (int i = 0; i < 50; ++i) cpu_relax();
      spin_round();
      continue;
    }
    // A full ring means that the network is busy: sleeping a little costs nothing, and no wake-up
    // has to be sent for it.
    sleep_ns(pause);
    slept += pause;
    pause = std::min(pause * 2, kPauseMaxNs);
    if (slept >= kSleepSliceNs) {
      slept = 0;
      if (gone()) return false;
    }
  }
  return true;
}

bool RegionStream::write(iovec* parts, int count) {
  for (int i = 0; i < count; ++i)
    if (!put(static_cast<const std::byte*>(parts[i].iov_base), parts[i].iov_len)) return false;
  wake();
  return true;
}

void RegionStream::try_write(const void* data, size_t n) {
  iovec to[2];
  const int parts = closed() ? 0 : out_.room(to, n);
  if (parts <= 0 || to[0].iov_len + (parts > 1 ? to[1].iov_len : 0) < n) return;
  size_t at = 0;
  for (int i = 0; i < parts; ++i) {
    std::memcpy(to[i].iov_base, static_cast<const std::byte*>(data) + at, to[i].iov_len);
    at += to[i].iov_len;
  }
  out_.commit(n);
  wake();
}

bool RegionStream::readable() const { return !in_.empty() || closed(); }

bool RegionStream::writable() const { return out_.seems_to_have_room(kPage) || closed(); }

void RegionStream::finish() {
  if (h_.generation.load(std::memory_order_relaxed) != end_->generation) return;
  uint32_t expected = static_cast<uint32_t>(SlotState::kReady);
  if (!h_.state.compare_exchange_strong(expected, static_cast<uint32_t>(SlotState::kClosed)))
    return;
  h_.sleeping.store(1, std::memory_order_seq_cst);
  wake();
}

}  // namespace sluice::channel
