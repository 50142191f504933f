// SPDX-License-Identifier: Apache-2.0
// The executor's gate (rule 11), one for each vGPU: whatever computes on the GPU passes it. It
// keeps a bounded lead of launches over what the GPU has finished, measures the GPU time that the
// session used, and can be held.
//
// What is measured is the time from the first launch until all of it is done, pauses of the client
// left out: its threads say when it has gone quiet. So a pause costs two events, a launch none.
//
// Where others have a share of the GPU (turn_keeper.h) what passes has its turn, and the lead is
// bounded by time: by what functions, library calls and graphs took before, which is learned from
// events around some of them. So a turn is left within a millisecond and what takes longer by
// itself.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "channel/futex.h"
#include "worker/cut.h"
#include "worker/driver.h"

namespace sluice::worker {

class TurnKeeper;

class Gate {
 public:
  // Not in a turn: `turns` is null. `context` is the GPU's. Who waits for a turn stands back at
  // `cut`.
  explicit Gate(const Driver& driver, CUcontext context = nullptr, TurnKeeper* turns = nullptr,
                Cut* cut = nullptr)
      : driver_(driver), context_(context), turns_(turns), cut_(cut) {}

  // How it waits for so many nanoseconds: a GPU that has a clock of its own has another way.
  static inline void (*nap)(uint64_t) = channel::sleep_ns;

  // What is about to be issued: `kind` is equal for what likely takes as long, and `launches` how
  // many it stands for. A collective takes as long as its peers do: what it took before says
  // nothing of when it is done.
  struct Work {
    uint64_t kind = 0;
    uint32_t launches = 1;
    bool collective = false;
  };

  // From passing to having been issued. Without issued() nothing was.
  class Passage {
   public:
    Passage() = default;
    Passage(Passage&& other) noexcept { *this = std::move(other); }
    Passage& operator=(Passage&& other) noexcept {
      std::swap(gate_, other.gate_);
      stream_ = other.stream_, work_ = other.work_, in_turn_ = other.in_turn_;
      return *this;
    }
    ~Passage() {
      if (gate_ && in_turn_) gate_->not_issued();
    }
    CUresult issued() {
      Gate* gate = std::exchange(gate_, nullptr);
      if (!gate) return CUDA_SUCCESS;
      return in_turn_ ? gate->issued_in_turn(stream_, work_)
                      : gate->issued(stream_, work_.launches);
    }

   private:
    friend Gate;
    Passage(Gate* gate, CUstream stream, const Work& work, bool in_turn)
        : gate_(gate), stream_(stream), work_(work), in_turn_(in_turn) {}
    Gate* gate_ = nullptr;
    CUstream stream_ = nullptr;
    Work work_;
    bool in_turn_ = false;
  };

  // Waits while the gate is held, the lead is used up, or it is another's turn. Not for a stream
  // that captures: what is captured computes nothing.
  [[nodiscard]] Passage pass(CUstream stream, const Work& work);

  // Something that does not pass the gate follows on the stream, such as a copy by the copy engines
  // or a wait for another stream: what it takes is not the GPU's time.
  void followed(CUstream stream);
  // The stream is about to be destroyed, or to capture.
  void leave(CUstream stream);
  // Nothing comes for a while, so that what the GPU has until then is all: what it does not have is
  // no time of the session's. By a thread that has the GPU's context; waits for nobody.
  void quiet();
  // Every now and then while there is work: counts what is done, and notices who launches nothing
  // and is not quiet either. As quiet(). False: nothing is left to be counted.
  bool look();
  // Whether quiet() has anything to do.
  bool measures() const { return busy_since_.load(std::memory_order_relaxed) != 0; }

  void hold();
  void release();
  bool held() const { return held_.load(std::memory_order_relaxed); }
  // The GPU's time, what is under way included. It never falls, and asks neither GPU nor lock.
  double gpu_busy_ms();

  // For the keeper of turns, from its thread.
  uint64_t launches() const { return launches_.load(std::memory_order_relaxed); }
  // Of its turns: how long it was looked at whether the GPU had work of this session's, and for how
  // much of that it had none, as the next launch came late. Learned from the gaps between intervals
  // and taken to be alike between their launches, so it costs no event.
  uint64_t watched_ns() const { return watched_ns_.load(std::memory_order_relaxed); }
  uint64_t dry_ns() const { return dry_ns_.load(std::memory_order_relaxed); }
  bool drained();  // all that has passed is done; it is not waited for
  // Or is known to be within so many nanoseconds: then `left` says in how many.
  bool almost_drained(int64_t within, int64_t* left);
  int64_t left_ns();  // what is not, by what it took before

 private:
  static constexpr uint32_t kLead = 1024;  // launches
  static constexpr size_t kLeadMarks = 4;  // at least as many batches, however large
  // Launches between two marks: few when they take long, so that the lead is known in time.
  static constexpr uint32_t kMinBatch = 64, kMaxBatch = 256;
  static constexpr float kShortMs = 0.5, kLongMs = 2;
  static constexpr size_t kKinds = 4096;  // that are told apart
  static constexpr size_t kMostParts = 64;

