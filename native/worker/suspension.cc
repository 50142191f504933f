// SPDX-License-Identifier: Apache-2.0
#include "worker/suspension.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "channel/futex.h"
#include "channel/thread.h"
#include "process/log.h"
#include "worker/steps.h"

namespace sluice::worker {

using channel::now_ns;

namespace {

constexpr uint64_t kLookNs = 500'000;     // between two looks at whether the GPU is done
constexpr uint64_t kAgainNs = 5'000'000;  // for captures, which end only while commands go on
constexpr uint64_t kMib = 1 << 20;
constexpr size_t kMostPieces = 1 << 16;

uint64_t mib(uint64_t bytes) { return (bytes + kMib - 1) / kMib; }

// Waits for contexts as wholes: what no stream of the session's shows, such as the libraries' own.
// In a thread that may stay behind, as an endless kernel cannot be waited for in any other way.
class ContextsIdle {
 public:
  // False: there is no thread to be had.
  static std::shared_ptr<ContextsIdle> begin(Session& session) {
    auto idle = std::make_shared<ContextsIdle>();
    std::vector<CUcontext> contexts;
    for (auto& v : session.vgpus) contexts.push_back(v->gpu->context);
    const Driver* driver = &session.driver;
    if (!channel::start_detached("drain", [idle, contexts, driver] {
          for (CUcontext context : contexts) {
            CUresult e = driver->cuCtxSetCurrent(context);
            if (e == CUDA_SUCCESS) e = driver->cuCtxSynchronize();
            if (e != CUDA_SUCCESS) idle->failed_ = e;
          }
          idle->done_.store(true, std::memory_order_release);
        }))
      return nullptr;
    return idle;
  }
  bool wait(uint64_t until_ns) const {
    while (!done_.load(std::memory_order_acquire)) {
      if (now_ns() >= until_ns) return false;
      channel::sleep_ns(kLookNs);
    }
    return true;
  }
  CUresult failed() const { return failed_; }

