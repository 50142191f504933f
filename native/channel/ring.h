// SPDX-License-Identifier: Apache-2.0
// The command ring of a slot: bytes from one client process to one worker, in order, lock-free
// between the two. RingProducer is the client's end (its caller serialises producers); RingConsumer
// is the worker's (its caller holds the baton). The producer owns `tail`, the consumer owns `head`;
// each keeps a private copy of its own word and never reads it back, so the other side can damage
// only what it sends. Frames never wrap: the ring is mapped twice in a row.
#pragma once

#include <cstring>

#include "channel/futex.h"
#include "channel/region.h"
#include "wire/frame.h"

namespace sluice::channel {

class RingProducer {
 public:
  void attach(SlotHeader& header, std::byte* ring, size_t ring_bytes) {
    header_ = &header;
    ring_ = ring;
    bytes_ = ring_bytes;
    tail_ = header.tail.load(std::memory_order_relaxed);
    head_seen_ = header.head.load(std::memory_order_acquire);
  }

  // Room for n bytes, or nullptr when the ring is full for now.
  std::byte* try_reserve(size_t n) {
    if (tail_ + n - head_seen_ > bytes_) {
      const uint64_t head = header_->head.load(std::memory_order_acquire);
      if (head > tail_ || tail_ - head > bytes_) return nullptr;  // nonsense: the device is gone
      head_seen_ = head;
      if (tail_ + n - head_seen_ > bytes_) return nullptr;
    }
    return ring_ + (tail_ & (bytes_ - 1));
  }

  // Publishes n bytes. True when the consumer sleeps and has to be woken.
  bool commit(size_t n) {
    tail_ += n;
    header_->tail.store(tail_, std::memory_order_seq_cst);
    return header_->sleeping.load(std::memory_order_seq_cst) != 0;
  }

  size_t capacity() const { return bytes_; }
  uint64_t produced() const { return tail_; }

 private:
  SlotHeader* header_ = nullptr;
  std::byte* ring_ = nullptr;
  size_t bytes_ = 0;
  uint64_t tail_ = 0;
  uint64_t head_seen_ = 0;
};

class RingConsumer {
 public:
  enum class Got { kFrame, kEmpty, kBroken };

  void attach(SlotHeader& header, const std::byte* ring, size_t ring_bytes) {
    header_ = &header;
    ring_ = ring;
    bytes_ = ring_bytes;
    head_.store(0, std::memory_order_relaxed);
  }

  // May be asked by any thread.
  bool empty() const { return header_->tail.load(std::memory_order_seq_cst) == consumed(); }

  // Copies the next frame into `out` (kMaxFrameBytes long) once, before anybody looks at it.
  Got take(std::byte* out) {
    const uint64_t head = consumed();
    const uint64_t available = header_->tail.load(std::memory_order_acquire) - head;
    if (available == 0) return Got::kEmpty;
    if (available > bytes_ || available < sizeof(wire::FrameHeader)) return Got::kBroken;
    const std::byte* at = ring_ + (head & (bytes_ - 1));
    // Read once: the client may be writing there.
    const uint32_t size = __atomic_load_n(reinterpret_cast<const uint32_t*>(at), __ATOMIC_RELAXED);
    if (size < sizeof(wire::FrameHeader) || size > available || size > wire::kMaxFrameBytes ||
        size % 8)
      return Got::kBroken;
    std::memcpy(out, at, size);
    std::memcpy(out, &size, sizeof size);  // the copy may have read another value than the check
    head_.store(head + size, std::memory_order_relaxed);
    // The next frame lies in another core's cache: it comes over while this one is executed.
    __builtin_prefetch(at + size);
    __builtin_prefetch(at + size + 64);
    return Got::kFrame;
  }

  // Gives consumed room back. Called after every frame or batch.
  void release() { header_->head.store(consumed(), std::memory_order_release); }

  uint64_t consumed() const { return head_.load(std::memory_order_relaxed); }

 private:
  SlotHeader* header_ = nullptr;
  const std::byte* ring_ = nullptr;
  size_t bytes_ = 0;
  std::atomic<uint64_t> head_{0};  // written by the leader only
};

}  // namespace sluice::channel
