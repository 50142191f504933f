// SPDX-License-Identifier: Apache-2.0
// How a link moves bytes: out of the GPU and to the peer on one thread, from the peer and into the
// GPU on another. Each has two pieces or more under way, so that GPU and network work at once. The
// GPU's part is done by the transfer's kernel, which these threads tell of pieces (link_slots.h).
#include <algorithm>
#include <utility>

#include "channel/futex.h"
#include "worker/node_link.h"
#include "worker/session.h"

namespace sluice::worker {

namespace {

using wire::LinkMessage;
using wire::LinkMessageKind;

constexpr size_t kAtOnce = 2;
constexpr int kPieceWaitMs = 100;

// What a copy has behind `at` bytes that can be copied in one: rows, or a part of one.
bool is_rectangle(const wire::NodeTransfer& of, uint64_t at, uint64_t bytes) {
  const uint64_t column = at % of.width;
  return (column == 0 && bytes % of.width == 0) || bytes <= of.width - column;
}

uint64_t next_piece(const wire::NodeTransfer& of, uint64_t at) {
  constexpr uint64_t kMost = Staging::kPieceBytes;
  const uint64_t column = at % of.width;
  if (column != 0 || of.width > kMost) return std::min(kMost, of.width - column);
  return of.width * std::min(kMost / of.width, of.rows - at / of.width);
}

// While bytes move: looks again soon, and then every now and then.
class Pause {
 public:
  void operator()() {
    if (++times_ > kSoon) channel::sleep_ns(kNapNs);
  }

 private:
  static constexpr uint32_t kSoon = 50, kNapNs = 10'000;
  uint32_t times_ = 0;
};

}  // namespace

// False: the transfer is over.
bool NodeLink::post(Transfer& t, const Staging::Piece& piece, size_t bytes) {
  std::lock_guard lock(mutex_);
  if (!t.holds_slot) return false;
  slots_->post(t.slot, t.posted, piece.device, bytes);
  if (t.posted++ == 0) slots_->go(t.slot);
  return true;
}

void NodeLink::await_moved(const Transfer& t, uint32_t piece) {
  for (Pause pause; t.holds_slot && !slots_->moved(t.slot, piece);) pause();
}

// ---- out

void NodeLink::write_all() {
  for (;;) {
    Known t;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return over_ || !to_say_.empty() || !to_send_.empty(); });
      if (over_) return;
      if (!to_send_.empty()) {
        t = to_send_.front();
        to_send_.pop_front();
      }
    }
    if (!say_waiting() || (t && !send(t)))
      return lose("its connection broke, and none followed in time");
  }
}

// What the reader and the streams have to say, which goes before more of a copy.
bool NodeLink::say_waiting() {
  std::deque<LinkMessage> messages;
  {
    std::lock_guard lock(mutex_);
    messages.swap(to_say_);
  }
  for (const LinkMessage& m : messages) {
    if (!say(m)) return false;
    if (m.kind == LinkMessageKind::kFailed) lose("this node's GPU has failed");
  }
  return true;
}

bool NodeLink::say(const LinkMessage& message) {
  LinkMessage m = message;
  iovec part{&m, sizeof m};
  return stream()->write(&part, 1);
}

bool NodeLink::send(const Known& t) {
  if (!t->is_event()) return send_pieces(*t);
  finish(t);
  return say({LinkMessageKind::kEvent, 0, t->of.transfer});
}

bool NodeLink::send_pieces(Transfer& t) {
  std::deque<std::pair<Staging::Piece, size_t>> under_way;
  const uint64_t bytes = t.bytes();
  for (uint64_t at = 0; at < bytes || !under_way.empty();) {
    while (at < bytes && under_way.size() < kAtOnce) {
      Staging::Piece piece = out_->take();
      if (!piece) break;
      const uint64_t n = next_piece(t.of, at);
      if (!post(t, piece, n)) return true;
      under_way.emplace_back(std::move(piece), n);
      at += n;
    }
    if (under_way.empty()) {  // the peer has not acknowledged what they hold
      if (!stream()->settle()) return false;
      out_->wait(kPieceWaitMs);
      continue;
    }
    const auto first = t.posted - static_cast<uint32_t>(under_way.size());
    for (Pause pause; !slots_->moved(t.slot, first); pause()) {
      if (!t.holds_slot) return true;
      if (!say_waiting()) return false;
    }
    const auto [piece, n] = std::move(under_way.front());
    under_way.pop_front();
    if (!say_waiting()) return false;
    t.done += n;
    if (!send_piece(t, piece, n)) return false;
  }
  return true;
}

bool NodeLink::send_piece(const Transfer& t, const Staging::Piece& piece, size_t bytes) {
  LinkMessage m{LinkMessageKind::kData, static_cast<uint32_t>(bytes), t.of.transfer};
  iovec parts[2] = {{&m, sizeof m}, {piece.at.get(), bytes}};
  return stream()->write_lent(parts, 2, piece.at);
}

// ---- in

void NodeLink::read_all() {
  for (LinkMessage m; read_exactly(&m, sizeof m);)
    if (!take(m)) return;
  lose("its connection broke, and none followed in time");
}

bool NodeLink::read_exactly(void* to, size_t n) {
  for (auto* at = static_cast<std::byte*>(to); n > 0;) {
    const iovec part{at, n};
    const ssize_t got = stream()->read(&part, 1);
    if (got <= 0) return false;
    at += got;
    n -= static_cast<size_t>(got);
  }
  return true;
}

Staging::Piece NodeLink::piece_for_data() {
  for (;;) {
    if (Staging::Piece piece = in_->take()) return piece;
    const Landing oldest = std::move(landing_.front());
    landing_.pop_front();
    await_moved(*oldest.transfer, oldest.number);
  }
}

bool NodeLink::take_data(uint64_t transfer, uint32_t bytes) {
  const Known t = find(transfer, End::kReceives);
  if (!t || t->is_event() || !t->ready) return broken("sends a copy that nobody is ready for");
  const uint64_t at = t->done;
  if (bytes == 0 || bytes > Staging::kPieceBytes || bytes > t->bytes() - at ||
      !is_rectangle(t->of, at, bytes))
    return broken("sends other bytes than those of the copy");
  Staging::Piece piece = piece_for_data();
  if (!read_exactly(piece.at.get(), bytes)) {
    lose("its connection broke, and none followed in time");
    return false;
  }
  if (t->posted >= LinkSlots::kRing) await_moved(*t, t->posted - LinkSlots::kRing);
  const uint32_t number = t->posted;
  t->done = at + bytes;  // before the kernel may end
  if (post(*t, piece, bytes)) landing_.push_back({t, number, std::move(piece)});
  return true;
}

}  // namespace sluice::worker
