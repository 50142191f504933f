// SPDX-License-Identifier: Apache-2.0
// A link's life, and what it knows of transfers; their bytes are moved in node_link_copies.cc.
#include "worker/node_link.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "channel/futex.h"
#include "process/log.h"
#include "worker/node_links.h"
#include "worker/profile/node_cupti.h"
#include "worker/session.h"

namespace sluice::worker {

namespace {

using wire::LinkMessageKind;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kOpenNs = 10 * kSecond, kLookNs = 2 * kSecond;
constexpr uint64_t kOpenPauseNs = 1'000'000;
constexpr auto kAnswer = std::chrono::seconds(15), kLook = std::chrono::seconds(2);
constexpr auto kAgain = std::chrono::milliseconds(200);
// At least, whatever sessions have: a link has no other way to go on.
constexpr uint32_t kGraceSeconds = 10, kClosedGraceSeconds = 5;

// Before the first connection.
class NoStream : public channel::Stream {
 public:
  NoStream() : Stream(-1) {}
  ssize_t read(const iovec*, int) override { return -1; }
  bool write(iovec*, int) override { return false; }
  void try_write(const void*, size_t) override {}
  Line line() const override { return Line::kLost; }
};

}  // namespace

NodeLink::NodeLink(Session& session, uint32_t peer, bool dials, std::function<bool(uint32_t)> ask)
    : session_(session), peer_(peer), dials_(dials), ask_(std::move(ask)) {}

NodeLink::~NodeLink() {
  {
    std::lock_guard lock(mutex_);
    open_ = false;  // nobody is there to be told
  }
  lose("the session is over");
  for (channel::Thread* thread : {&writer_, &reader_, &keeper_}) thread->join();
}

channel::ResumableStream* NodeLink::stream() {
  std::lock_guard lock(stream_mutex_);
  if (stream_) return stream_.get();
  using channel::ResumableStream;
  const SessionPlan& plan = session_.plan;
  ResumableStream::Terms terms{std::max(plan.network_grace_seconds, kGraceSeconds) * kSecond,
                               std::max(plan.closed_grace_seconds, kClosedGraceSeconds) * kSecond};
  terms.most_lent = (Staging::kPieces - 2) * Staging::kPieceBytes;
  terms.silent_ns = channel::kSilentNs;
  stream_ = std::make_unique<ResumableStream>(
      std::make_unique<ResumableStream::Connection>(-1, std::make_unique<NoStream>()), terms);
  stream_->on_connection = [](int socket) {
    channel::keep_alive(socket, {.idle = 5, .interval = 3, .probes = 3});
  };
  stream_->look(channel::kSilentMs);  // that there is no connection yet is a break
  return stream_.get();
}

// ---- its life

bool NodeLink::open(std::string* why) {
  std::lock_guard opening(open_mutex_);
  if (!opened_) {
    opened_ = true;
    if (!make_memory(why) || !start_threads()) {
      if (why->empty()) *why = "there is no thread to be had (session_pids)";
      lose(*why);
      return false;
    }
  }
  for (const uint64_t begin = channel::now_ns(); stream()->broken_since() != 0;) {
    {
      std::lock_guard lock(mutex_);
      if (over_) return *why = why_, false;
    }
    if (channel::now_ns() - begin > kOpenNs) {
      lose(*why = "no connection came within ten seconds");
      return false;
    }
    channel::sleep_ns(kOpenPauseNs);
  }
  std::lock_guard lock(mutex_);
  if (over_) *why = why_;
  return open_ = !over_;
}

bool NodeLink::is_open() {
  std::lock_guard lock(mutex_);
  return open_;
}

bool NodeLink::make_memory(std::string* why) {
  kernel_ = session_.links->kernel(why);
  if (!kernel_) return false;
  const Driver& d = session_.driver;
  session_.use(0);
  slots_ = LinkSlots::make(d);
  out_ = Staging::make(d);
  in_ = Staging::make(d);
  if (slots_ && out_ && in_) return true;
  *why = "there is no pinned memory for it";
  return false;
}

bool NodeLink::start_threads() {
  return keeper_.start(
             "link-keeper", [this] { look_after(); }, channel::Signals::kBlocked) &&
         writer_.start(
             "link-writer", [this] { write_all(); }, channel::Signals::kBlocked) &&
         reader_.start("link-reader", [this] { read_all(); }, channel::Signals::kBlocked);
}

// Has another connection made where this side dials, and notices that none came.
void NodeLink::look_after() {
  for (;;) {
    const bool dial = dials_ && stream()->wait_for_break(kLookNs);
    std::unique_lock lock(mutex_);
    if (over_) return;
    if (dial) {
      answered_ = false;
      lock.unlock();
      const bool asked = ask_(stream()->next_epoch());
      lock.lock();
      if (asked) changed_.wait_for(lock, kAnswer, [this] { return answered_ || over_; });
      if (!over_ && stream()->broken_since() != 0)
        changed_.wait_for(lock, kAgain, [this] { return over_; });
    } else if (!dials_) {
      changed_.wait_for(lock, kLook, [this] { return over_; });
    }
    lock.unlock();
    if (stream()->look(channel::kSilentMs))
      return lose("its connection broke, and none followed in time");
  }
}

void NodeLink::connected(uint32_t epoch,
                         std::unique_ptr<channel::ResumableStream::Connection> connection) {
  stream()->resume(epoch, std::move(connection));
  ask_again();
}

void NodeLink::refused(const std::string& why, bool over) { over ? lose(why) : ask_again(); }

void NodeLink::ask_again() {
  std::lock_guard lock(mutex_);
  answered_ = true;
  changed_.notify_all();
}

void NodeLink::fail() {
  std::lock_guard lock(mutex_);
  if (failed_ || over_) return;
  failed_ = true;
  to_say_.push_back({LinkMessageKind::kFailed, 0, 0});
  changed_.notify_all();
}

// Streams that wait go on. What was to come into this node's memory has not, so the session's work
// is not what its client thinks: that is an error of the node, as where a device outside of CUDA
// breaks its word. Whoever sends is told by the other node's end, and whoever waited for an event
// is well where that node is gone; where it is not, the client says so (given_up).
void NodeLink::lose(const std::string& why) {
  bool damaged = false, failed, was_open;
  {
    std::lock_guard lock(mutex_);
    if (over_) return;
    over_ = true;
    why_ = why;
    failed = failed_;
    was_open = open_;
    for (const auto& [_, t] : transfers_) {
      damaged |= t->end == End::kReceives && !t->is_event();
      let_go_ |= t->end == End::kReceives && t->is_event();
    }
    changed_.notify_all();
  }
  stream()->end();
  ask_(0);
  if (was_open) {
    if (damaged && !failed) incomplete();
    session_.endpoint().tell_link_lost(peer_);
    process::log_error("the link to the client's vGPU " + std::to_string(peer_) +
                       " on another node is over: " + why);
  }
  std::lock_guard lock(mutex_);
  told_ = true;
  for (const auto& [_, t] : transfers_) release(*t);
  transfers_.clear();
  to_send_.clear();
  changed_.notify_all();
}

void NodeLink::given_up() {
  lose("the client says that the other node's end of it is over");
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return told_; });
  given_up_ = true;
  if (!std::exchange(let_go_, false)) return;
  lock.unlock();
  incomplete();
}

