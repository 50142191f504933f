// SPDX-License-Identifier: Apache-2.0
// The endpoint over a TCP connection, or one after the other, or over RDMA beside one of them:
// frames in, replies out. Shares no memory.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "channel/futex.h"
#include "channel/rdma_opening.h"
#include "process/log.h"
#include "worker/bulk.h"
#include "worker/endpoint.h"

namespace sluice::worker {

namespace {

constexpr size_t kReadBytes = 256 << 10;
constexpr size_t kBulk = 256 << 10;  // frames with data for the GPU that deserve pinned memory
constexpr size_t kMostReason = 480;  // of what the client's user is told at the end
constexpr size_t kReadInBulk = 4 << 10;
constexpr size_t kAhead = 2;              // bulk frames for which there is a place already
constexpr size_t kMostAhead = 16 << 20;   // more than a client's kernel keeps for it
constexpr uint32_t kUnheardMs = 180'000;  // as long as keep-alive takes

class TcpEndpoint : public Endpoint {
 public:
  TcpEndpoint(int socket, std::unique_ptr<channel::Stream> stream,
              const std::optional<channel::ResumableStream::Terms>& terms,
              std::optional<RdmaPlan> rdma)
      : socket_(socket),
        terms_(terms),
        rdma_plan_(std::move(rdma)),
        stream_(std::move(stream)),
        epoll_(epoll_create1(EPOLL_CLOEXEC)),
        wakes_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)),
        in_(kReadBytes) {
    epoll_event e{EPOLLIN, {}};
    e.data.fd = wakes_;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, wakes_, &e);
    follow(socket_);
  }
  ~TcpEndpoint() override {
    stream_.reset();
    ::close(epoll_);
    ::close(wakes_);
    if (!resumable_) ::close(socket_);
  }

  Got take(std::byte* out) override {
    wire::FrameHeader h;
    if (const Got g = read(reinterpret_cast<std::byte*>(&h), sizeof h); g != Got::kFrame) return g;
    const bool copies = h.function == wire::kCopyToDevice;
    const uint32_t most =
        copies && place_for_bulk ? wire::kMaxLargeFrameBytes : wire::kMaxFrameBytes;
    if (h.size < sizeof h || h.size > most || h.size % 8) return Got::kBroken;
    in_bulk_ = copies && h.size >= kBulk;
    size_t have = sizeof h;
    std::memcpy(out, &h, sizeof h);
    if (in_bulk_ && place_for_bulk) {
      if (over_rdma()) {
        if (const Got g = read(out + have, BulkFrames::kHead - have); g != Got::kFrame) return g;
        have = BulkFrames::kHead;
      }
      std::byte* const place = place_of_data(h.size - have, h.size);
      if (place) out = static_cast<std::byte*>(std::memcpy(place, out, have));
      if (!place && h.size > wire::kMaxFrameBytes) return no_room(h.size);
    }
    const Got got = h.size == have ? Got::kFrame : read(out + have, h.size - have);
    // A resumable one is asked each time: others may take in what comes.
    buffered_.store(begin_ < end_ || (!resumable_ && stream_->pending()),
                    std::memory_order_relaxed);
    if (in_bulk_ && over_rdma()) grant_ahead();
    return got;
  }
  bool empty() override {
    if (buffered()) return false;
    if (over_rdma()) return !stream_->readable();
    if (resumable_ && resumable_->pending()) return false;
    pollfd p{socket(), POLLIN, 0};
    return p.fd >= 0 && poll(&p, 1, 0) <= 0;  // without one somebody has to wait for the next
  }
  int connection() const override { return resumable_ ? -1 : socket_; }
  bool lost() override {
    let_removed_device_go();
    if (!resumable_) return channel::unheard_of(socket_, kUnheardMs);
    const bool over = resumable_->look(channel::kSilentMs);
    if (resumable_->pending()) wake_one();  // it took in what came before an end
    return over;
  }
  bool closed_by_client() override { return resumable_ && resumable_->was_closed(); }
  bool resumable() const override { return resumable_ != nullptr; }
  int64_t broken_since() const override { return resumable_ ? resumable_->broken_since() : 0; }
  bool resume(uint32_t epoch, std::unique_ptr<channel::ResumableStream::Connection> next) override {
    return resumable_ && resumable_->resume(epoch, std::move(next));
  }
  bool resume_over_rdma(uint32_t epoch,
                        std::unique_ptr<channel::ResumableStream::Connection> next) override {
    // One at a time: each has memory of its own until it is agreed.
    if (!resumable_ || agreeing_.exchange(true)) return false;
    const bool goes_on = agree_again(epoch, std::move(next));
    agreeing_ = false;
    return goes_on;
  }
  bool take_subflow(uint32_t epoch, uint32_t number,
                    std::unique_ptr<channel::ResumableStream::Connection> subflow) override {
    return resumable_ && resumable_->take_subflow(epoch, number, std::move(subflow));
  }
  bool closed() override { return gone_.load(std::memory_order_relaxed); }
  // One sleeper is told when the client sends something, once; a leader waits in recv() itself.
  void set_sleeping(bool sleeping) override {
    sleeping_.store(sleeping, std::memory_order_seq_cst);
    if (const int s = waits_on(); s >= 0) arm(EPOLL_CTL_MOD, s);
    if (const auto end = sleeping ? rdma() : nullptr) channel::rdma_arm(end.get());
  }
  bool unannounced() override { return buffered() || (resumable_ && resumable_->pending()); }
  // A client that died with a full connection has bytes in its kernel yet, and its end behind them.
  void read_ahead() override {
    std::unique_lock lock(read_mutex_, std::try_to_lock);
    while (lock && spill_.size() < kMostAhead && stream_->readable()) {
      const size_t before = spill_.size();
      spill_.resize(before + kReadBytes);
      const iovec part{spill_.data() + before, kReadBytes};
      const ssize_t got = resumable_ ? resumable_->read_present(&part, 1) : stream_->read(&part, 1);
      spill_.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
      if (got <= 0) return;  // whoever takes frames comes to it
      received_.fetch_add(static_cast<size_t>(got), std::memory_order_relaxed);
      // The socket tells nobody of it any more.
      ahead_ = true;
      wake_one();
    }
  }
  bool parking_is_dear() const override { return true; }
  uint32_t wake_count() override { return 0; }
  void sleep(uint32_t) override {
    epoll_event e;
    if (epoll_wait(epoll_, &e, 1, -1) == 1 && e.data.fd == wakes_) {
      uint64_t one;
      if (::read(wakes_, &one, sizeof one) < 0) return;
    }
  }
  void wake_one() override {
    const uint64_t one = 1;
    if (write(wakes_, &one, sizeof one) < 0) return;
  }

  void reply(uint16_t lane, uint32_t sequence, uint32_t status, std::span<const std::byte> head,
             std::span<const std::byte> body, const std::shared_ptr<const void>& held) override {
    const size_t size = wire::round_up(sizeof(wire::FrameHeader) + head.size() + body.size(), 8);
    wire::FrameHeader h{static_cast<uint32_t>(size), wire::kReply, lane, sequence, status};
    const uint64_t padding = 0;
    const size_t rest = size - sizeof h - head.size() - body.size();
    iovec parts[4] = {{&h, sizeof h},
                      {const_cast<std::byte*>(head.data()), head.size()},
                      {const_cast<std::byte*>(body.data()), body.size()},
                      {const_cast<uint64_t*>(&padding), rest}};
    std::lock_guard lock(send_mutex_);
    held&& rest == 0 ? stream_->write_lent(parts, 3, held) : stream_->write(parts, 4);
  }
  uint32_t lane_count() const override { return wire::kStreamLanes; }
  size_t reply_limit() const override { return wire::kMaxReplyBytes - 64; }

  void say_why(const std::string& reason) override { why_ = reason.substr(0, kMostReason); }

  void publish_error(uint32_t error, bool over) override {
    if (!over) return reply(wire::kNoLane, 0, error, {}, {}, {});
    // A client that does not read holds up its own answers, not the end of its session.
    std::unique_lock lock(send_mutex_, std::try_to_lock);
    for (int i = 0; i < 20 && !lock; ++i) {
      channel::sleep_ns(10'000'000);
      lock.try_lock();
    }
    const size_t size = wire::round_up(sizeof(wire::FrameHeader) + why_.size(), 8);
    const wire::FrameHeader h{static_cast<uint32_t>(size), wire::kReply, wire::kNoLane, 0, error};
    std::string last(reinterpret_cast<const char*>(&h), sizeof h);
    last += why_;
    last.resize(size, '\0');
    if (lock) stream_->try_write(last.data(), last.size());
    if (const auto end = lock ? rdma() : nullptr) channel::rdma_flush(end.get());
    if (const auto end = rdma()) say_bulk(*end);
    if (resumable_)
      resumable_->end();
    else
      shutdown(socket_, SHUT_RDWR);
  }

  bool publish_record(std::span<const std::byte> all, std::string* error) override {
    std::vector<std::byte> said(all.begin(), all.end());
    if (rdma_plan_) offer_rdma(&said);
    iovec part{said.data(), said.size()};
    std::lock_guard lock(send_mutex_);
    if (stream_->write(&part, 1) && agree_on_rdma()) {
      if (terms_)
        begin_records();
      else
        stream_->look_before_sleeping(channel::kLooksForCommands);
      return true;
    }
    *error = "the client went away while its session was being opened";
    return false;
  }

  std::span<std::byte> arena() override { return {}; }
  std::atomic<uint64_t>* marks() override { return nullptr; }
  size_t mark_count() const override { return 0; }
  std::atomic<uint64_t>* memory_used(uint32_t) override { return nullptr; }
  void tell_library_memory(const wire::LibraryMemory& memory) override {
    reply(wire::kNoLane, 0, 0, std::as_bytes(std::span(&memory, 1)), {}, {});
  }
  void tell_link_lost(uint32_t peer) override {
    const uint64_t body = peer;
    reply(wire::kNoLane, wire::kLinkLost, 0, std::as_bytes(std::span(&body, 1)), {}, {});
  }
  uint64_t bytes_in() const override { return received_.load(std::memory_order_relaxed); }
  bool over_rdma() const override { return over_rdma_.load(std::memory_order_acquire); }

 private:
  bool buffered() const {
    return buffered_.load(std::memory_order_relaxed) || ahead_.load(std::memory_order_relaxed);
  }
  Got read(std::byte* to, size_t n) {
    while (n > 0) {
      if (begin_ < end_) {
        const size_t take = std::min(n, end_ - begin_);
        std::memcpy(to, in_.data() + begin_, take);
        begin_ += take;
        to += take;
        n -= take;
        continue;
      }
      std::lock_guard lock(read_mutex_);
      if (!spill_.empty()) {
        in_.swap(spill_);
        spill_.clear();
        ahead_ = false;
        begin_ = 0;
        end_ = in_.size();
        continue;
      }
      if (in_.size() != kReadBytes) {
        in_ = std::vector<std::byte>(kReadBytes);
        spill_.shrink_to_fit();
      }
      // What is large goes straight to its place, and little of the next is read with it.
      const size_t direct = n >= kBulk / 4 ? n : 0;
      iovec parts[2] = {{to, direct}, {in_.data(), in_bulk_ ? kReadInBulk : in_.size()}};
      const ssize_t got = stream_->read(direct ? parts : parts + 1, direct ? 2 : 1);
      if (got <= 0) {
        gone_ = true;
        return Got::kGone;
      }
      received_.fetch_add(static_cast<size_t>(got), std::memory_order_relaxed);
      const size_t placed = std::min(static_cast<size_t>(got), direct);
      to += placed;
      n -= placed;
      begin_ = 0;
      end_ = static_cast<size_t>(got) - placed;
    }
    return Got::kFrame;
  }

  // Of a bulk frame whose head has been read. It was received there already, or is to be.
  std::byte* place_of_data(size_t bytes, size_t frame) {
    const auto end = frame <= wire::kMaxFrameBytes ? rdma() : nullptr;  // as large as those ahead
    std::byte* const data = end && begin_ == end_ && !places_.empty() && spill_empty()
                                ? stream_->await_placed(bytes)
                                : nullptr;
    for (auto a = places_.begin(); data && a != places_.end(); ++a) {
      std::byte* const place = a->place;
      if (place + BulkFrames::kHead != data) continue;
      places_.erase(a);
      came_to(place);
      return place;
    }
    return place_for_bulk(frame);
  }
  static Got no_room(size_t bytes) {
    process::log_error("no memory for a frame of " + std::to_string(bytes) + " bytes");
    return Got::kBroken;
  }
  bool spill_empty() {
    std::lock_guard lock(read_mutex_);
    return spill_.empty();
  }
  // Over RDMA, the client's adapter writes the data of the next bulk frames straight to where the
  // GPU reads it. By the leader.
  void grant_ahead() {
    const auto end = rdma();
    if (!end || !place_ahead) return;
    while (places_.size() < kAhead) {
      std::byte* const place = place_ahead();
      if (!place) break;
      places_.push_back({place, {}});
    }
    // What was granted over the connection before this one is granted again.
    for (Ahead& a : places_) {
      if (a.granted_by.lock() == end) continue;
      if (!channel::rdma_grant(end.get(), a.place + BulkFrames::kHead,
                               wire::kMaxFrameBytes - BulkFrames::kHead))
        return;
      a.granted_by = end;
    }
  }

  // Behind the record, of which its size says that it belongs to it.
  void offer_rdma(std::vector<std::byte>* said) {
    const wire::RdmaTerms offer =
        channel::offer_rdma(rdma_plan_->device, rdma_plan_->why_none, &rdma_);
    wire::SessionRecord record;
    std::byte* const at = said->data() + sizeof(wire::OpenReply);
    std::memcpy(&record, at, sizeof record);
    record.record_bytes += static_cast<uint32_t>(sizeof offer);
    std::memcpy(at, &record, sizeof record);
    const auto* bytes = reinterpret_cast<const std::byte*>(&offer);
    said->insert(said->end(), bytes, bytes + sizeof offer);
  }
  // False: the client is lost.
  bool agree_on_rdma() {
    if (!rdma_) return true;
    std::string why;
    if (!channel::settle_rdma_offer(stream_.get(), socket_, &rdma_, &why)) return false;
    if (!rdma_) {
      process::log_error("the session goes over TCP, not over RDMA: " + why);
      return true;
    }
    process::log_info("the session goes over RDMA, by " + channel::describe_rdma(*rdma_));
    epoll_ctl(epoll_, EPOLL_CTL_DEL, socket_, nullptr);
    stream_ = channel::rdma_stream(socket_, rdma_);
    over_rdma_ = true;
    arm(EPOLL_CTL_ADD, channel::rdma_descriptor(*rdma_));
    return true;
  }
  // Another connection is to follow the present one, by RDMA beside it. False: it does not.
  bool agree_again(uint32_t epoch, std::unique_ptr<channel::ResumableStream::Connection> next) {
    std::shared_ptr<channel::RdmaDevice> device;
    std::string why = "the session did not begin over RDMA";
    {
      std::lock_guard lock(rdma_mutex_);
      if (rdma_plan_) device = rdma_plan_->device, why = rdma_plan_->why_none;
    }
    std::shared_ptr<channel::RdmaConnection> end;
    const wire::RdmaTerms offer = channel::offer_rdma(device, why, &end);
    device.reset();
    if (!channel::say_rdma_offer(next->stream.get(), offer) || !end ||
        !channel::settle_rdma_offer(next->stream.get(), next->socket, &end, &why))
      return false;
    if (!end) return process::log_info("the session stays where it is: " + why), false;
    const int s = next->socket;
    const std::string way = channel::describe_rdma(*end);
    next->stream = channel::rdma_stream(s, end);
    {
      std::lock_guard lock(rdma_mutex_);
      coming_[s] = std::move(end);
    }
    const bool goes_on = resumable_->resume(epoch, std::move(next));
    if (goes_on) process::log_info("the session goes over RDMA again, by " + way);
    std::lock_guard lock(rdma_mutex_);
    coming_.erase(s);
    return goes_on;
  }
  void say_bulk(const channel::RdmaConnection& end) {
    if (const std::string said = channel::describe_bulk(end); !said.empty())
      process::log_info(said);
  }
  // Another connection has come. What the one before had of RDMA is let go.
  void begin_connection(int s) {
    std::shared_ptr<channel::RdmaConnection> before;
    {
      std::lock_guard lock(rdma_mutex_);
      before = std::move(rdma_);
      if (before) say_bulk(*before);
      if (before) epoll_ctl(epoll_, EPOLL_CTL_DEL, channel::rdma_descriptor(*before), nullptr);
      const auto coming = coming_.find(s);
      rdma_ = coming == coming_.end() ? nullptr : coming->second;
      over_rdma_ = rdma_ != nullptr;
      if (!rdma_) return follow(s);
      keep_alive(s);
      arm(EPOLL_CTL_ADD, channel::rdma_descriptor(*rdma_));
    }
    wake_one();  // nobody has armed its queues yet
  }
  // The kernel may wait for that, while the session goes over TCP: it does not come back to it.
  void let_removed_device_go() {
    std::lock_guard lock(rdma_mutex_);
    if (!rdma_plan_ || !rdma_plan_->device || rdma_plan_->device->is_there()) return;
    rdma_plan_->device.reset();
    rdma_plan_->why_none = "the node's RDMA device is gone";
  }
  std::shared_ptr<channel::RdmaConnection> rdma() const {
    std::lock_guard lock(rdma_mutex_);
    return over_rdma() ? rdma_ : nullptr;
  }

  int waits_on() const {
    const auto end = over_rdma() ? rdma() : nullptr;
    return end ? channel::rdma_descriptor(*end) : socket();
  }
  int socket() const { return resumable_ ? resumable_->socket() : socket_; }

  void arm(int operation, int s) {
    epoll_event e{
        sleeping_.load(std::memory_order_seq_cst) ? EPOLLIN | EPOLLRDHUP | EPOLLONESHOT : 0u, {}};
    e.data.fd = s;
    epoll_ctl(epoll_, operation, s, &e);
  }
  // A client that is gone without a word is noticed: within a few minutes, and within a quarter of
  // one where the session outlives that.
  void follow(int s) {
    keep_alive(s);
    arm(EPOLL_CTL_ADD, s);
  }
  void keep_alive(int s) {
    channel::keep_alive(s, terms_ ? channel::KeepAlive{.idle = 5, .interval = 3, .probes = 3}
                                  : channel::KeepAlive{.idle = 60, .interval = 20, .probes = 6});
  }
  // From the record on, which is the last that goes without them.
  void begin_records() {
    auto terms = *terms_;
    terms.looks_ns = channel::kLooksForCommands;
    auto resumable = std::make_unique<channel::ResumableStream>(
        std::make_unique<channel::ResumableStream::Connection>(socket_, std::move(stream_)), terms);
    resumable_ = resumable.get();
    resumable_->on_connection = [this](int s) { begin_connection(s); };
    // One that is closed would wake the sleepers for as long as it is there.
    resumable_->on_break = [this](int s) { epoll_ctl(epoll_, EPOLL_CTL_DEL, s, nullptr); };
    stream_ = std::move(resumable);
  }

  const int socket_;  // the first
  const std::optional<channel::ResumableStream::Terms> terms_;
  std::optional<RdmaPlan> rdma_plan_;
  mutable std::mutex rdma_mutex_;  // of the plan and of the next three, once the session runs
  std::shared_ptr<channel::RdmaConnection> rdma_;
  std::map<int, std::shared_ptr<channel::RdmaConnection>> coming_;  // by the socket beside each
  std::atomic<bool> over_rdma_{false}, agreeing_{false};
  std::unique_ptr<channel::Stream> stream_;
  channel::ResumableStream* resumable_ = nullptr;  // the same, once it is one
  int epoll_, wakes_;
  std::atomic<bool> sleeping_{false};
  std::vector<std::byte> in_;
  size_t begin_ = 0, end_ = 0;
  struct Ahead {
    std::byte* place;
    std::weak_ptr<channel::RdmaConnection> granted_by;
  };
  std::deque<Ahead> places_;      // of bulk frames that come; the leader's
  bool in_bulk_ = false;          // another such frame is likely next
  std::mutex read_mutex_;         // of the stream's reading, and of:
  std::vector<std::byte> spill_;  // read ahead; comes after what is in in_
  std::atomic<bool> ahead_{false};
  std::mutex send_mutex_;
  std::string why_;  // the session ends
  std::atomic<bool> gone_{false};
  std::atomic<bool> buffered_{
      false};  // a frame, or a part of one, has been read, or lies in the stream
  std::atomic<uint64_t> received_{0};
};

}  // namespace

std::unique_ptr<Endpoint> make_tcp_endpoint(
    int socket, std::unique_ptr<channel::Stream> stream,
    const std::optional<channel::ResumableStream::Terms>& terms, std::optional<RdmaPlan> rdma) {
  if (!stream) stream = std::make_unique<channel::PlainStream>(socket);
  return std::make_unique<TcpEndpoint>(socket, std::move(stream), terms, std::move(rdma));
}

}  // namespace sluice::worker
