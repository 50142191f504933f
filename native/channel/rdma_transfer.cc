// SPDX-License-Identifier: Apache-2.0
// What an RdmaConnection sends and receives.
#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "channel/futex.h"
#include "channel/rdma_connection.h"
#include "channel/rdma_objects.h"

namespace sluice::channel {

namespace {

constexpr uint64_t kLateNs = 20'000'000;  // how long bytes may come behind the socket's end
constexpr uint64_t kLastBytesNs = 1'000'000'000;
constexpr size_t kAtOnce = 256 << 10;  // so much is under way before the next is copied
constexpr size_t kFew = 4 << 10;
constexpr uint64_t kSignalEach = 16;  // pieces
constexpr uint32_t kSaidBits = 30;
constexpr uint32_t kSaidMask = (1u << kSaidBits) - 1;
constexpr int kBatch = 16;
constexpr uint32_t kCreditBytes = sizeof(RdmaCredit);

size_t sum(const iovec* parts, int count) {
  size_t n = 0;
  for (int i = 0; i < count; ++i) n += parts[i].iov_len;
  return n;
}

}  // namespace

// ---- the queues

// receive_mutex_ held.
bool RdmaConnection::post_receives(uint32_t count) {
  ibv_recv_wr wr[kBatch]{};
  while (count > 0) {
    const uint32_t n = std::min<uint32_t>(count, kBatch);
    for (uint32_t i = 0; i < n; ++i) wr[i].next = i + 1 < n ? &wr[i + 1] : nullptr;
    ibv_recv_wr* bad = nullptr;
    if (ibv_post_recv(objects_->queue_pair, wr, &bad) != 0) return false;
    count -= n;
  }
  return true;
}

void RdmaConnection::progress(bool insist) {
  {
    std::unique_lock lock(receive_mutex_, std::defer_lock);
    if (insist) lock.lock();
    if (lock || lock.try_lock()) {
      ibv_wc completions[kBatch];
      int n;
      while ((n = ibv_poll_cq(objects_->received, kBatch, completions)) > 0) {
        for (int i = 0; i < n; ++i)
          if (!broken_.load() && !take(completions[i]))
            fail("the other side broke the rules of the RDMA connection");
        if (!broken_.load() && !post_receives(static_cast<uint32_t>(n)))
          fail("posting receives failed");
      }
      if (n < 0) fail("the completion queue cannot be read");
    }
  }
  if (posted_.load() != retired_.load()) {
    std::unique_lock lock(post_mutex_, std::defer_lock);
    if (insist) lock.lock();
    if (lock || lock.try_lock()) reap();
  }
  nudge();
}

// receive_mutex_ held.
bool RdmaConnection::take(const ibv_wc& completion) {
  if (completion.status != IBV_WC_SUCCESS) {
    fail(verbs_.ibv_wc_status_str(completion.status));
    return true;
  }
  if (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM) return false;
  const uint32_t word = ntohl(completion.imm_data), said = word & kSaidMask;
  switch (static_cast<Kind>(word >> kSaidBits)) {
    case Kind::kData:
      if (said == 0 || finished_.load() || there() + said > memory_->ring_bytes()) return false;
      pieces_arrived_.fetch_add(1);
      arrived_.fetch_add(said);
      return true;
    case Kind::kCredit: {
      if (said != credits_taken_ % kRdmaCredits) return false;
      const RdmaCredit& credit = memory_->credit(credits_taken_++);
      const uint64_t consumed = credit.consumed.load(), pieces = credit.pieces.load();
      if (consumed < released_.load() || consumed > sent_.load() ||
          pieces < pieces_released_.load() || pieces > pieces_sent_.load())
        return false;
      pieces_released_.store(pieces);
      released_.store(consumed);
      return true;
    }
    case Kind::kFinish:
      finished_.store(true);
      return true;
    case Kind::kGreeting:
      greeted_.store(true);
      return true;
  }
  return false;
}

// post_mutex_ held.
void RdmaConnection::reap() {
  ibv_wc completions[kBatch];
  int n;
  while ((n = ibv_poll_cq(objects_->sent, kBatch, completions)) > 0) {
    for (int i = 0; i < n; ++i) {
      if (completions[i].status != IBV_WC_SUCCESS) {
        fail(verbs_.ibv_wc_status_str(completions[i].status));
        continue;
      }
      completed_.store(position_[completions[i].wr_id % kSends]);
      retired_.store(completions[i].wr_id);
    }
  }
  if (n < 0) fail("the completion queue cannot be read");
}

// post_mutex_ held. `signaled`: its completion is asked for, and with it that of all before.
// `solicited`: a reader at the other side that sleeps is woken.
bool RdmaConnection::post(Kind kind, uint32_t said, const void* from, size_t n, uint64_t to,
                          bool signaled, bool solicited) {
  if (broken_.load()) return false;
  ibv_sge piece{reinterpret_cast<uintptr_t>(from), static_cast<uint32_t>(n), memory_->stage_key()};
  ibv_send_wr wr{};
  const uint64_t number = posted_.load() + 1;
  wr.wr_id = number;
  wr.sg_list = &piece;
  wr.num_sge = n > 0 ? 1 : 0;
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.imm_data = htonl((static_cast<uint32_t>(kind) << kSaidBits) | said);
  wr.wr.rdma.remote_addr = to;
  wr.wr.rdma.rkey = other_.area_key;
  unsignaled_bytes_ += n;
  if (signaled || ++unsignaled_ >= kSignalEach || unsignaled_bytes_ >= memory_->ring_bytes() / 8) {
    wr.send_flags |= IBV_SEND_SIGNALED;
    unsignaled_ = unsignaled_bytes_ = 0;
  }
  if (solicited) wr.send_flags |= IBV_SEND_SOLICITED;
  if (n > 0 && n <= inline_) wr.send_flags |= IBV_SEND_INLINE;
  position_[number % kSends] = sent_.load();
  posted_.store(number);
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(objects_->queue_pair, &wr, &bad); error != 0) {
    fail(std::string("posting a write failed: ") + std::strerror(error));
    return false;
  }
  return true;
}

