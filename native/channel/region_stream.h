// SPDX-License-Identifier: Apache-2.0
// A slot as a connection: bytes from the client in the ring, bytes to it in the arena's first
// ring_bytes (SlotDialect::kBytes). RegionStream is the client's end, a Stream like a socket's;
// ByteProducer and ByteConsumer are one end of one direction each, for both sides. Each keeps a
// private copy of the word that it owns and checks the other's, so the other side can damage only
// what it sends.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <memory>
#include <string>

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
  // By the other side's word as it is, for a guess.
  bool seems_to_have_room(size_t n) const {
    return bytes_ - (tail_ - head_word_->load(std::memory_order_acquire)) >= n;
  }

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

// What the client has of its slot, for one connection after the other. Closes its descriptors.
struct RegionEnd {
  // Takes the mapped slot, arena included, whose state is ready. `shares_futex`: both sides are
  // processes of one kernel. `relay_pidfd` (-1: unknown, as in a guest) is of the first relay.
  RegionEnd(MappedSlot mapped, bool shares, int relay, int region, Bell with);
  ~RegionEnd();
  RegionEnd(const RegionEnd&) = delete;

  MappedSlot slot;
  const bool shares_futex;
  const int relay_pidfd, region_fd;
  Bell bell;
  const uint32_t generation;

  // The host side has ended the session, or the slot is somebody else's. After a detach a guest
  // reads zeros from the lost device, so anything but "ready, same generation" is an end.
  bool over() const;
  // The CUresult that the host side gave for that, and why; 0: it gave none.
  uint32_t last_words(std::string* why) const;
};

// The client's end of a connection. `link` is its number where the session outlives its relay
// (SlotHeader::link), else 0. The connection is gone with the session, when the relay has another
// or none, and when the relay's pidfd says that it ended.
class RegionStream : public Stream {
 public:
  RegionStream(std::shared_ptr<RegionEnd> end, uint32_t link);
  // A session that has one connection only.
  RegionStream(MappedSlot slot, bool shares_futex, int relay_pidfd, int region_fd, Bell bell = {});
  ~RegionStream() override;

  ssize_t read(const iovec* parts, int count) override;
  bool write(iovec* parts, int count) override;
  void try_write(const void* data, size_t n) override;
  bool readable() const override;
  bool writable() const override;
  bool wait_readable(int milliseconds) override;
  void finish() override;
  void cut() override;
  bool begin() override;
  Line line() const override { return gone() ? Line::kClosed : Line::kUp; }
  bool unheard_of(uint32_t) const override { return false; }
  uint32_t round_trip_us() const override;
  bool is_last() const override { return end_->over() || (link_ == 0 && gone()); }
  uint32_t last_words(std::string* why) override { return end_->last_words(why); }

 private:
  // How long somebody has been waiting for bytes, and how.
  struct Idle {
    uint64_t since = 0, pause = 0, slept = 0;
  };
  void wait_a_little(Idle* idle) const;
  bool gone() const;    // costs a system call where there is a pidfd
  bool closed() const;  // by what the slot says alone
  bool put(const std::byte* data, size_t n);
  void wake();
  ssize_t take(const iovec* parts, int count);  // what is there now

  const std::shared_ptr<RegionEnd> end_;
  SlotHeader& h_;
  const uint32_t link_;
  const int relay_pidfd_;
  std::atomic<bool> cut_{false};
  ByteProducer out_;
  ByteConsumer in_;
};

}  // namespace sluice::channel
