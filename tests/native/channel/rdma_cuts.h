// SPDX-License-Identifier: Apache-2.0
// Both ends of a resumable stream over RDMA connections that end with one of the pieces which they
// post, whatever that carries: the adapter gives up, or the socket beside it ends. Other
// connections follow, over sockets or RDMA, sometimes before the present one has ended.
#pragma once

#include <map>
#include <mutex>

#include "channel/rdma_objects.h"
#include "channel/rdma_opening.h"
#include "tests/native/channel/rdma_pair.h"
#include "tests/native/channel/resumable_rig.h"

namespace sluice::channel::resumable {

// Stands between an end and its adapter.
class LastPiece {
 public:
  struct Plan {
    uint64_t piece;  // from 1
    bool adapter;    // its queue pair fails; else the socket ends
    bool carried;    // the piece is posted before that
  };

  LastPiece(const std::shared_ptr<RdmaConnection>& end, int socket, const Plan& plan)
      : context_(end->device().context()),
        verbs_(end->device().verbs()),
        socket_(socket),
        plan_(plan) {
    const std::lock_guard lock(mutex());
    all()[context_] = this;
    real_ = context_->ops.post_send;
    context_->ops.post_send = post;
  }
  ~LastPiece() {
    const std::lock_guard lock(mutex());
    all().erase(context_);
  }
  LastPiece(const LastPiece&) = delete;

 private:
  using Real = int (*)(ibv_qp*, ibv_send_wr*, ibv_send_wr**);
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::map<ibv_context*, LastPiece*>& all() {
    static std::map<ibv_context*, LastPiece*> them;
    return them;
  }
  static int post(ibv_qp* pair, ibv_send_wr* piece, ibv_send_wr** bad) {
    const std::lock_guard lock(mutex());
    const auto found = all().find(pair->context);
    if (found == all().end()) return ENODEV;
    LastPiece& self = *found->second;
    const bool last = ++self.posted_ == self.plan_.piece;
    if (last && !self.plan_.carried) self.strike(pair);
    const int error = self.real_(pair, piece, bad);
    if (last && self.plan_.carried) self.strike(pair);
    return error;
  }
  void strike(ibv_qp* pair) const {
    ibv_qp_attr over{};
    over.qp_state = IBV_QPS_ERR;
    if (plan_.adapter)
      (verbs_.ibv_modify_qp)(pair, &over, IBV_QP_STATE);
    else
      shutdown(socket_, SHUT_RDWR);
  }

  ibv_context* const context_;
  const Verbs& verbs_;
  const int socket_;
  const Plan plan_;
  Real real_ = nullptr;
  uint64_t posted_ = 0;
};

class RdmaCuts {
 public:
  // `most`: pieces of a connection, of either end.
  RdmaCuts(uint64_t most, unsigned seed) : most_(most), random_(seed) {
    const Ends near = pair(), far = pair();
    way_ = std::make_unique<Way>(near.b, far.a, SIZE_MAX, SIZE_MAX);
    const ResumableStream::Terms terms{60 * kSecond, 60 * kSecond};
    streams[0] = std::make_unique<ResumableStream>(over(near.a), terms);
    streams[1] = std::make_unique<ResumableStream>(over(far.b), terms);
  }
  ~RdmaCuts() {
    stop();
    for (auto& stream : streams) stream->end();
    streams[0].reset();  // with their connections, whose pieces nobody counts any more
    streams[1].reset();
  }

  void start() {
    dialler_ = std::thread([this] { dial(); });
  }
  // After that the connection stays.
  void stop() {
    stopped_ = true;
    if (dialler_.joinable()) dialler_.join();
  }
  // The RDMA connection of that end, where there is one.
  std::shared_ptr<RdmaConnection> end(int side) {
    const std::lock_guard lock(mutex_);
    return ends_[side];
  }

  std::unique_ptr<ResumableStream> streams[2];  // of the client, of the worker
  std::atomic<int> over_rdma{0}, left_early{0};
  std::atomic<uint64_t> placed{0};  // bytes that went straight to a place
  std::atomic<bool> failed{false};  // no RDMA connection was to be had
  std::string error;                // why, after stop()

 private:
  void dial() {
    bool by_rdma = true;
    connect_by_rdma(most_);
    while (!stopped_ && !failed) {
      const bool early = random_() % 8 == 0;
      if (early) sleep_ns(random_() % 30'000'000);
      if (!early && !streams[0]->wait_for_break(10'000'000) && !look(by_rdma)) continue;
      left_early += early;
      by_rdma = random_() % 4 != 0;
      if (by_rdma)
        connect_by_rdma(most_);
      else
        connect_by_sockets(1 + random_() % 300'000);
    }
    connect_by_sockets(SIZE_MAX);
  }
  // As a session's watcher does. True: one end has gone.
  bool look(bool by_rdma) {
    if (!by_rdma) return way_->cut();
    bool over = false;
    for (int side : {0, 1})
      if (looks_[side] && !looks_[side](false)) over = true;
    return over || streams[1]->broken_since() != 0;
  }
  void take_over(std::unique_ptr<Connection> near, std::unique_ptr<Connection> far) {
    const uint32_t epoch = ++epoch_;
    std::thread other([&] { streams[1]->resume(epoch, std::move(far)); });
    streams[0]->resume(epoch, std::move(near));
    other.join();
  }
  void set_ends(std::shared_ptr<RdmaConnection> near, std::shared_ptr<RdmaConnection> far) {
    const std::lock_guard lock(mutex_);
    if (ends_[0]) placed += ends_[0]->placed_bytes() + ends_[1]->placed_bytes();
    ends_[0] = std::move(near);
    ends_[1] = std::move(far);
  }
  void connect_by_sockets(size_t most) {
    const Ends near = pair(), far = pair();
    auto way = std::make_unique<Way>(near.b, far.a, most, most);
    take_over(over(near.a), over(far.b));
    way_ = std::move(way);
    set_ends({}, {});
  }
  void connect_by_rdma(uint64_t most) {
    std::shared_ptr<RdmaConnection> ends[2];
    for (auto& end : ends) {
      const auto device = RdmaDevice::open({}, &error);
      if (!device || !(end = RdmaConnection::make(device, &error))) return void(failed = true);
    }
    const Ends sockets = pair();
    ends[1]->offer_parts();
    std::unique_ptr<Connection> made[2];
    std::unique_ptr<LastPiece> last[2];
    for (int side : {0, 1}) {
      const int socket = side == 0 ? sockets.a : sockets.b;
      if (!ends[side]->connect(ends[1 - side]->terms(), &error)) return void(failed = true);
      const LastPiece::Plan plan{1 + random_() % most, random_() % 2 == 0, random_() % 2 == 0};
      last[side] = std::make_unique<LastPiece>(ends[side], socket, plan);
      made[side] =
          std::make_unique<Connection>(socket, rdma_stream(socket, ends[side], &looks_[side]));
    }
    take_over(std::move(made[0]), std::move(made[1]));
    set_ends(ends[0], ends[1]);
    for (auto& one : last) last_.push_back(std::move(one));  // who sleeps may still hold its end
    ++over_rdma;
  }

  const uint64_t most_;
  std::mt19937 random_;
  std::mutex mutex_;
  std::shared_ptr<RdmaConnection> ends_[2];
  RdmaLook looks_[2];
  std::vector<std::unique_ptr<LastPiece>> last_;
  std::unique_ptr<Way> way_;
  std::thread dialler_;
  std::atomic<bool> stopped_{false};
  uint32_t epoch_ = 0;
};

}  // namespace sluice::channel::resumable
