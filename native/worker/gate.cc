// SPDX-License-Identifier: Apache-2.0
#include "worker/gate.h"

#include <algorithm>

#include "channel/futex.h"
#include "channel/spin_time.h"
#include "worker/turn_keeper.h"

namespace sluice::worker {

namespace {

// In a turn: how much may be under way when something more begins, and after how much of it there
// is a mark. Little enough to leave a turn soon, and enough that the GPU never waits.
constexpr float kAheadNs = 600'000, kMarkNs = 200'000;
// What takes longer by itself begins when so much is left before it.
constexpr float kNearNs = 300'000;
constexpr uint32_t kMostLaunches = 64;  // between two marks
// While others run at the same time: the GPU's slices are theirs, too, so more has to be under way
// than in turns; and little enough to be done within the grace when turns begin again.
constexpr float kTogetherAheadNs = 20'000'000, kTogetherMarkNs = 2'000'000;
// A wait for what is longer than this is no spinning; nor, where processors are few, for what is
// longer than a nap: who spins takes one from whoever feeds the GPU.
constexpr float kLongNs = 2'000'000;
constexpr uint64_t kNapNs = 50'000;

// What the GPU has may wait for the host, and the frame that tells of it may lie behind the launch
// that waits here, whose thread reads the frames: it goes on when the GPU has been at its oldest
// work for so much longer than was expected.
constexpr int64_t kStandsNs = 100'000'000;

bool is_worth_a_nap(float rest_ns) {
  static const bool few = channel::usable_processors() < channel::SpinTime::kFewProcessors;
  return rest_ns > (few ? static_cast<float>(kNapNs) : kLongNs);
}

// Passages of this thread that are not issued: NCCL takes a group of calls as one. Who has begun
// one never waits, as nothing is drained before it is issued.
thread_local int t_entered = 0;

int64_t now_ns() { return static_cast<int64_t>(channel::now_ns()); }

uint16_t slot_of(uint64_t kind, size_t kinds) {
  kind *= 0x9e3779b97f4a7c15ull;
  return static_cast<uint16_t>((kind >> 32) % kinds);
}

}  // namespace

bool Gate::lead_is_used_up() const {
  if (lead_ >= kLead && under_way_.size() >= kLeadMarks) return true;
  return turns_ && turns_->together() && under_way_.size() > 1 &&
         static_cast<float>(lead_) * launch_ns_ >= kTogetherAheadNs;
}

// Launches until the next mark, where those are not bounded by time.
uint32_t Gate::batch() const {
  if (!turns_ || !turns_->together()) return batch_;
  const float most = std::clamp(kTogetherMarkNs / launch_ns_, 1.0f, static_cast<float>(kMinBatch));
  return static_cast<uint32_t>(most);
}

float Gate::expected(const Work& work) const {
  const float known = kind_ns_[slot_of(work.kind, kKinds)];
  return known != 0 ? known : launch_ns_ * static_cast<float>(work.launches);
}

void Gate::wait_while_held() {
  std::unique_lock lock(held_mutex_);
  released_.wait(lock, [this] { return !held_; });
}

Gate::Passage Gate::pass(CUstream stream, const Work& work) {
  for (;;) {
    if (held_.load(std::memory_order_relaxed)) wait_while_held();
    if (!turns_ || turns_->free()) break;
    if (Passage passage; pass_in_turn(stream, work, &passage)) return passage;
    if (cut_ && t_entered == 0 && cut_->closed()) {
      // It wants no turn meanwhile, but its memory back, where that is why it stands still.
      const MemoryAllowance::Waiting waiting(turns_->memory());
      cut_->stand_back();
    }
  }
  if (until_mark_.load(std::memory_order_relaxed) == 0 || !open_.load(std::memory_order_relaxed)) {
    std::lock_guard lock(mutex_);
    if (lead_is_used_up()) collect(true);
    begin_batch(stream);
  }
  return {this, stream, work, false};
}

// An interval runs from before the first of a batch of launches on one stream to the first of the
// next, or until the client is quiet. What other streams do meanwhile lies within it, or is counted
// with what follows.
void Gate::begin_batch(CUstream stream) {
  const bool goes_on = stream == stream_;
  const bool chained = open_.load(std::memory_order_relaxed);
  finish_interval(goes_on);
  collect(false);
  until_mark_.store(batch(), std::memory_order_relaxed);
  open_.store(true, std::memory_order_relaxed);
  chained_ = chained;
  stream_ = stream;
  if (begin_) return;
  begin_ = event();
  if (begin_ && driver_.cuEventRecord(begin_, stream) != CUDA_SUCCESS) spare_begin();
  if (begin_ && busy_since_ == 0) busy_since_ = now_ns();
}

CUresult Gate::issued(CUstream stream, uint32_t launches) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  launches_.store(launches_.load(kRelaxed) + launches, kRelaxed);
  since_mark_.store(since_mark_.load(kRelaxed) + launches, kRelaxed);
  if (last_.load(kRelaxed) != stream) {
    std::lock_guard lock(mutex_);
    note(stream);
  }
  const uint32_t left = until_mark_.load(kRelaxed);
  until_mark_.store(left > launches ? left - launches : 0, kRelaxed);
  return CUDA_SUCCESS;
}