// ---- sending

// Whether the other side could take more, so that it is this side's stage or queue that is full.
bool RdmaConnection::other_has_room() const {
  return sent_.load() - released_.load() < other_.ring_bytes &&
         pieces_sent_.load() - pieces_released_.load() < other_.receives;
}

// How much of one piece there is room for now, on both sides.
size_t RdmaConnection::room() const {
  const uint64_t sent = sent_.load();
  const size_t ring = other_.ring_bytes, stage = memory_->ring_bytes();
  if (pieces_sent_.load() - pieces_released_.load() >= other_.receives ||
      posted_.load() - retired_.load() >= kSends - kOfCredits)
    return 0;
  const size_t window =
      std::min<size_t>(ring - (sent - released_.load()), stage - (sent - completed_.load()));
  return std::min({window, ring - sent % ring, stage - sent % stage});
}

// 0: the connection is lost.
size_t RdmaConnection::await_room() {
  uint64_t start = 0;
  for (;;) {
    if (broken_.load()) return 0;
    if (const size_t n = room()) return n;
    progress(false);
    if (const size_t n = room()) {
      if (start != 0) patience_[1].waited(now_ns() - start);
      return n;
    }
    if (socket_over_.load()) return 0;
    const uint64_t now = now_ns();
    if (start == 0) start = now;
    if (now - start < patience_[1].nanoseconds())
      spin_round();
    else
      wait(Role::kWriter);
  }
}

bool RdmaConnection::write(iovec* parts, int count) {
  const iovec* part = parts;
  size_t offset = 0;
  for (size_t left = sum(parts, count); left > 0;) {
    const size_t n = std::min({left, await_room(), kAtOnce});
    if (n == 0) return false;
    std::byte* to = memory_->stage() + sent_.load() % memory_->ring_bytes();
    for (size_t put = 0; put < n;) {
      const size_t take = std::min(n - put, part->iov_len - offset);
      std::memcpy(to + put, static_cast<const std::byte*>(part->iov_base) + offset, take);
      put += take;
      offset += take;
      if (offset == part->iov_len) ++part, offset = 0;
    }
    left -= n;
    std::lock_guard lock(post_mutex_);
    const uint64_t at = sent_.load();
    pieces_sent_.fetch_add(1);
    sent_.store(at + n);  // before it goes: it may be acknowledged at once
    const uint64_t ring = other_.area + kCreditPage;
    unsolicited_ += n;
    const bool solicited = left == 0 || unsolicited_ >= other_.ring_bytes / 2;
    if (solicited) unsolicited_ = 0;
    if (!post(Kind::kData, static_cast<uint32_t>(n), to, n, ring + at % other_.ring_bytes, false,
              solicited))
      return false;
    reap();
  }
  return !broken_.load();
}