 private:
  std::atomic<bool> done_{false};
  std::atomic<CUresult> failed_{CUDA_SUCCESS};
};

}  // namespace

std::string Suspension::text(State state) const {
  switch (state) {
    case State::kRunning:
      return "running";
    case State::kStopping:
      return "stopping";
    case State::kStopped:
      return "stopped";
    case State::kMovingOut:
      return "moving-out";
    case State::kOut:
      return "out";
    case State::kMovingIn:
      return "moving-in";
  }
  return "";
}

// The caller holds the mutex.
Suspension::Values Suspension::values(State state) const {
  Values v;
  v["suspension"] = text(state);
  v["kept_mib"] = std::to_string(mib(kept_));
  if (state == State::kRunning || state == State::kStopping) return v;
  v["movable_mib"] = std::to_string(mib(movable_));
  v["planned_mib"] = std::to_string(mib(planned_));
  v["new_mib"] = std::to_string(mib(fresh_));
  v["takes_driver_memory"] = "1";
  if (!by_.empty()) v["moved_by"] = by_;
  if (const char* tie = session_.ties.name(); *tie) v["context_tie"] = tie;
  for (const auto& [vgpu, figures] : figures_) {
    const std::string key = "vgpu." + std::to_string(vgpu) + ".";
    v[key + "staying_mib"] = std::to_string(figures.staying);
    v[key + "movable_mib"] = std::to_string(figures.movable);
    v[key + "out_mib"] = std::to_string(figures.out);
    v[key + "exported_mib"] = std::to_string(figures.exported);
  }
  return v;
}

void Suspension::show(Values* shown) const {
  std::lock_guard lock(mutex_);
  for (auto& [key, value] : values(state_)) (*shown)[key] = value;
}

void Suspension::done(State state, const std::string& message, const Values& more) {
  Values said;
  {
    std::lock_guard lock(mutex_);
    state_ = state;
    said = values(state);
  }
  said.insert(more.begin(), more.end());
  if (!message.empty()) said["message"] = message;
  process::log_info("suspension: " + text(state) + (message.empty() ? "" : ": " + message));
  tell_(said);
}

bool Suspension::begin(State from, State by, const char* what, std::function<void()> step) {
  Values said;
  {
    std::lock_guard lock(mutex_);
    if (state_ == from) {
      state_ = by;
    } else {
      said = values(state_);
      said["message"] = std::string(what) + " does not follow here: it is " + text(state_);
    }
  }
  if (!said.empty()) return tell_(said), false;
  if (channel::start_detached("suspension", std::move(step))) return true;
  done(from, "there is no thread to be had for it (session_pids)");
  return false;
}

void Suspension::suspend(uint64_t drain_ms) {
  const uint64_t until = now_ns() + drain_ms * 1'000'000;
  begin(State::kRunning, State::kStopping, "suspend", [this, until] { stop(until); });
}

void Suspension::stop(uint64_t until_ns) {
  session_.use(0);
  Steps steps;
  std::string why =
      "commands of the session, as one that waits for work on the GPU, or for a host function that "
      "its client has yet to run";
  do {
    if (!executor_.stop(until_ns)) break;
    steps.done("commands");
    why = in_the_way(until_ns);
    steps.done("the GPU");
    if (why.empty()) {
      {
        std::lock_guard moving(moving_);
        moves_.look();
        show_moves();
      }
      steps.done("looked through");
      return done(State::kStopped, {}, {{"steps", steps.text()}});
    }
    executor_.go_on();
    channel::sleep_ns(kAgainNs);
  } while (now_ns() < until_ns);
  done(State::kRunning, "it does not come to a stop in time: " + why);
}

// The caller has the moves.
void Suspension::show_moves() {
  std::lock_guard lock(mutex_);
  kept_ = moves_.kept();
  fresh_ = moves_.fresh();
  movable_ = moves_.movable();
  for (auto& v : session_.vgpus)
    figures_[v->index] = {mib(moves_.staying(v->index)), mib(moves_.movable(v->index)),
                          mib(moves_.out(v->index)), mib(moves_.exported(v->index))};
}

bool Suspension::all_idle(CUresult* failed) {
  const Driver& d = session_.driver;
  bool idle = true;
  const auto ask = [&](CUstream stream) {
    const CUresult e = d.cuStreamQuery(stream);
    if (e == CUDA_ERROR_NOT_READY)
      idle = false;
    else if (e != CUDA_SUCCESS)
      *failed = e;
  };
  for (auto& v : session_.vgpus) {
    session_.use(v->index);
    ask(v->gpu->house);
    ask(CU_STREAM_LEGACY);
  }
  session_.objects.streams.for_each([&](uint64_t, const StreamObject& s) {
    session_.use(s.device);
    ask(s.handle);
  });
  return idle;
}

std::string Suspension::in_the_way(uint64_t until_ns) {
  {
    std::lock_guard lock(session_.captures.mutex);
    if (session_.captures.any()) return "a stream captures a graph";
  }
  CUresult failed = CUDA_SUCCESS;
  while (!all_idle(&failed)) {
    if (failed != CUDA_SUCCESS) break;
    if (now_ns() >= until_ns)
      return "work on the GPU, or a host function that its client has yet to run";
    channel::sleep_ns(kLookNs);
  }
  if (failed == CUDA_SUCCESS) {
    const auto contexts = ContextsIdle::begin(session_);
    if (!contexts) return "no thread to wait for the GPU (session_pids)";
    if (!contexts->wait(until_ns)) return "work of NVIDIA's libraries on the GPU";
    failed = contexts->failed();
  }
  return failed == CUDA_SUCCESS ? "" : "its GPU failed: " + session_.driver.error_text(failed);
}

void Suspension::take_memory(const HostArea::Piece& piece) {
  std::lock_guard lock(mutex_);
  if ((state_ == State::kStopped || state_ == State::kOut) && host_.size() < kMostPieces)
    host_.push_back(piece);
  else
    ::close(piece.memory);
}

std::vector<HostArea::Piece> Suspension::take_pieces() {
  std::lock_guard lock(mutex_);
  return std::exchange(host_, {});
}

// Of one that stands still, so that at most what is kept is being given up.
uint64_t Suspension::plan_moves(const std::vector<uint64_t>& out) {
  std::lock_guard moving(moving_);
  const uint64_t planned = moves_.plan(out);
  std::lock_guard lock(mutex_);
  fresh_ = moves_.fresh();
  return planned_ = planned;
}

void Suspension::plan(const std::vector<uint64_t>& out) {
  bool follows;
  {
    std::lock_guard lock(mutex_);
    follows = state_ == State::kStopped || state_ == State::kOut;
  }
  if (follows) plan_moves(out);
  Values said;
  {
    std::lock_guard lock(mutex_);
    is_planned_ = is_planned_ || follows;
    said = values(state_);
    if (!follows) said["message"] = "plan does not follow here: it is " + text(state_);
  }
  tell_(said);
}

void Suspension::move_out(const std::string& by) {
  State from;
  bool plans = false;
  {
    std::lock_guard lock(mutex_);
    from = state_ == State::kOut ? State::kOut : State::kStopped;
    if (state_ == from) {
      plans = !std::exchange(is_planned_, false);
      by_ = by;
    }
  }
  if (plans) plan_moves({});
  begin(from, State::kMovingOut, "move_out", [this, from] {
    std::string error;
    bool broken = false;
    std::lock_guard moving(moving_);
    const bool moved = moves_.out(take_pieces(), &error, &broken);
    if (broken) return end(error);
    show_moves();
    {
      std::lock_guard lock(mutex_);
      planned_ = fresh_ = 0;
    }
    done(moved ? State::kOut : from, error, {{"steps", moves_.steps()}});
  });
}

void Suspension::delist() {
  begin(State::kOut, State::kMovingOut, "delist", [this] {
    std::lock_guard moving(moving_);
    moves_.delist_host();
    show_moves();
    done(State::kOut);
  });
}

// What the driver calls its devices is as before; what NVML and other sessions are told is not.
void Suspension::moved(const std::vector<std::string>& gpus) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; state_ == State::kOut && i < std::min(gpus.size(), session_.vgpus.size()); ++i)
    read_uuid(gpus[i], &session_.vgpus[i]->gpu->uuid);
}

