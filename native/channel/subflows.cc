// SPDX-License-Identifier: Apache-2.0
#include "channel/subflows.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

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

void say(std::atomic<uint32_t>& word, uint32_t is) {
  word.store(is, std::memory_order_release);
  futex_wake(word);
}

}  // namespace

Subflows::~Subflows() {
  cut();
  for (Subflow& subflow : subflows_) {
    for (Hand* hand : {&subflow.sends, &subflow.receives})
      if (hand->thread.started()) say(hand->state, kOver);
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
  return carry(const_cast<std::byte*>(data), bytes, subflows, true);
}

bool Subflows::receive(std::byte* to, size_t bytes, uint32_t subflows) {
  if (subflows == 0 || subflows > kMost) return false;
  if (count_.load(std::memory_order_acquire) < subflows) {
    std::unique_lock lock(mutex_);
    added_.wait_for(lock, kPatience, [&] { return cut_ || count_ >= subflows; });
    if (count_ < subflows) return false;
  }
  return carry(to, bytes, subflows, false);
}

// The first slice is this thread's, and those of subflows for which there is no thread to be had.
bool Subflows::carry(std::byte* at, size_t bytes, uint32_t subflows, bool sends) {
  const size_t slice = slice_of(bytes, subflows);
  const auto part = [&](uint32_t i) { return std::min(bytes, i * slice); };
  bool posted[kMost] = {};
  for (uint32_t i = 1; i < subflows; ++i) {
    Subflow& subflow = subflows_[i];
    Hand& hand = sends ? subflow.sends : subflow.receives;
    posted[i] =
        hand.thread.started() ||
        hand.thread.start(
            "sluice-subflow", [this, &subflow, sends] { work(subflow, sends); }, Signals::kBlocked);
    if (!posted[i]) continue;
    hand.at = at + part(i);
    hand.bytes = part(i + 1) - part(i);
    say(hand.state, kPosted);
  }
  bool good = true;
  for (uint32_t i = 0; i < subflows; ++i)
    if (!posted[i]) good &= carry_slice(subflows_[i], at + part(i), part(i + 1) - part(i), sends);
  for (uint32_t i = 1; i < subflows; ++i)
    if (posted[i]) good &= await(sends ? subflows_[i].sends : subflows_[i].receives);
  return good && !cut_.load(std::memory_order_relaxed);
}

bool Subflows::carry_slice(Subflow& subflow, std::byte* at, size_t bytes, bool sends) {
  bool good = !cut_.load(std::memory_order_relaxed);
  if (sends) {
    iovec part{at, bytes};
    good = good && (bytes == 0 || subflow.stream->write(&part, 1));
  } else {
    while (good && bytes > 0) {
      const iovec part{at, bytes};
      const ssize_t got = subflow.stream->read(&part, 1);
      if (!(good = got > 0)) break;
      arrivals_.fetch_add(1, std::memory_order_relaxed);
      at += got;
      bytes -= static_cast<size_t>(got);
    }
  }
  if (!good) cut();
  return good;
}

void Subflows::work(Subflow& subflow, bool sends) {
  Hand& hand = sends ? subflow.sends : subflow.receives;
  for (;;) {
    const uint32_t is = hand.state.load(std::memory_order_acquire);
    if (is == kOver) return;
    if (is == kPosted)
      say(hand.state, carry_slice(subflow, hand.at, hand.bytes, sends) ? kDone : kFailed);
    else
      await_change(hand.state, is);
  }
}

bool Subflows::await(Hand& hand) {
  const uint32_t is = await_change(hand.state, kPosted);
  hand.state.store(kIdle, std::memory_order_relaxed);
  return is == kDone;
}

}  // namespace sluice::channel