// Its end is the beginning of the next one where that `goes_on` on the same stream.
void Gate::finish_interval(bool goes_on) {
  if (!begin_) return;
  CUevent end = event();
  if (!end || driver_.cuEventRecord(end, stream_) != CUDA_SUCCESS) {
    spare_begin();
    spare(end);
    return;
  }
  if (under_way_.empty()) front_since_ = now_ns();
  const uint32_t launches = since_mark_.exchange(0, std::memory_order_relaxed);
  under_way_.push_back({begin_, end, stream_, chained_, launches, goes_on, gap_, call_ns_,
                        since_mark_ns_, !unknown_ && !collective_ && since_mark_ns_ > 0,
                        std::exchange(parts_, {})});
  lead_ += launches;
  under_way_ns_ += std::exchange(since_mark_ns_, 0.0f);
  unknown_ = collective_ = false;
  begin_ = goes_on ? end : nullptr;
  gap_ = Gap::kUnknown;
  call_ns_ = 0;
  may_go_on_ = true;
  at_mark_ = false;
  last_turn_ = turn_;
}

// The end of what lies on a stream of which no interval tells.
void Gate::mark(CUstream stream, bool chained) {
  may_go_on_ = false;
  CUevent end = event();
  if (end && driver_.cuEventRecord(end, stream) == CUDA_SUCCESS)
    under_way_.push_back({nullptr, end, stream, chained, 0, false, Gap::kUnknown, 0, 0, false, {}});
  else
    spare(end);
}

void Gate::note(CUstream stream) {
  last_.store(stream, std::memory_order_relaxed);
  if (std::ranges::find(unmarked_, stream) == unmarked_.end()) unmarked_.push_back(stream);
}

// All that the GPU has is marked: what comes now is of another period.
void Gate::end_period() {
  finish_interval(false);
  for (CUstream stream : unmarked_)
    if (stream != stream_) mark(stream, true);
  unmarked_.clear();
  last_ = nullptr;
  until_mark_ = 0;
  open_ = false;
}

// From here on each launch is in an interval of its own stream.
void Gate::settle() {
  if (!unmarked_.empty() || open_.load(std::memory_order_relaxed)) end_period();
}

// Who has the lock waits for the GPU or launches: then it is not quiet.
void Gate::quiet() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || entering_ > 0) return;
  at_mark_ = false;
  if (!begin_ && unmarked_.empty()) return;
  end_period();
  collect(false);
}