// The caller has the moves.
void Suspension::forget(bool keep) {
  if (keep)
    moves_.keep_host();
  else
    moves_.give_up_host();
  std::lock_guard lock(mutex_);
  kept_ = moves_.kept();
}

void Suspension::wake(bool keep) {
  bool is_stopped, gives_up;
  {
    std::lock_guard lock(mutex_);
    is_stopped = state_ == State::kStopped;
    gives_up = is_stopped && kept_ && !keep;
    if (gives_up) state_ = State::kMovingIn;
  }
  if (is_stopped) {
    for (const auto& piece : take_pieces()) ::close(piece.memory);
    executor_.go_on();
    const auto rest = [this, keep] {
      std::lock_guard moving(moving_);
      forget(keep);
      done(State::kRunning);
    };
    if (!gives_up || !channel::start_detached("suspension", rest)) rest();
    return;
  }
  begin(State::kOut, State::kMovingIn, "wake", [this, keep] {
    std::string error;
    bool broken = false;
    MemoryMoves::Missing missing;
    std::lock_guard moving(moving_);
    if (!moves_.back(&error, &broken, &missing)) {
      if (broken) return end(error);
      Values more;
      if (missing.bytes)
        more["vgpu." + std::to_string(missing.vgpu) + ".missing_mib"] =
            std::to_string(mib(missing.bytes));
      return done(State::kOut, error, more);
    }
    executor_.go_on();  // nobody waits for the host memory to be given up
    Steps steps;
    forget(keep);
    steps.done(keep ? "host memory kept" : "host memory given up");
    {
      std::lock_guard lock(mutex_);
      by_.clear();
    }
    done(State::kRunning, {}, {{"steps", moves_.steps() + ", " + steps.text()}});
  });
}

void Suspension::give_up(uint64_t bytes) {
  Values said;
  {
    std::lock_guard lock(mutex_);
    if (state_ != State::kRunning && state_ != State::kStopped && state_ != State::kOut) {
      said = values(state_);
      said["message"] = "give_up does not follow here: it is " + text(state_);
    }
  }
  if (!said.empty()) return tell_(said);
  const auto work = [this, bytes] {
    Steps steps;
    std::lock_guard moving(moving_);
    moves_.give_up_host(bytes);
    const uint64_t kept = moves_.kept(), fresh = moves_.fresh();
    steps.done("host memory given up");
    Values now;
    {
      std::lock_guard lock(mutex_);
      kept_ = kept;
      fresh_ = fresh;
      now = values(state_);
    }
    now["steps"] = steps.text();
    process::log_info("suspension: " + steps.text());
    tell_(now);
  };
  if (channel::start_detached("suspension", work)) return;
  std::lock_guard lock(mutex_);
  said = values(state_);
  said["message"] = "there is no thread to be had for it (session_pids)";
  tell_(said);
}

void Suspension::end(const std::string& why) {
  executor_.end({wire::EndCause::kSuspensionFailed, "it could not be suspended or resumed: " + why},
                CUDA_ERROR_SYSTEM_NOT_READY);
}

}  // namespace sluice::worker
