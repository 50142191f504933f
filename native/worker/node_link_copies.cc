// SPDX-License-Identifier: Apache-2.0
// How a link moves bytes: out of the GPU and to the peer on one thread, from the peer and into the
// GPU on another. Each has two pieces or more under way, so that GPU and network work at once.
#include <algorithm>
#include <utility>

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

}  // namespace

// In the stream of the worker's own for that direction.
bool NodeLink::copy(const Transfer& t, uint64_t at, std::byte* host, size_t bytes) {
  const Driver& d = session_.driver;
  const wire::NodeTransfer& of = t.of;
  const bool sends = t.end == End::kSends;
  const CUstream stream = (sends ? out_ : in_)->stream(t.device);
  d.cuCtxSetCurrent(session_.vgpus[t.device]->gpu->context);
  const uint64_t row = at / of.width, column = at % of.width;
  const uint64_t address = of.address + row * of.pitch + column;
  CUresult e;
  if (bytes > of.width) {
    CUDA_MEMCPY2D p{};
    p.srcMemoryType = sends ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    p.dstMemoryType = sends ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    (sends ? p.srcDevice : p.dstDevice) = address;
    (sends ? p.srcPitch : p.dstPitch) = of.pitch;
    (sends ? p.dstPitch : p.srcPitch) = of.width;
    if (sends)
      p.dstHost = host;
    else
      p.srcHost = host;
    p.WidthInBytes = of.width;
    p.Height = bytes / of.width;
    e = d.cuMemcpy2DAsync_v2(&p, stream);
  } else {
    e = sends ? d.cuMemcpyDtoHAsync_v2(host, address, bytes, stream)
              : d.cuMemcpyHtoDAsync_v2(address, host, bytes, stream);
  }
  if (e != CUDA_SUCCESS) gpu_failed(e);
  return e == CUDA_SUCCESS;
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
      if (!copy(t, at, piece.at.get(), n)) return true;  // the peer is told
      if (const CUresult e = out_->mark(t.device, piece); e != CUDA_SUCCESS)
        return gpu_failed(e), true;
      under_way.emplace_back(std::move(piece), n);
      at += n;
    }
    if (under_way.empty()) {  // the peer has not acknowledged what they hold
      if (!stream()->settle()) return false;
      out_->wait(kPieceWaitMs);
      continue;
    }
    const auto [piece, n] = std::move(under_way.front());
    under_way.pop_front();
    if (const CUresult e = out_->await(t.device, piece); e != CUDA_SUCCESS)
      return gpu_failed(e), true;
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
    const auto [device, oldest] = std::move(landing_.front());
    landing_.pop_front();
    session_.driver.cuCtxSetCurrent(session_.vgpus[device]->gpu->context);
    in_->await(device, oldest);  // what it says is the next copy's error, too
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
  if (!copy(*t, at, piece.at.get(), bytes)) return true;  // the session has failed
  if (const CUresult e = in_->mark(t->device, piece); e != CUDA_SUCCESS) return gpu_failed(e), true;
  landing_.emplace_back(t->device, std::move(piece));
  t->done = at + bytes;
  if (t->done < t->bytes()) return true;
  if (const CUresult e = tell(in_->stream(t->device), &NodeLink::landed, transfer);
      e != CUDA_SUCCESS)
    gpu_failed(e);
  return true;
}

}  // namespace sluice::worker
