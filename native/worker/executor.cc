// SPDX-License-Identifier: Apache-2.0
#include "worker/executor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "channel/futex.h"
#include "channel/thread.h"
#include "process/log.h"
#include "worker/device_output.h"
#include "worker/node_links.h"
#include "worker/profile/node_cupti.h"

namespace sluice::worker {

using channel::now_ns;
using wire::EndCause;

namespace {
// How long a leader looks at an empty channel before it sleeps. Longer than the pause between the
// launches of a busy program.
constexpr uint64_t kSpinNs = 60'000;
// One who has sent nothing for so long likely waits for the GPU, or does something else.
constexpr uint64_t kPauseNs = 10'000;
// Nobody has taken a command for so long while the GPU worked: all may be waiting for it.
constexpr uint64_t kStandingNs = 1'000'000'000;
constexpr uint64_t kStopLookNs = 200'000;  // between two looks at whether commands are done
// How long one that takes memory waits for a GPU to have what is counted as free there, and between
// two looks at it.
constexpr uint64_t kRoomNs = 30'000'000'000, kRoomLookNs = 50'000'000;
// More than any channel has lanes, each with one command: when all of those wait, one thread still
// takes what ends their waiting.
constexpr int kMaxThreads = wire::kStreamLanes + 16;

process::End closed() { return {EndCause::kClientEnded, "the client closed its session"}; }
process::End bad(const std::string& what) { return {EndCause::kClientRefused, what}; }
}  // namespace

process::End client_left() {
  return {EndCause::kClientEnded, "the client's end was closed, and it did not come back"};
}

Executor::Executor(Session& session, std::function<void(const process::End&)> ended)
    : session_(session),
      endpoint_(session.endpoint()),
      ended_(std::move(ended)),
      lanes_(std::make_unique<std::atomic<bool>[]>(endpoint_.lane_count())) {
  endpoint_.place_for_bulk = [this](size_t bytes) {
    bulk_ = (bytes <= wire::kMaxFrameBytes ? session_.bulk : session_.large_bulk).take();
    return bulk_ ? bulk_->at : nullptr;
  };
  endpoint_.place_ahead = [this]() -> std::byte* {
    BulkFrame* const frame = session_.bulk.take_ahead();
    if (!frame) return nullptr;
    ahead_.push_back(frame);
    return frame->at;
  };
  endpoint_.came_to = [this](std::byte* place) {
    const auto frame = std::ranges::find(ahead_, place, &BulkFrame::at);
    bulk_ = *frame;
    ahead_.erase(frame);
  };
  if (session.plan.merging != Merging::kOff)
    merger_ = std::make_unique<merge::Merger>(
        session, session.plan.merging,
        merge::Merger::Runs{[this](const Command& c) { run_held(c); },
                            [this](size_t n, CUresult status) { replayed(n, status); },
                            [this] { return in_libraries_.load() > 0; }});
}

bool Executor::start() {
  return channel::start_detached("watchdog", [this] { watch(); }) && add_thread();
}

bool Executor::add_thread() {
  if (threads_.fetch_add(1) < kMaxThreads &&
      channel::start_detached("lane", [this] { thread_main(); }))
    return true;
  threads_.fetch_sub(1);
  return false;
}

void Executor::end(const process::End& why, uint32_t error) {
  if (over_.exchange(true)) return;
  endpoint_.say_why(why.reason);
  endpoint_.publish_error(error, true);
  ended_(why);
}

// Sessions that run through one MPS server have one fate, and as long as one of them is there, no
// other can begin.
void Executor::fail(CUresult error) {
  if (session_.links && is_sticky(error)) session_.links->fail();
  if (!session_.concurrent || !is_sticky(error)) return endpoint_.publish_error(error, false);
  end({EndCause::kConcurrentFault,
       "its GPU failed with " + session_.driver.error_text(error) +
           ", and it shares NVIDIA's MPS server with its project's other sessions there: one of "
           "them, this one or another, faulted or was killed"},
      error);
}

void Executor::thread_main() {
  session_.use(0);
  // Aligned so that a body behind the 16-byte header can be read in place.
  const std::unique_ptr<std::byte, void (*)(void*)> memory(
      static_cast<std::byte*>(std::aligned_alloc(64, wire::kMaxFrameBytes + 64)), std::free);
  std::byte* const frame = memory.get();
  for (bool hot = true; !over_;) {
    const uint32_t seen = endpoint_.wake_count();
    // Whoever has just worked looks again for a while: the next command is likely near.
    if ((hot || !endpoint_.empty()) && !baton_.exchange(true, std::memory_order_acq_rel)) {
      lead(frame);
      hot = false;
      continue;
    }
    hot = false;
    if (endpoint_.closed()) return end(closed(), CUDA_ERROR_DEINITIALIZED);
    // A client that was held up between its frame and its announcement announces what has been done
    // already, and uses up what was asked for the next frame: whoever finds nothing asks again.
    if (!baton_.load(std::memory_order_seq_cst)) {
      endpoint_.set_sleeping(true);
      if (!endpoint_.empty()) continue;
    }
    idle_.fetch_add(1);
    endpoint_.sleep(seen);
    idle_.fetch_sub(1);
  }
}

// Holds the baton on entry. On return it has been given up.
void Executor::lead(std::byte* frame) {
  endpoint_.set_sleeping(false);
  uint64_t empty_since = 0;
  for (;;) {
    if (merger_ && merger_->holding() && !more_comes()) merger_->let_go();
    if (over_) return;
    const Endpoint::Got got = endpoint_.take(frame);
    if (got != Endpoint::Got::kFrame && merger_) merger_->let_go();
    if (got == Endpoint::Got::kEmpty) {
      const uint64_t now = now_ns();
      if (empty_since == 0) empty_since = now;
      if (merger_ && merger_->has_work() && now - empty_since > kPauseNs && make_piece()) {
        if (session_.rejected())
          return end(bad("bad command: " + session_.reason()), CUDA_ERROR_UNKNOWN);
        continue;
      }
      if (now - empty_since < kSpinNs) {
        for (int i = 0; i < 50 && endpoint_.empty(); ++i) channel::cpu_relax();
        if (endpoint_.empty()) channel::spin_round();
        continue;
      }
      session_.went_quiet();
      endpoint_.set_sleeping(true);
      if (!endpoint_.empty()) {
        endpoint_.set_sleeping(false);
        continue;
      }
      baton_.store(false, std::memory_order_release);
      return;
    }
    empty_since = 0;
    if (got == Endpoint::Got::kGone)
      return end(endpoint_.closed_by_client() ? client_left()
                                              : process::End{EndCause::kClientLost,
                                                             "the connection to the client was "
                                                             "lost"},
                 CUDA_ERROR_UNKNOWN);
    if (got == Endpoint::Got::kBroken)
      return end(bad("the client's channel holds no valid frame"), CUDA_ERROR_UNKNOWN);
    bool parked = false;
    BulkFrame* const bulk = std::exchange(bulk_, nullptr);
    if (!run(bulk ? bulk->at : frame, bulk, &parked) || over_) return;
    if (bulk) bulk->owner->give_back(bulk);
    // After a parked command somebody else may lead; whoever finds the baton free goes on.
    if (parked) {
      if (baton_.exchange(true, std::memory_order_acq_rel)) return;
      endpoint_.set_sleeping(false);
    }
  }
}

// Said before it is looked whether it may, as a command is counted: stop() looks the other way
// round.
bool Executor::make_piece() {
  making_.store(true, std::memory_order_seq_cst);
  const bool may = !session_.cut.closed();
  if (may) merger_->work();
  making_.store(false, std::memory_order_seq_cst);
  return may;
}

bool Executor::more_comes() {
  do {
    if (!endpoint_.empty()) return true;
    channel::cpu_relax();
  } while (now_ns() < merger_->held_until() && !session_.cut.closed());
  return !endpoint_.empty();
}

bool Executor::run(std::byte* frame, BulkFrame* bulk, bool* parked) {
  Command command;
  std::memcpy(&command.header, frame, sizeof command.header);
  command.body = {frame + sizeof command.header, command.header.size - sizeof command.header};
  command.bulk = bulk;
  const auto& table = dispatch_table();
  const uint16_t f = command.header.function;
  if (f == wire::kClose) {
    if (merger_) merger_->let_go();
    return end(closed(), CUDA_ERROR_DEINITIALIZED), false;
  }
  const Handler* h = f < table.size() ? &table[f] : nullptr;
  const bool wants_answer = command.answered();
  if (!h || !h->run || (h->answered == Handler::Answered::kOnly && !wants_answer) ||
      (h->answered == Handler::Answered::kNever && wants_answer)) {
    end(bad("the command " + std::to_string(f) + " is none that this worker speaks"),
        CUDA_ERROR_UNKNOWN);
    return false;
  }
  if (wants_answer && !take_lane(command.header.lane)) return false;
  // Counted before it is looked whether it may begin: stop() counts the other way round.
  session_.figures.commands.fetch_add(1, std::memory_order_seq_cst);
  Cut::begun();
  MemoryAllowance* const room = session_.turns ? &session_.turns->memory() : nullptr;
  if (room) room->begin();
  if (merger_) {
    const bool alone = session_.cut.closed() || session_.captures.any();
    const bool taken = merger_->take(command, alone);
    if (over_) return false;
    if (taken) return true;
  }
  if (session_.cut.closed()) stand_back(room, false);
  if (room && h->takes) wait_for_room(command, *h);
  // Before others may lead.
  const uint32_t call = std::exchange(session_.marked_call, 0);
  Reply reply;
  if (h->may_block && wants_answer &&
      !(endpoint_.parking_is_dear() && h->done && h->done(session_, command)) &&
      others_can_lead()) {
    // Others must be able to pass: a producer that appends from now on wakes somebody. The baton
    // goes first: who is woken while it is still held goes back to sleep, and nobody wakes him
    // again.
    *parked = true;
    if (merger_ && merge::Reader::of_a_library(f)) in_libraries_.fetch_add(1);
    baton_.store(false, std::memory_order_seq_cst);
    endpoint_.set_sleeping(true);
    if (endpoint_.unannounced()) endpoint_.wake_one();
  }
  if (call == 0) {
    run_handler(command, *h, reply);
  } else {
    const NodeCupti::Noted noted(call);
    run_handler(command, *h, reply);
  }
  if (*parked && merger_ && merge::Reader::of_a_library(f)) in_libraries_.fetch_sub(1);
  if (session_.rejected()) {
    end(bad("bad command: " + session_.reason()), CUDA_ERROR_UNKNOWN);
    return false;
  }
  finish(command, *h, reply);
  return true;
}

void Executor::stand_back(MemoryAllowance* room, bool asks, uint64_t until_ns) {
  Cut& cut = session_.cut;
  do {
    const Cut::KeptBack kept(cut);
    std::optional<MemoryAllowance::Waiting> waiting;
    if (room) waiting.emplace(*room);
    for (;;) {
      const uint32_t changes = room ? room->changes() : 0;
      if (cut.closed())
        cut.wait_until_open();
      else if (asks && !room->may_take() && now_ns() < until_ns)
        room->wait(changes);
      else
        break;
    }
  } while (cut.closed());
}

void Executor::wait_for_room(const Command& command, const Handler& handler) {
  uint32_t vgpu = 0;
  const uint64_t bytes = handler.takes(session_, command, &vgpu);
  MemoryAllowance& room = session_.turns->memory();
  room.ask(vgpu, bytes);
  if (!room.may_take()) stand_back(&room, true);
}

void Executor::run_handler(const Command& command, const Handler& handler, Reply& reply) {
  handler.run(session_, command, reply);
  if (!session_.turns || !handler.takes) return;
  const uint64_t until = now_ns() + kRoomNs;
  uint64_t besides = 0;
  while (reply.status == CUDA_ERROR_OUT_OF_MEMORY && !session_.rejected() &&
         wait_for_more_room(command, handler, until, &besides)) {
    reply = {};
    handler.run(session_, command, reply);
  }
  session_.turns->memory().asked();
}

// What is counted leaves room for it, and the GPU has none, as somebody takes what nobody counts.
// Asks for so much more, twice as much each time, until somebody has gone for it. False: that is
// not so, or has been tried for long enough.
bool Executor::wait_for_more_room(const Command& command, const Handler& handler, uint64_t until_ns,
                                  uint64_t* besides) {
  uint32_t index = 0;
  const uint64_t bytes = handler.takes(session_, command, &index);
  MemoryAllowance& room = session_.turns->memory();
  size_t free = 0, total = 0;
  Vgpu* const v = session_.use(index);
  if (!v || over_ || now_ns() >= until_ns || !room.bounded(index) ||
      call(session_.driver.cuMemGetInfo_v2, &free, &total) != CUDA_SUCCESS || free >= bytes)
    return false;
  *besides = std::min(std::max(2 * *besides, bytes - free), v->memory.bytes());
  if (!*besides) return false;
  process::log_info(std::string(handler.name) + ": " + std::to_string(bytes >> 20) +
                    " MiB are counted as free on the GPU, and " + std::to_string(free >> 20) +
                    " are; waits for others to go");
  room.ask(index, bytes + *besides);
  if (room.may_take())
    channel::sleep_ns(kRoomLookNs);
  else
    stand_back(&room, true, until_ns);
  return true;
}

// Every command is counted when it begins and when it is done. What has begun is read last: what
// came meanwhile makes it look like more, never like less.
bool Executor::stop(uint64_t until_ns) {
  const auto& figures = session_.figures;
  session_.cut.close();
  for (;;) {
    const uint64_t kept_back = session_.cut.kept_back();
    const uint64_t done = figures.activity.load(std::memory_order_seq_cst);
    if (!making_.load(std::memory_order_seq_cst) &&
        kept_back + done == figures.commands.load(std::memory_order_seq_cst))
      return true;
    if (over_ || now_ns() >= until_ns) break;
    channel::sleep_ns(kStopLookNs);
  }
  go_on();
  return false;
}

void Executor::go_on() { session_.cut.open(); }

bool Executor::take_lane(uint16_t lane) {
  if (lane >= endpoint_.lane_count()) {
    end(bad("bad command: it names the lane " + std::to_string(lane) + " of " +
            std::to_string(endpoint_.lane_count())),
        CUDA_ERROR_UNKNOWN);
    return false;
  }
  if (!lanes_[lane].exchange(true, std::memory_order_acquire)) return true;
  end(bad("bad command: the lane " + std::to_string(lane) + " waits for another answer already"),
      CUDA_ERROR_UNKNOWN);
  return false;
}

bool Executor::others_can_lead() {
  if (idle_.load() > 0 || add_thread()) return true;
  process::log_error(
      "no thread can be started (session_pids, or memory): commands wait for one that waits for "
      "the GPU");
  return false;
}

void Executor::finish(const Command& command, const Handler& handler, Reply& reply) {
  if (command.answered()) {
    session_.figures.round_trips.fetch_add(1, std::memory_order_relaxed);
    if (is_sticky(reply.status)) fail(reply.status);
    // CUDA shows what kernels printed no later than at a synchronisation.
    const bool output = handler.may_block && DeviceOutput::instance().waiting();
    uint32_t flags = (output ? wire::kOutputWaiting : 0u) | (reply.more ? wire::kMoreFollows : 0u);
    const size_t limit = endpoint_.reply_limit();
    std::span<const std::byte> body = reply.body;
    if (reply.borrowed.empty() && body.size() > limit) {
      if (session_.unfetched.keep(command.header.lane, limit, body.subspan(limit))) {
        flags |= wire::kMoreFollows;
        body = body.first(limit);
      } else {
        process::log_error(std::string(handler.name) + ": its answer of " +
                           std::to_string(body.size()) +
                           " bytes finds no room beside those that the client has not fetched");
        reply.status = CUDA_ERROR_OUT_OF_MEMORY;
        body = {};
      }
    }
    session_.figures.replied.fetch_add(body.size() + reply.borrowed.size(),
                                       std::memory_order_relaxed);
    // Before the answer: who has it uses the lane again.
    lanes_[command.header.lane].store(false, std::memory_order_release);
    endpoint_.reply(command.header.lane, command.header.sequence,
                    static_cast<uint32_t>(reply.status) | flags, body, reply.borrowed, reply.held);
  } else if (is_capture_error(reply.status)) {
    // The capture is broken now, which its end will say; nothing else is.
    process::log_info(std::string(handler.name) +
                      " failed in a capture: " + session_.driver.error_text(reply.status));
  } else if (reply.status != CUDA_SUCCESS) {
    if (!is_sticky(reply.status))
      process::log_error(std::string(handler.name) + " failed after its caller had gone on: " +
                         session_.driver.error_text(reply.status) +
                         ". The client should have refused the call; the session is poisoned.");
    fail(reply.status);
  }
  count_done();
}

// Its handler was found when it came, and it was counted.
void Executor::run_held(const Command& command) {
  if (over_) return;
  const Handler& h = dispatch_table()[command.header.function];
  Reply reply;
  h.run(session_, command, reply);
  if (session_.rejected()) return end(bad("bad command: " + session_.reason()), CUDA_ERROR_UNKNOWN);
  finish(command, h, reply);
}

void Executor::replayed(size_t commands, CUresult status) {
  if (status != CUDA_SUCCESS) fail(status);
  for (size_t i = 0; i < commands; ++i) count_done();
}

void Executor::count_done() {
  session_.figures.activity.fetch_add(1, std::memory_order_seq_cst);
  Cut::done();
  if (session_.turns) session_.turns->memory().end();
  if (!watching_.load(std::memory_order_relaxed) && !watching_.exchange(true)) {
    watch_word_.fetch_add(1);
    channel::futex_wake(watch_word_);
  }
}

// A context that died writes no marks, so somebody has to look and say so. Looks often after
// activity, ever less without, and sleeps when all streams are done.
void Executor::watch() {
  session_.use(0);
  const Driver& d = session_.driver;
  for (;;) {
    const uint32_t seen = watch_word_.load();
    if (!watching_) {
      channel::futex_wait(watch_word_, seen);
      continue;
    }
    uint64_t last = session_.figures.activity.load(), pause = 10'000'000;
    uint64_t taken = session_.figures.commands.load(), taken_at = now_ns();
    for (;;) {
      channel::sleep_ns(pause);
      if (const uint64_t all = session_.figures.commands.load(); all != taken)
        taken = all, taken_at = now_ns();
      else if (now_ns() - taken_at > kStandingNs)
        endpoint_.read_ahead();
      bool busy = false;
      {
        // Asking a stream that captures would break its capture.
        std::lock_guard lock(session_.captures.mutex);
        const bool capturing = session_.captures.any();
        busy |= capturing;
        for (auto& v : session_.vgpus) {
          d.cuCtxSetCurrent(v->gpu->context);
          const CUresult e = d.cuStreamQuery(v->gpu->house);
          if (is_sticky(e)) fail(e);
          busy |= v->gate->look();
          if (!capturing) busy |= d.cuStreamQuery(CU_STREAM_LEGACY) == CUDA_ERROR_NOT_READY;
        }
        if (!capturing)
          session_.objects.streams.for_each([&](uint64_t, const StreamObject& s) {
            busy |= d.cuStreamQuery(s.handle) == CUDA_ERROR_NOT_READY;
          });
      }
      const uint64_t now = session_.figures.activity.load();
      if (now == last && !busy) break;
      pause = now == last ? std::min<uint64_t>(pause * 2, 250'000'000) : 10'000'000;
      last = now;
    }
    watching_ = false;
    // Something may have come between the look and the flag.
    if (session_.figures.activity.load() != last) watching_ = true;
  }
}

}  // namespace sluice::worker