void NodeLink::incomplete() {
  process::log_error(
      "a copy or an event from another node did not come to its end: the session has failed");
  session_.endpoint().publish_error(CUDA_ERROR_EXTERNAL_DEVICE, false);
}

// ---- transfers

CUresult NodeLink::begin(End end, const wire::NodeTransfer& of, const Place& place,
                         CUresult prepared) {
  const auto t = std::make_shared<Transfer>();
  t->end = end;
  t->of = of;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] {
      return over_ || (transfers_.size() < kMostTransfers && slots_->any_free());
    });
    if (over_) {
      // The client hears of that before it hears of what comes behind this.
      changed_.wait(lock, [this] { return told_; });
      const bool waits = end == End::kReceives && t->is_event();
      let_go_ |= waits && !given_up_;
      const bool damaged = end == End::kReceives && (!waits || given_up_);
      lock.unlock();
      if (damaged) incomplete();
      return prepared;
    }
    if (end == End::kSends)
      if (const auto said = early_.extract(of.transfer)) {
        if (!said.mapped()) return prepared;
        t->ready = true;
      }
    if (end == End::kReceives || !t->is_event()) {
      t->slot = slots_->take();
      t->holds_slot = true;
    }
    transfers_[of.transfer] = t;
  }
  const CUresult e = prepared == CUDA_SUCCESS ? issue(t, place) : prepared;
  std::lock_guard lock(mutex_);
  if (!under_way(t)) return e;  // the link is over, or the peer has refused it
  if (e != CUDA_SUCCESS) return refuse(t), e;
  t->begun = true;
  t->reached |= end == End::kReceives && t->is_event();  // which is asked for at once
  go_on(t);
  return e;
}