void RdmaConnection::try_write(const void* data, size_t n) {
  iovec part{const_cast<void*>(data), n};
  if (broken_.load() || room() < n) return;
  write(&part, 1);
  flush();  // whoever writes like this may end now, and the adapter with it
}

bool RdmaConnection::writable() {
  progress(false);
  return broken_.load() || room() >= kFew;
}

bool RdmaConnection::flush() {
  const uint64_t until = now_ns() + kLastBytesNs;
  {
    std::lock_guard lock(post_mutex_);
    if (posted_.load() == retired_.load()) return true;
    if (unsignaled_ > 0 && !post(Kind::kGreeting, 0, nullptr, 0, 0, true, true)) return false;
  }
  while (!broken_.load() && posted_.load() != retired_.load()) {
    if (now_ns() >= until) return false;
    progress(true);
    if (posted_.load() != retired_.load()) sleep_ns(50'000);
  }
  return !broken_.load();
}

void RdmaConnection::finish() {
  {
    std::lock_guard lock(post_mutex_);
    if (!post(Kind::kFinish, 0, nullptr, 0, 0, true, true)) return;
  }
  flush();
}

// ---- receiving

size_t RdmaConnection::take_bytes(const iovec* parts, int count) {
  const size_t ring = memory_->ring_bytes();
  size_t taken = 0;
  for (int i = 0; i < count; ++i) {
    auto* to = static_cast<std::byte*>(parts[i].iov_base);
    for (size_t left = parts[i].iov_len; left > 0;) {
      const uint64_t at = consumed_.load(std::memory_order_relaxed);
      const size_t n = std::min({left, there(), static_cast<size_t>(ring - at % ring)});
      if (n == 0) return taken;
      std::memcpy(to, memory_->ring() + at % ring, n);
      consumed_.store(at + n);
      to += n;
      left -= n;
      taken += n;
    }
  }
  return taken;
}

// Once a quarter of what the other side may send has gone: it waits for no less than that.
void RdmaConnection::give_credit() {
  const uint64_t consumed = consumed_.load();
  const uint64_t pieces = pieces_arrived_.load();  // for each another receive has been posted
  const bool many = pieces - pieces_credited_ >= kPieces / 4;
  if (consumed - credited_ < memory_->ring_bytes() / 4 && !many) return;
  std::lock_guard lock(post_mutex_);
  reap();
  if (posted_.load() - retired_.load() >= kSends - 2) return;  // with the next
  RdmaCredit& credit = memory_->own_credit(credits_given_);
  credit.consumed.store(consumed);
  credit.pieces.store(pieces);
  const auto place = static_cast<uint32_t>(credits_given_ % kRdmaCredits);
  if (!post(Kind::kCredit, place, &credit, kCreditBytes, other_.area + place * kCreditBytes, false,
            false))
    return;
  ++credits_given_;
  credited_ = consumed;
  pieces_credited_ = pieces;
}

ssize_t RdmaConnection::read(const iovec* parts, int count) {
  sleeps_[static_cast<size_t>(Role::kReader)].store(false);
  uint64_t start = 0, over_since = 0;
  for (;;) {
    progress(false);
    // Asked before the bytes: what came before the end is still to be had.
    const bool finished = finished_.load(), broken = broken_.load(), over = socket_over_.load();
    if (const size_t n = take_bytes(parts, count)) {
      if (start != 0) patience_[0].waited(now_ns() - start);
      give_credit();
      return static_cast<ssize_t>(n);
    }
    if (finished) return 0;
    if (broken) {
      errno = EIO;
      return -1;
    }
    const uint64_t now = now_ns();
    if (over) {  // the two ways do not keep each other's order
      if (over_since == 0) over_since = now;
      if (now - over_since >= kLateNs) return 0;
      sleep_ns(1'000'000);
      continue;
    }
    if (start == 0) start = now;
    if (now - start < patience_[0].nanoseconds())
      spin_round();
    else
      wait(Role::kReader);
  }
}

bool RdmaConnection::readable() {
  progress(false);
  return !nothing_for(Role::kReader);
}

}  // namespace sluice::channel
