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
constexpr uint32_t kLastPiece = 1u << 27;  // of kPlaced
constexpr size_t kStraight = 32 << 10;     // less is copied sooner than looked up
constexpr uint64_t kSignalEach = 16;       // pieces
constexpr uint32_t kSaidBits = 28;
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
      if (said == 0 || finished_.load() || there() + said > memory_->ring_bytes() ||
          !placing_.ring_is_open())
        return false;
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
    case Kind::kOffer:
      return !finished_.load() && placing_.offered(said, arrived_.load());
    case Kind::kGrant:
      return take_grant(said);
    case Kind::kPlaced:
      if (finished_.load()) return false;
      pieces_arrived_.fetch_add(1);
      return placing_.placed(said & ~kLastPiece, (said & kLastPiece) != 0, arrived_.load());
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
bool RdmaConnection::post(Kind kind, uint32_t said, const Piece& piece, bool signaled,
                          bool solicited) {
  if (broken_.load()) return false;
  ibv_sge from{reinterpret_cast<uintptr_t>(piece.from), static_cast<uint32_t>(piece.bytes),
               piece.key};
  ibv_send_wr wr{};
  const uint64_t number = posted_.load() + 1;
  wr.wr_id = number;
  wr.sg_list = &from;
  wr.num_sge = piece.bytes > 0 ? 1 : 0;
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.imm_data = htonl((static_cast<uint32_t>(kind) << kSaidBits) | said);
  wr.wr.rdma.remote_addr = piece.to;
  wr.wr.rdma.rkey = piece.to_key ? piece.to_key : other_.area_key;
  unsignaled_bytes_ += piece.bytes;
  if (signaled || ++unsignaled_ >= kSignalEach || unsignaled_bytes_ >= memory_->ring_bytes() / 8) {
    wr.send_flags |= IBV_SEND_SIGNALED;
    unsignaled_ = unsignaled_bytes_ = 0;
  }
  if (solicited) wr.send_flags |= IBV_SEND_SOLICITED;
  if (piece.bytes > 0 && piece.bytes <= inline_) wr.send_flags |= IBV_SEND_INLINE;
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

// Whether a piece may be posted now, whatever it carries.
bool RdmaConnection::has_piece() const {
  return pieces_sent_.load() - pieces_released_.load() < other_.receives &&
         posted_.load() - retired_.load() < kSends - kOfCredits;
}

// How much of one piece there is room for now, on both sides.
size_t RdmaConnection::room() const {
  if (!has_piece()) return 0;
  const uint64_t sent = sent_.load();
  const size_t ring = other_.ring_bytes, stage = memory_->ring_bytes();
  const size_t window =
      std::min<size_t>(ring - (sent - released_.load()), stage - (sent - completed_.load()));
  return std::min({window, ring - sent % ring, stage - sent % stage});
}

bool RdmaConnection::can(For what) const {
  switch (what) {
    case For::kRoom:
      return room() > 0;
    case For::kPiece:
      return has_piece();
    case For::kGrant:
      break;
  }
  return placing_.has_grant();
}

// False: the connection is lost.
bool RdmaConnection::await(For what) {
  uint64_t start = 0;
  for (;;) {
    if (broken_.load()) return false;
    if (can(what)) return true;
    progress(false);
    if (can(what)) {
      if (start != 0) patience_[1].waited(now_ns() - start);
      return true;
    }
    if (socket_over_.load()) return false;
    const uint64_t now = now_ns();
    if (start == 0) start = now;
    if (now - start < patience_[1].nanoseconds()) {
      spin_round();
    } else {
      writer_waits_.store(what);
      wait(Role::kWriter);
    }
  }
}

// The next of the stream, which has room for it on both sides.
bool RdmaConnection::post_data(const Piece& piece, bool last) {
  std::lock_guard lock(post_mutex_);
  const uint64_t at = sent_.load();
  pieces_sent_.fetch_add(1);
  sent_.store(at + piece.bytes);  // before it goes: it may be acknowledged at once
  unsolicited_ += piece.bytes;
  const bool solicited = last || unsolicited_ >= other_.ring_bytes / 2;
  if (solicited) unsolicited_ = 0;
  Piece placed = piece;
  placed.to = other_.area + kCreditPage + at % other_.ring_bytes;
  if (!post(Kind::kData, static_cast<uint32_t>(piece.bytes), placed, false, solicited))
    return false;
  reap();
  return true;
}

bool RdmaConnection::write_kept(iovec* parts, int count) {
  const iovec* const last = parts + count - 1;
  const bool straight = last->iov_len >= kStraight && OwnMemory::has(last->iov_base, last->iov_len);
  return write_parts(parts, count, straight ? last : nullptr);
}

// `kept`: the part that may go straight from where it lies.
bool RdmaConnection::write_parts(iovec* parts, int count, const iovec* kept) {
  const iovec* part = parts;
  size_t offset = 0;
  for (size_t left = sum(parts, count); left > 0;) {
    while (offset == part->iov_len) ++part, offset = 0;
    const auto* here = static_cast<const std::byte*>(part->iov_base) + offset;
    if (part == kept && offset == 0) {
      size_t went = 0;
      if (!place(here, part->iov_len, &went)) return false;
      offset += went;
      left -= went;
      if (went > 0) continue;
    }
    if (!await(For::kRoom)) return false;
    const size_t most = std::min({left, room(), kAtOnce});
    RdmaRegistrations::Source source;
    if (part == kept && own_->find(here, std::min(most, part->iov_len - offset),
                                   RdmaRegistrations::For::kSending, &source)) {
      offset += source.bytes;
      left -= source.bytes;
      if (!post_data({here, source.bytes, 0, source.key}, left == 0)) return false;
      own_->used(source, posted_.load());
      straight_bytes_.fetch_add(source.bytes);
      continue;
    }
    std::byte* const to = memory_->stage() + sent_.load() % memory_->ring_bytes();
    size_t put = 0;
    while (put < most && (put == 0 || part != kept)) {
      const size_t take = std::min(most - put, part->iov_len - offset);
      std::memcpy(to + put, static_cast<const std::byte*>(part->iov_base) + offset, take);
      put += take;
      offset += take;
      if (offset == part->iov_len && put < left) ++part, offset = 0;
    }
    left -= put;
    if (!post_data({to, put, 0, memory_->stage_key()}, left == 0)) return false;
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
    if (unsignaled_ > 0 && !post(Kind::kGreeting, 0, {}, true, true)) return false;
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
    if (!post(Kind::kFinish, 0, {}, true, true)) return;
  }
  flush();
}

// ---- receiving

size_t RdmaConnection::take_bytes(const iovec* parts, int count) {
  const size_t ring = memory_->ring_bytes();
  bool in_part = false;
  size_t taken = 0;  // a part that has its place begins a read, so that all of it is in one
  for (int i = 0; i < count; ++i) {
    auto* to = static_cast<std::byte*>(parts[i].iov_base);
    for (size_t left = parts[i].iov_len; left > 0;) {
      const uint64_t at = consumed_.load(std::memory_order_relaxed);
      size_t n = 0;
      if (placing_.has_part(at)) {
        if (taken > 0 && !in_part) return taken;
        in_part = true;
        n = placing_.take(to, left);
      } else {
        // Asked in this order: what arrives behind a part comes after it.
        const size_t have = there();
        const uint64_t upto = placing_.next_part(at + have);
        n = std::min(
            {left, have, static_cast<size_t>(upto - at), static_cast<size_t>(ring - at % ring)});
        if (n == 0) return taken;
        in_part = false;
        std::memcpy(to, memory_->ring() + at % ring, n);
        consumed_.store(at + n);
      }
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
  const Piece word{&credit, kCreditBytes, other_.area + place * kCreditBytes, memory_->stage_key()};
  if (!post(Kind::kCredit, place, word, false, false)) return;
  ++credits_given_;
  credited_ = consumed;
  pieces_credited_ = pieces;
}

ssize_t RdmaConnection::read(const iovec* parts, int count) {
  return await_reading(parts, count, [&] {
    const size_t n = take_bytes(parts, count);
    if (n > 0) give_credit();
    return n;
  });
}

std::byte* RdmaConnection::await_placed(size_t bytes) {
  const iovec nowhere{};
  await_reading(&nowhere, 1, [&]() -> size_t {
    return there() > 0 || placing_.has_part(consumed_.load()) ? 1 : 0;
  });
  return placing_.has_part(consumed_.load()) ? placing_.place_of(bytes) : nullptr;
}

template <class Look>
ssize_t RdmaConnection::await_reading(const iovec* parts, int count, const Look& look) {
  sleeps_[static_cast<size_t>(Role::kReader)].store(false);
  uint64_t start = 0, over_since = 0;
  for (;;) {
    progress(false);
    // Asked before the bytes: what came before the end is still to be had.
    const bool finished = finished_.load(), broken = broken_.load(), over = socket_over_.load();
    if (const size_t n = look()) {
      if (start != 0) patience_[0].waited(now_ns() - start);
      return static_cast<ssize_t>(n);
    }
    if (placing_.offer(consumed_.load()) != 0 && !broken && answer_offer(parts, count)) {
      start = 0;
      continue;
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