CUresult NodeLink::issue(const Known& t, const Place& place) {
  const Driver& d = session_.driver;
  const bool sends = t->end == End::kSends, tells_event = sends && t->is_event();
  CUresult e = tells_event ? d.cuStreamWaitEvent(place.stream, place.event, 0) : CUDA_SUCCESS;
  if (e == CUDA_SUCCESS && (sends || !t->is_event())) e = tell(place.stream, &NodeLink::reached, t);
  if (e == CUDA_SUCCESS && !t->is_event()) e = issue_move(t, place);
  // A receiver's stream goes on behind its kernel.
  if (e != CUDA_SUCCESS || sends == t->is_event()) return e;
  return d.cuStreamWaitValue64_v2(place.stream, slots_->word(t->slot), LinkSlots::over(t->slot),
                                  CU_STREAM_WAIT_VALUE_GEQ);
}

// The kernel runs on the device whose memory it is: where that is not the stream's, in a stream of
// the worker's own, between two events.
CUresult NodeLink::issue_move(const Known& t, const Place& place) {
  if (place.memory == place.device) return issue_kernel(t, place.device, place.stream);
  const Driver& d = session_.driver;
  std::lock_guard none_takes_its_stream(kernel_->streams_mutex());
  CUstream there = nullptr;
  CUevent before = nullptr, after = nullptr;
  CUresult e = d.cuEventCreate(&before, CU_EVENT_DISABLE_TIMING);
  if (e == CUDA_SUCCESS) e = d.cuEventRecord(before, place.stream);
  session_.use(place.memory);
  if (e == CUDA_SUCCESS) e = kernel_->stream(place.memory, &there);
  if (e == CUDA_SUCCESS) e = d.cuStreamWaitEvent(there, before, 0);
  if (e == CUDA_SUCCESS) e = issue_kernel(t, place.memory, there);
  if (e == CUDA_SUCCESS) e = d.cuEventCreate(&after, CU_EVENT_DISABLE_TIMING);
  if (e == CUDA_SUCCESS) e = d.cuEventRecord(after, there);
  session_.use(place.device);
  if (e == CUDA_SUCCESS) e = d.cuStreamWaitEvent(place.stream, after, 0);
  for (CUevent event : {before, after})
    if (event) d.cuEventDestroy_v2(event);
  return e;
}

CUresult NodeLink::issue_kernel(const Known& t, uint32_t device, CUstream stream) {
  const NodeCupti::Apart not_the_clients;
  const bool receives = t->end == End::kReceives;
  const LinkKernel::Copy copy{
      slots_->address(t->slot),       t->of.address, t->of.pitch, t->of.width, t->bytes(),
      LinkSlots::generation(t->slot), receives};
  CUresult e = session_.driver.cuStreamWaitValue64_v2(
      stream, slots_->word(t->slot), LinkSlots::going(t->slot), CU_STREAM_WAIT_VALUE_GEQ);
  if (e == CUDA_SUCCESS) e = kernel_->launch(device, stream, copy);
  return e == CUDA_SUCCESS && receives ? tell(stream, &NodeLink::landed, t) : e;
}

// Once this end has begun and its stream has come to it; the sender's, once the receiver is ready.
void NodeLink::go_on(const Known& t) {
  if (!t->begun || !t->reached) return;
  if (t->end == End::kReceives) {
    t->ready = true;
    to_say_.push_back({LinkMessageKind::kReady, 0, t->of.transfer});
  } else if (t->ready) {
    to_send_.push_back(t);
  }
  changed_.notify_all();
}

// The receiver says this or that it is ready, whatever the sender does; the sender only to a
// receiver that is ready, and knows the transfer until then.
void NodeLink::refuse(const Known& t) {
  release(*t);
  t->refused = true;
  if (t->end == End::kSends && !t->ready) return;
  to_say_.push_back({LinkMessageKind::kRefused, 0, t->of.transfer});
  transfers_.erase(t->of.transfer);
  changed_.notify_all();
}

