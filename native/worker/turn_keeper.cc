// SPDX-License-Identifier: Apache-2.0
#include "worker/turn_keeper.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "channel/futex.h"
#include "channel/thread.h"
#include "process/log.h"
#include "worker/gate.h"

namespace sluice::worker {

using arbiter::kAlone;
using arbiter::kNoTurn;
using arbiter::kTogether;
using arbiter::kUntilWanted;

namespace {

constexpr int64_t kForEver = 0;  // of futex_wait
// How often it is looked whether a turn that others wait for is used: who has not launched anything
// for so long, and whose GPU is idle, has nothing to do.
constexpr int64_t kLookNs = 100'000;
constexpr int64_t kWaitNs = 20'000'000;  // between two looks at whether the arbiter lives
// While tenants run at once the arbiter reads every 100 ms how each gets on.
constexpr int64_t kPublishNs = 20'000'000, kIdlePublishNs = 100'000'000;
// Draining: what is almost done is looked at all the time, the rest now and then.
constexpr int64_t kAlmostNs = 100'000, kRestNs = 1'000'000;
constexpr int64_t kStuckNs = 5'000'000;

int64_t now_ns() { return static_cast<int64_t>(channel::now_ns()); }

// Between two looks at what `left` nanoseconds are left of, as far as that is known.
void pause(int64_t left, int64_t waited) {
  if (left > kAlmostNs || waited > 2 * kRestNs)
    channel::sleep_ns(static_cast<uint64_t>(std::clamp(left / 2, kLookNs / 2, kRestNs)));
  else
    for (int i = 0; i < 50; ++i) channel::cpu_relax();
}

}  // namespace

std::unique_ptr<TurnKeeper> TurnKeeper::open(int page, int bell, std::string* error,
                                             int64_t hand_over_ns) {
  struct stat about {};
  void* at = MAP_FAILED;
  if (fstat(page, &about) == 0 && about.st_size == static_cast<off_t>(arbiter::kTurnPageBytes))
    at = mmap(nullptr, arbiter::kTurnPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
  if (at == MAP_FAILED || static_cast<arbiter::TurnPage*>(at)->magic != wire::kTurnPageMagic) {
    *error = "the page of its turns is none";
    return nullptr;
  }
  return std::unique_ptr<TurnKeeper>(
      new TurnKeeper(page, bell, static_cast<arbiter::TurnPage*>(at), hand_over_ns));
}

TurnKeeper::TurnKeeper(int page_fd, int bell_fd, arbiter::TurnPage* page, int64_t hand_over_ns)
    : page_fd_(page_fd),
      bell_fd_(bell_fd),
      hand_over_ns_(hand_over_ns),
      page_(page),
      memory_(page->memory, [this] { ring(); }),
      orphaned_(page->until == kNoTurn) {
  judge_arbiter(now_ns());
}

TurnKeeper::~TurnKeeper() {
  munmap(page_, arbiter::kTurnPageBytes);
  ::close(page_fd_);
  ::close(bell_fd_);
}

bool TurnKeeper::start() {
  return channel::start_detached("turns", [this] { run(); });
}

void TurnKeeper::ring() {
  const uint64_t one = 1;
  // Full is rung as well, and who does not listen is not there.
  if (write(bell_fd_, &one, sizeof one) < 0 && errno != EAGAIN)
    process::log_error(std::string("the arbiter's bell: ") + std::strerror(errno));
}

// A new turn begins from none, so a number that is newer than `until` comes with none.
TurnKeeper::Turn TurnKeeper::current() const {
  const int64_t until = page_->until.load(std::memory_order_acquire);
  const uint32_t number = page_->turn.load(std::memory_order_acquire);
  if (until == kNoTurn || number == page_->returned.load(std::memory_order_relaxed) ||
      number == ending_.load(std::memory_order_acquire))
    return {number, kNoTurn};
  return {number, until};
}

bool TurnKeeper::behind() const {
  const uint32_t number = ending_.load(std::memory_order_acquire);
  if (number == 0 || page_->cut_turn.load(std::memory_order_acquire) != number ||
      orphaned_.load(std::memory_order_relaxed))
    return false;
  const size_t used = std::min<size_t>(page_->places, arbiter::kPlaces);
  for (size_t i = 0; i < used; ++i) {
    const arbiter::Issued& one = page_->issued[i];
    if (arbiter::is_behind(page_->cut[i].load(std::memory_order_relaxed),
                           one.communicator.load(std::memory_order_relaxed),
                           one.count.load(std::memory_order_relaxed)))
      return true;
  }
  return false;
}

// The arbiter ends a turn and reads counts; this counts and looks whether the turn has ended: one
// of the two sees what the other wrote.
void TurnKeeper::counted() {
  const int64_t until = page_->until.load(std::memory_order_seq_cst);
  if (until < kUntilWanted && (until == kNoTurn || until <= now_ns() || ending_ != 0)) ring();
}

// Whose page says that it is alone needs no arbiter; else one that lives has written lately.
void TurnKeeper::judge_arbiter(int64_t now) {
  const bool lives = page_->until.load(std::memory_order_acquire) == kAlone ||
                     now - page_->beat.load(std::memory_order_relaxed) < arbiter::kDeadNs;
  if (lives == orphaned_.load(std::memory_order_relaxed)) orphaned_ = !lives;
}

void TurnKeeper::wait_for_turn() {
  const uint32_t changes = page_->changes.load(std::memory_order_seq_cst);
  {
    std::lock_guard lock(asking_);
    if (!left_ && !page_->wants.exchange(1)) ring();
  }
  if (current().is() || free() || behind()) return;
  channel::futex_wait(page_->changes, changes, kWaitNs / (stuck_since() ? 10 : 1));
  judge_arbiter(now_ns());
}

// The keeper's own thread looks every now and then, so that it matters little whether it is awake.
void TurnKeeper::end_turn(uint32_t number) {
  ending_.store(number, std::memory_order_release);
  channel::futex_wake(page_->changes, 1 << 20);
}

bool TurnKeeper::idle(int64_t now) {
  uint64_t launches = 0;
  for (Gate* gate : gates_) launches += gate->launches();
  const bool launched = launches != launches_;
  launches_ = launches;
  if (!launched && waiting_ == 0 &&
      std::ranges::all_of(gates_, [](Gate* gate) { return gate->drained(); }))
    return true;
  used_at_ = now;
  return false;
}

// Nothing of it waits for anybody; of the GPU's events only those that others have collected count.
void TurnKeeper::publish() {
  uint64_t launches = 0, watched = unused_ns_, dry = unused_ns_;
  double busy_ms = 0;
  for (Gate* gate : gates_) {
    launches += gate->launches();
    busy_ms += gate->gpu_busy_ms();
    watched += gate->watched_ns();
    dry += gate->dry_ns();
  }
  page_->launches.store(launches, std::memory_order_relaxed);
  page_->busy.store(static_cast<uint64_t>(busy_ms * 1e6), std::memory_order_relaxed);
  page_->watched.store(watched, std::memory_order_relaxed);
  page_->dry.store(dry, std::memory_order_relaxed);
}

// Nothing has come since the last look that saw it used, or for so long: the GPU was idle.
void TurnKeeper::give_back_unused(uint32_t number, int64_t now) {
  unused_ns_ += static_cast<uint64_t>(std::clamp<int64_t>(now - used_at_, 0, kLookNs));
  give_back(number);
}

// Before the last of it is done, so that the next worker's follows it without a gap.
void TurnKeeper::give_back(uint32_t number) {
  ending_.store(number, std::memory_order_release);
  int64_t began = now_ns();
  int64_t left;
  for (;;) {
    bool almost = true;
    left = 0;
    for (Gate* gate : gates_) {
      int64_t of_this = 0;
      almost &= gate->almost_drained(hand_over_ns_, &of_this);
      left = std::max(left, of_this);
    }
    const int64_t now = now_ns();
    if (behind()) {  // its clients have yet to bring what others wait for
      began = now;
      judge_arbiter(now);
    } else if (almost) {
      break;
    }
    if (stuck_since_ == 0 && now - began > kStuckNs && left == 0) stuck_since_ = now;
    pause(left, now - began);
  }
  return_turn(number);
  if (left > 0) follow_rest(number, left);
}

void TurnKeeper::return_turn(uint32_t number) {
  std::lock_guard lock(asking_);
  publish();
  page_->wants.store(!left_ && waiting_ > 0);
  page_->returned.store(number, std::memory_order_release);
  stuck_since_ = 0;
  ending_ = 0;
  ring();
}

// What took longer than expected ran in somebody else's turn, and is paid for.
void TurnKeeper::follow_rest(uint32_t number, int64_t expected) {
  const int64_t began = now_ns();
  int64_t now = began;
  while (page_->turn == number && !std::ranges::all_of(gates_, &Gate::drained)) {
    pause(expected - (now - began), now - began);
    now = now_ns();
  }
  if (const int64_t over = now - began - expected; over > 0)
    page_->overran.fetch_add(static_cast<uint64_t>(over));
}

void TurnKeeper::leave() {
  std::lock_guard lock(asking_);
  left_ = true;
  page_->wants = 0;
  page_->returned.store(page_->turn, std::memory_order_release);
  ring();
}

void TurnKeeper::look(uint32_t changes) {
  const int64_t now = now_ns();
  const int64_t until = page_->until.load(std::memory_order_acquire);
  const uint32_t number = page_->turn.load(std::memory_order_acquire);
  // One that was stopped and lost its turn for it is there again.
  if (page_->seen.exchange(number) != number && until == kNoTurn && waiting_ > 0) ring();
  judge_arbiter(now);
  if (orphaned_) return channel::futex_wait(page_->changes, changes, kWaitNs);
  if (until == kTogether) {
    const uint64_t before = page_->busy.load(std::memory_order_relaxed);
    publish();
    const bool works = page_->busy.load(std::memory_order_relaxed) != before;
    return channel::futex_wait(page_->changes, changes, works ? kPublishNs : kIdlePublishNs);
  }
  if (until == kNoTurn || until >= kUntilWanted || page_->returned == number)
    return channel::futex_wait(page_->changes, changes, kForEver);
  if (now >= until || ending_ == number) return give_back(number);
  if (idle(now)) return give_back_unused(number, now);
  const auto rest = static_cast<uint64_t>(std::min(kLookNs, until - now));
  channel::futex_wait(page_->changes, changes, rest);
}

void TurnKeeper::run() {
  prctl(PR_SET_TIMERSLACK, 1000);
  for (;;) look(page_->changes.load(std::memory_order_seq_cst));
}

}  // namespace sluice::worker