bool Gate::look() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return true;
  const uint32_t launched = since_mark_.load(std::memory_order_relaxed);
  if (begin_ && launched == looked_ && entering_ == 0) end_period();
  looked_ = launched;
  collect(false);
  return begin_ || !under_way_.empty() || !unmarked_.empty();
}

float Gate::left(int64_t now) const {
  float done = 0;
  if (!under_way_.empty())
    done = std::clamp(static_cast<float>(now - front_since_), 0.0f, under_way_.front().ns);
  return under_way_ns_ + since_mark_ns_ - done;
}

bool Gate::may_begin(uint32_t turn, int64_t until, float takes, int64_t now) {
  if (turn_ != turn) turn_ = turn, begun_ = 0;
  if (until == arbiter::kUntilWanted) return true;
  // What is longer than a turn begins all the same, and is paid for later.
  if (begun_ == 0) return now < until;
  return static_cast<float>(until - now) >= left(now) + takes / 2;
}

bool Gate::lead_is_long(float takes, int64_t now) {
  const bool many = under_way_.size() > 1 && under_way_ns_ + since_mark_ns_ > 2 * kAheadNs;
  const float before = left(now);
  return many || (before > kNearNs && before + takes > kAheadNs);
}

// Nothing that passed before is still under way on this stream.
bool Gate::is_clean(CUstream stream) const {
  if (begin_ && stream == stream_) return false;
  return under_way_.empty() || stream != stream_;
}

// Where the GPU comes to it from the one before, without a gap, both have one event: events between
// kernels cost it about a microsecond each.
void Gate::begin_interval(CUstream stream) {
  if (begin_ && stream_ == stream) return;
  chained_ = false;
  const bool follows = !begin_ && stream_ == stream && may_go_on_ && last_turn_ == turn_;
  const Gap gap = !follows ? Gap::kUnknown : at_mark_ ? Gap::kAtMark : Gap::kAtPause;
  // With no more ahead than what has just been marked the GPU may be done with it, and be idle: it
  // tells later than the next launch comes. An event of the next one's own tells how long.
  const bool thin =
      gap == Gap::kAtMark && under_way_.size() == 1 && under_way_.back().parts.size() > 1;
  if (stream_ == stream && may_go_on_ && !under_way_.empty() && !thin) {
    begin_ = under_way_.back().end;
    under_way_.back().end_begins_next = true;
    return;
  }
  finish_interval(false);
  stream_ = stream;
  gap_ = gap;
  begin_ = event();
  if (begin_ && driver_.cuEventRecord(begin_, stream) != CUDA_SUCCESS) spare_begin();
  begun_at_ = now_ns();
  if (begin_ && busy_since_ == 0) busy_since_ = begun_at_;
}

// False: the session stands still, and this thread has been counted as kept back, turn or not.
bool Gate::wait_for_turn() {
  if (!cut_) return turns_->wait_for_turn(), true;
  if (cut_->closed()) return false;
  {
    const Cut::KeptBack kept(*cut_);
    turns_->wait_for_turn();
  }
  return !cut_->closed();
}

bool Gate::stands(int64_t now) const {
  return !under_way_.empty() &&
         now - front_since_ > kStandsNs + static_cast<int64_t>(under_way_.front().ns);
}