// Told at this point of the stream, on a thread of the driver's, which is never held up.
CUresult NodeLink::tell(CUstream stream, void (NodeLink::*what)(const Known&), const Known& t) {
  struct Told {
    NodeLink* link;
    void (NodeLink::*what)(const Known&);
    Known transfer;
  };
  const auto run = [](void* given) {
    const std::unique_ptr<Told> told(static_cast<Told*>(given));
    (told->link->*told->what)(told->transfer);
  };
  auto told = std::make_unique<Told>(Told{this, what, t});
  const CUresult e =
      call(session_.driver.cuLaunchHostFunc, stream, CUhostFn{run}, static_cast<void*>(told.get()));
  if (e == CUDA_SUCCESS) told.release();  // it is the stream's now
  return e;
}

bool NodeLink::under_way(const Known& t) {
  const auto it = transfers_.find(t->of.transfer);
  return it != transfers_.end() && it->second == t;
}

void NodeLink::reached(const Known& t) {
  std::lock_guard lock(mutex_);
  if (!under_way(t)) return;
  t->reached = true;
  go_on(t);
}

// The kernel has ended: with all bytes, but where it was to end without.
void NodeLink::landed(const Known& t) {
  std::lock_guard lock(mutex_);
  if (!under_way(t) || t->done != t->bytes()) return;
  release(*t);
  transfers_.erase(t->of.transfer);
  to_say_.push_back({LinkMessageKind::kArrived, 0, t->of.transfer});
  changed_.notify_all();
}

bool NodeLink::knows(uint64_t transfer) {
  std::lock_guard lock(mutex_);
  return transfers_.contains(transfer);
}

NodeLink::Known NodeLink::find(uint64_t transfer, End end) {
  std::lock_guard lock(mutex_);
  const auto it = transfers_.find(transfer);
  return it != transfers_.end() && it->second->end == end ? it->second : nullptr;
}

// Its slot may be another's at once: that one waits for more.
void NodeLink::release(Transfer& t) {
  if (t.holds_slot.exchange(false)) slots_->release(t.slot);
}

void NodeLink::finish(const Known& t) {
  std::lock_guard lock(mutex_);
  release(*t);
  transfers_.erase(t->of.transfer);
  changed_.notify_all();
}

// ---- what the peer says

// What no worker of ours says. The peer was taken over, or is of a release that does not fit.
bool NodeLink::broken(const std::string& what) {
  lose("the other node's worker " + what);
  return false;
}

bool NodeLink::take(const wire::LinkMessage& m) {
  if (m.bytes != 0 && m.kind != LinkMessageKind::kData)
    return broken("sent bytes with a message that has none");
  switch (m.kind) {
    case LinkMessageKind::kReady:
      return take_receivers(m.transfer, true);
    case LinkMessageKind::kRefused:
      return find(m.transfer, End::kReceives) ? take_senders_refusal(m.transfer)
                                              : take_receivers(m.transfer, false);
    case LinkMessageKind::kData:
      return take_data(m.transfer, m.bytes);
    case LinkMessageKind::kArrived: {
      const Known t = find(m.transfer, End::kSends);
      if (!t || t->is_event() || t->done != t->bytes())
        return broken("has all of a copy that was not sent");
      finish(t);
      return true;
    }
    case LinkMessageKind::kEvent: {
      const Known t = find(m.transfer, End::kReceives);
      if (!t || !t->is_event()) return broken("tells of an event that nobody waits for");
      finish(t);
      return true;
    }
    case LinkMessageKind::kFailed:
      return broken("tells that its GPU has failed");
  }
  return broken("says what no worker says");
}

// That it is ready, or never will be.
bool NodeLink::take_receivers(uint64_t transfer, bool ready) {
  std::unique_lock lock(mutex_);
  const auto it = transfers_.find(transfer);
  bool good;
  if (it == transfers_.end()) {
    good = early_.size() < kMostTransfers && early_.try_emplace(transfer, ready).second;
  } else {
    const Known t = it->second;
    good = t->end == End::kSends && !t->ready;
    if (good && !ready) {  // the error is the other node's
      release(*t);
      transfers_.erase(it);
      changed_.notify_all();
    } else if (good) {
      t->ready = true;
      t->refused ? refuse(t) : go_on(t);
    }
  }
  lock.unlock();
  return good || broken(ready ? "is ready for a transfer twice, or for too many"
                              : "refuses a transfer twice, or too many");
}

// In place of the first byte, or of the event. The stream that waited goes on too early.
bool NodeLink::take_senders_refusal(uint64_t transfer) {
  const Known t = find(transfer, End::kReceives);
  if (!t || !t->ready || t->done != 0)
    return broken("refuses a transfer that has begun, or that nobody is ready for");
  incomplete();
  finish(t);
  return true;
}

}  // namespace sluice::worker
