// SPDX-License-Identifier: Apache-2.0
// A slot as a connection: bytes from the client in the ring, bytes to it in the arena's first
// ring_bytes (SlotDialect::kBytes). RegionStream is the client's end, a Stream like a socket's;
// ByteProducer and ByteConsumer are one end of one direction each, for both sides. Each keeps a
// private copy of the word that it owns and checks the other's, so the other side can damage only
// what it sends.
#pragma once

#include <sys/uio.h>

#include <atomic>

#include "channel/bell.h"
#include "channel/region.h"
#include "channel/stream.h"

namespace sluice::channel {

// Of a ring whose size is a power of two.
class ByteProducer {
 public:
  void attach(std::atomic<uint64_t>& tail, const std::atomic<uint64_t>& head, std::byte* ring,
              size_t ring_bytes);
  // Where up to `most` bytes can be put now; how many parts that is, 0: the ring is full. -1: the
  // other side's word is nonsense.
  int room(iovec parts[2], size_t most);
  // They are there.
  void commit(size_t n);
  uint64_t produced() const { return tail_; }

 private:
  std::atomic<uint64_t>* tail_word_ = nullptr;
  const std::atomic<uint64_t>* head_word_ = nullptr;
  std::byte* ring_ = nullptr;
  size_t bytes_ = 0;
  uint64_t tail_ = 0, head_seen_ = 0;
};

class ByteConsumer {
 public:
  void attach(const std::atomic<uint64_t>& tail, std::atomic<uint64_t>& head, std::byte* ring,
              size_t ring_bytes);
  // What lies there, up to `most` bytes; in how many parts, 0: nothing does. -1: the other side's
  // word is nonsense.
  int there(iovec parts[2], size_t most);
  // They are used.
  void release(size_t n);
  bool empty() const { return tail_word_->load(std::memory_order_seq_cst) == head_; }

 private:
  const std::atomic<uint64_t>* tail_word_ = nullptr;
  std::atomic<uint64_t>* head_word_ = nullptr;
  std::byte* ring_ = nullptr;
  size_t bytes_ = 0;
  uint64_t head_ = 0, tail_seen_ = 0;
};

// The client's end. The relay is gone when the slot is no longer ready, when it was given to
// somebody else, or when `relay_pidfd` (-1: unknown, as in a guest) says so.
class RegionStream : public Stream {
 public:
  // Takes the mapped slot, arena included, whose state is ready. `shares_futex`: both sides are
  // processes of one kernel.
  RegionStream(MappedSlot slot, bool shares_futex, int relay_pidfd, int region_fd, Bell bell = {});
  ~RegionStream() override;

  ssize_t read(const iovec* parts, int count) override;
  bool write(iovec* parts, int count) override;
  void try_write(const void* data, size_t n) override;
  bool readable() const override;
  void finish() override;
  uint32_t last_words(std::string* why) override;

 private:
  bool gone();          // costs a system call where there is a pidfd
  bool closed() const;  // by what the slot says alone
  bool put(const std::byte* data, size_t n);
  void wake();
  ssize_t take(const iovec* parts, int count);  // what is there now

  MappedSlot slot_;
  ByteProducer out_;
  ByteConsumer in_;
  const bool shares_futex_;
  const int relay_pidfd_, region_fd_;
  Bell bell_;
  const uint32_t generation_;
};

}  // namespace sluice::channel
