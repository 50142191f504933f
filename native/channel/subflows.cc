// SPDX-License-Identifier: Apache-2.0
#include "channel/subflows.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <utility>

#include "channel/futex.h"

namespace sluice::channel {

namespace {

constexpr uint64_t kSpinNs = 100'000;  // the next piece of a copy comes sooner
constexpr auto kPatience = std::chrono::seconds(10);

// The same on both sides.
size_t slice_of(size_t bytes, uint32_t subflows) {
  constexpr size_t kAlign = 4096;
  const size_t part = (bytes + subflows - 1) / subflows;
  return (part + kAlign - 1) / kAlign * kAlign;
}

// Until the word is another; what it is then.
uint32_t await_change(std::atomic<uint32_t>& word, uint32_t from) {
  const uint64_t since = now_ns();
  for (;;) {
    for (int i = 0; i < 50; ++i) {
      if (const uint32_t is = word.load(std::memory_order_acquire); is != from) return is;
      cpu_relax();
    }
    if (now_ns() - since > kSpinNs) futex_wait(word, from);
    spin_round();
  }
}

// Whoever sends may wait for a hand, and who settles what was sent.
void one_more(std::atomic<uint32_t>& word) {
  word.fetch_add(1, std::memory_order_release);
  futex_wake(word, INT_MAX);
}

}  // namespace

Subflows::~Subflows() {
  cut();
  over_ = true;
  for (Subflow& subflow : subflows_) {
    for (Hand* hand : {&subflow.sends, &subflow.receives})
      if (hand->thread.started()) one_more(hand->posted);
    subflow.sends.thread.join();
    subflow.receives.thread.join();
    subflow.stream.reset();
    if (subflow.socket >= 0) ::close(subflow.socket);
  }
}

bool Subflows::add(uint32_t number, int socket, std::unique_ptr<Stream> stream) {
  std::lock_guard lock(mutex_);
  if (number >= kMost || cut_ || subflows_[number].socket >= 0) {
    ::close(socket);
    return false;
  }
  subflows_[number].socket = socket;
  subflows_[number].stream = std::move(stream);
  uint32_t count = count_.load(std::memory_order_relaxed);
  while (count < kMost && subflows_[count].socket >= 0) ++count;
  count_.store(count, std::memory_order_release);
  added_.notify_all();
  return true;
}

uint32_t Subflows::count_for(size_t bytes) const {
  const auto worth = static_cast<uint32_t>(std::min<size_t>(bytes / kLeastSlice, kMost));
  return std::min(count_.load(std::memory_order_acquire), worth);
}

void Subflows::cut() {
  std::lock_guard lock(mutex_);
  cut_ = true;
  for (const Subflow& subflow : subflows_)
    if (subflow.socket >= 0) shutdown(subflow.socket, SHUT_RDWR);
  added_.notify_all();
}

bool Subflows::send(const std::byte* data, size_t bytes, uint32_t subflows) {
  return carry(const_cast<std::byte*>(data), bytes, subflows, Carries::kSends);
}

bool Subflows::send_ahead(const std::byte* data, size_t bytes, uint32_t subflows,
                          const std::shared_ptr<const void>& held) {
  return carry(const_cast<std::byte*>(data), bytes, subflows, Carries::kSendsAhead, held);
}

void Subflows::finish() {
  for (Subflow& subflow : subflows_) await(subflow.sends, subflow.sends.posted);
}

void Subflows::abandon() {
  cut();
  finish();
}

bool Subflows::receive(std::byte* to, size_t bytes, uint32_t subflows) {
  if (subflows == 0 || subflows > kMost) return false;
  if (count_.load(std::memory_order_acquire) < subflows) {
    std::unique_lock lock(mutex_);
    added_.wait_for(lock, kPatience, [&] { return cut_ || count_ >= subflows; });
    if (count_ < subflows) return false;
  }
  return carry(to, bytes, subflows, Carries::kReceives);
}

// The first slice is this thread's, and those of subflows for which there is no thread to be had.
bool Subflows::carry(std::byte* at, size_t bytes, uint32_t subflows, Carries what,
                     const std::shared_ptr<const void>& held) {
  const bool sends = what != Carries::kReceives;
  const size_t each = slice_of(bytes, subflows);
  const auto slice = [&](uint32_t i) {
    const size_t from = std::min(bytes, i * each);
    return Slice{at + from, std::min(bytes, from + each) - from, held};
  };
  bool posted[kMost] = {};
  for (uint32_t i = 1; i < subflows; ++i) {
    Subflow& subflow = subflows_[i];
    Hand& hand = sends ? subflow.sends : subflow.receives;
    posted[i] =
        hand.thread.started() ||
        hand.thread.start(
            "sluice-subflow", [this, &subflow, sends] { work(subflow, sends); }, Signals::kBlocked);
    if (posted[i]) post(hand, slice(i));
  }
  for (uint32_t i = 0; i < subflows; ++i) {
    Slice own = slice(i);
    if (!posted[i]) carry_slice(subflows_[i], own, sends);
  }
  for (uint32_t i = 1; i < subflows && what != Carries::kSendsAhead; ++i) {
    Hand& hand = sends ? subflows_[i].sends : subflows_[i].receives;
    await(hand, hand.posted);
  }
  return !lost();
}

// One that fails cuts all of them, and is known by that.
void Subflows::carry_slice(Subflow& subflow, Slice& slice, bool sends) {
  bool good = !lost();
  if (sends) {
    iovec part{slice.at, slice.bytes};
    good = good && (slice.bytes == 0 || subflow.stream->write(&part, 1));
  } else {
    while (good && slice.bytes > 0) {
      const iovec part{slice.at, slice.bytes};
      const ssize_t got = subflow.stream->read(&part, 1);
      if (!(good = got > 0)) break;
      arrivals_.fetch_add(1, std::memory_order_relaxed);
      slice.at += got;
      slice.bytes -= static_cast<size_t>(got);
    }
  }
  if (!good) cut();
}

void Subflows::work(Subflow& subflow, bool sends) {
  Hand& hand = sends ? subflow.sends : subflow.receives;
  for (uint32_t done = 0;; one_more(hand.done)) {
    if (hand.posted.load(std::memory_order_acquire) == done) await_change(hand.posted, done);
    if (over_.load(std::memory_order_relaxed)) return;
    Slice slice = std::move(hand.slices[done++ % Hand::kAhead]);
    carry_slice(subflow, slice, sends);
  }
}

void Subflows::post(Hand& hand, Slice slice) {
  await(hand, hand.posted + 1 - Hand::kAhead);
  hand.slices[hand.posted.load(std::memory_order_relaxed) % Hand::kAhead] = std::move(slice);
  one_more(hand.posted);
}

// Until it has carried so many slices.
void Subflows::await(Hand& hand, uint32_t done) {
  for (;;) {
    const uint32_t is = hand.done.load(std::memory_order_acquire);
    if (static_cast<int32_t>(is - done) >= 0) return;
    await_change(hand.done, is);
  }
}

}  // namespace sluice::channel