  // What is known of the time since the interval before, if that was of the same turn and stream:
  // the GPU had come to its end, which a mark or a pause of the client had set.
  enum class Gap : uint8_t { kUnknown, kAtMark, kAtPause };
  // Of an interval between two marks: what was issued, and how long that was expected to take.
  struct Part {
    uint16_t kind;
    float ns;
  };
  struct Interval {
    CUevent begin, end;  // begin: null where its time says nothing
    CUstream stream;
    bool chained;  // the GPU had work all the time since the end of the one before
    uint32_t launches;
    bool end_begins_next;
    Gap gap;        // before it
    float call_ns;  // that its first call took to be issued, if there is such a gap
    float ns;       // expected
    bool known;     // by what all of it took before
    std::vector<Part> parts;
  };

  bool lead_is_used_up() const;
  uint32_t batch() const;
  void wait_while_held();
  CUresult issued(CUstream stream, uint32_t launches);
  void begin_batch(CUstream stream);
  // False: it is to be tried anew, as turns ended, the gate is held or the session stands still.
  bool pass_in_turn(CUstream stream, const Work& work, Passage* passage);
  CUresult issued_in_turn(CUstream stream, const Work& work);
  void not_issued();
  bool wait_for_turn();

  // What follows is under the mutex.
  bool may_begin(uint32_t turn, int64_t until, float takes, int64_t now);
  bool lead_is_long(float takes, int64_t now);
  bool is_clean(CUstream stream) const;
  bool stands(int64_t now) const;
  void begin_interval(CUstream stream);
  CUevent event();
  void spare(CUevent event);
  void adapt(float ms);
  void learn(const Interval& interval, float ns);
  float expected(const Work& work) const;
  float left(int64_t now) const;
  void finished(const Interval& interval);
  void watch(const Interval& interval, float ns);
  void retire(const Interval& interval);
  void spare_begin();
  void collect(bool wait_for_oldest);
  void finish_interval(bool goes_on);
  void mark(CUstream stream, bool chained);
  void note(CUstream stream);
  void end_period();
  void settle();
  bool settled_and_done();

  const Driver& driver_;
  const CUcontext context_;
  TurnKeeper* const turns_;
  Cut* const cut_;
  std::atomic<bool> held_{false};
  std::mutex held_mutex_;  // of released_ alone: release() waits for nobody who waits for the GPU
  std::condition_variable released_;
  std::atomic<double> busy_ms_{0}, shown_ms_{0};  // read without the lock
  std::atomic<int64_t> busy_since_{0};  // up to when that counts what is under way; 0: nothing is
  std::atomic<uint64_t> launches_{0};
  std::atomic<uint64_t> watched_ns_{0}, dry_ns_{0};
  // Written without the lock on the way of a launch that nobody else has to wait for.
  std::atomic<uint32_t> until_mark_{0};  // launches that may still come before the next
  std::atomic<uint32_t> since_mark_{0};
  std::atomic<bool> open_{false};  // there is an interval that they belong to
  std::atomic<CUstream> last_{nullptr};

  std::mutex mutex_;  // what follows
  std::deque<Interval> under_way_;
  std::deque<CUevent> spare_;
  CUevent begin_ = nullptr;  // of the interval that has not ended
  bool chained_ = false;     // of that one
  CUstream stream_ = nullptr;
  CUevent counted_ = nullptr;  // up to which the GPU's time is counted
  CUstream counted_on_ = nullptr;
  bool counted_begins_ = false;  // an interval that is not counted begins with it
  uint32_t looked_ = 0;          // since_mark_ as look() last saw it
  bool may_go_on_ = false;  // the last interval of stream_ is the last of all, and nothing followed
  std::vector<CUstream> unmarked_;  // streams besides, with work that no mark ends
  uint32_t batch_ = kMinBatch;
  uint64_t lead_ = 0;  // launches of the intervals under way
  // In turns.
  std::vector<Part> parts_;
  float since_mark_ns_ = 0;
  bool unknown_ = false;     // there is something among them of which it is not known what it takes
  bool collective_ = false;  // or that waits for peers
  float under_way_ns_ = 0;   // expected, of all of them
  int64_t front_since_ = 0;  // since when the GPU can have been at the oldest of them
  Gap gap_ = Gap::kUnknown;  // before the interval that has not ended
  int64_t begun_at_ = 0;     // when that one's event was recorded
  float call_ns_ = 0;        // as Interval's
  bool at_mark_ = false;     // the last one ended by a mark
  uint32_t last_turn_ = 0;   // which that was of
  uint32_t turn_ = 0, begun_ = 0;        // passed in this turn
  int entering_ = 0;                     // have passed and are not issued
  float launch_ns_ = 20'000;             // of all kinds
  std::array<float, kKinds> kind_ns_{};  // 0: not known
};

}  // namespace sluice::worker