bool Gate::pass_in_turn(CUstream stream, const Work& work, Passage* passage) {
  const TurnKeeper::Waiting waiting(*turns_);
  const int64_t came = now_ns();
  std::unique_lock lock(mutex_);
  for (;; lock.lock()) {
    if (turns_->free() || held_.load(std::memory_order_relaxed)) return false;
    const TurnKeeper::Turn turn = turns_->current();
    settle();
    collect(false);
    const int64_t now = now_ns();
    const float takes = expected(work);
    if (t_entered > 0 || (now - came > kStandsNs && stands(now))) break;
    // Peers spin for what it has yet to issue.
    const bool behind = !turn.is() && turns_->behind();
    if (!turn.is() && !behind) {
      // What this would launch may be what the rest waits for.
      if (turns_->stuck_since() && is_clean(stream)) break;
      lock.unlock();
      if (!wait_for_turn()) return false;
    } else if (!behind && !may_begin(turn.number, turn.until, takes, now)) {
      lock.unlock();
      turns_->end_turn(turn.number);
    } else if (lead_is_long(takes, now)) {
      const float rest = left(now);
      lock.unlock();
      if (is_worth_a_nap(rest))
        nap(kNapNs);
      else
        for (int i = 0; i < 50; ++i) channel::cpu_relax();
    } else {
      break;
    }
  }
  begin_interval(stream);
  ++entering_;
  ++t_entered;
  ++begun_;
  *passage = {this, stream, work, true};
  return true;
}

CUresult Gate::issued_in_turn(CUstream stream, const Work& work) {
  std::lock_guard lock(mutex_);
  --entering_;
  --t_entered;
  const uint16_t slot = slot_of(work.kind, kKinds);
  const float takes = expected(work);
  unknown_ |= kind_ns_[slot] == 0;
  collective_ |= work.collective;
  if (parts_.empty() && gap_ != Gap::kUnknown) call_ns_ = static_cast<float>(now_ns() - begun_at_);
  parts_.push_back({slot, takes});
  since_mark_ns_ += takes;
  const uint32_t launches =
      since_mark_.fetch_add(work.launches, std::memory_order_relaxed) + work.launches;
  launches_.fetch_add(work.launches, std::memory_order_relaxed);
  // Two threads may issue at once, each on a stream of its own.
  if (stream != stream_) {
    mark(stream, false);
  } else if (unknown_ || since_mark_ns_ >= kMarkNs || launches >= kMostLaunches ||
             parts_.size() >= kMostParts) {
    finish_interval(false);
    at_mark_ = true;
    collect(false);
  }
  return CUDA_SUCCESS;
}

void Gate::not_issued() {
  std::lock_guard lock(mutex_);
  --entering_;
  --t_entered;
}

bool Gate::settled_and_done() {
  settle();
  finish_interval(false);
  collect(false);
  return under_way_.empty();
}

bool Gate::drained() {
  driver_.cuCtxSetCurrent(context_);
  std::lock_guard lock(mutex_);
  return entering_ == 0 && settled_and_done();
}

bool Gate::almost_drained(int64_t within, int64_t* left) {
  driver_.cuCtxSetCurrent(context_);
  std::lock_guard lock(mutex_);
  *left = 0;
  if (entering_ > 0) return false;
  if (settled_and_done()) return true;
  const int64_t now = now_ns();
  *left = static_cast<int64_t>(this->left(now));
  // The oldest may have been expected to be over by now: then nothing is known.
  const bool late = static_cast<float>(now - front_since_) > under_way_.front().ns;
  return !late && *left <= within && std::ranges::all_of(under_way_, &Interval::known);
}

int64_t Gate::left_ns() {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(std::max(0.0f, left(now_ns())));
}

void Gate::followed(CUstream stream) {
  if (!turns_ || turns_->free()) return;
  std::lock_guard lock(mutex_);
  if (begin_ && stream == stream_ && entering_ == 0) finish_interval(false);
  if (stream == stream_) may_go_on_ = false;
}

void Gate::leave(CUstream stream) {
  std::lock_guard lock(mutex_);
  if (stream == stream_) {
    finish_interval(false);
    stream_ = nullptr;
    may_go_on_ = false;
    open_ = false;
  }
  if (const auto at = std::ranges::find(unmarked_, stream); at != unmarked_.end()) {
    unmarked_.erase(at);
    last_ = nullptr;
    mark(stream, true);
  }
}

void Gate::hold() { held_ = true; }

void Gate::release() {
  {
    std::lock_guard lock(held_mutex_);
    held_ = false;
  }
  released_.notify_all();
}

}  // namespace sluice::worker
