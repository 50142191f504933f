// SPDX-License-Identifier: Apache-2.0
// A gate in turns: the test is the arbiter, and a GPU that does what it is told to.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "arbiter/turn_page.h"
#include "channel/futex.h"
#include "worker/gate.h"
#include "worker/turn_keeper.h"

namespace sluice::worker::turns {

using namespace std::chrono_literals;
using arbiter::kAlone;
using arbiter::kNoTurn;
using arbiter::kTogether;
using arbiter::kUntilWanted;

// Streams whose work is done when the test says so. An event is where its stream was.
class ToldGpu {
 public:
  ToldGpu() {
    driver.cuCtxSetCurrent = [](CUcontext) { return CUDA_SUCCESS; };
    driver.cuEventCreate = [](CUevent* e, unsigned) {
      *e = reinterpret_cast<CUevent>(++get().events_);
      return CUDA_SUCCESS;
    };
    driver.cuEventRecord = [](CUevent e, CUstream s) { return get().record(e, s); };
    driver.cuEventQuery = [](CUevent e) { return get().query(e); };
    driver.cuEventSynchronize = [](CUevent e) {
      while (get().query(e) != CUDA_SUCCESS) std::this_thread::sleep_for(1ms);
      return CUDA_SUCCESS;
    };
    driver.cuEventElapsedTime_v2 = [](float* ms, CUevent begin, CUevent end) {
      const float launches = get().between(begin, end);
      *ms = launches > 0 ? get().kernel_ms * launches : get().gap_ms.load();
      return CUDA_SUCCESS;
    };
    current_ = this;
  }
  void launch(CUstream s) {
    std::lock_guard lock(mutex_);
    ++issued_[s];
  }
  void finish(CUstream s) {
    std::lock_guard lock(mutex_);
    done_[s] = issued_[s];
  }
  uint64_t issued(CUstream s) {
    std::lock_guard lock(mutex_);
    return issued_[s];
  }

  Driver driver;
  std::atomic<bool> instant{false};  // work is done as it is issued
  std::atomic<float> kernel_ms{0.1f};
  std::atomic<float> gap_ms{0};  // between two events without work between them

 private:
  float between(CUevent begin, CUevent end) {
    std::lock_guard lock(mutex_);
    return static_cast<float>(at_[end].second - at_[begin].second);
  }
  static ToldGpu& get() { return *current_.load(); }
  CUresult record(CUevent e, CUstream s) {
    std::lock_guard lock(mutex_);
    at_[e] = {s, issued_[s]};
    return CUDA_SUCCESS;
  }
  CUresult query(CUevent e) {
    std::lock_guard lock(mutex_);
    const auto [stream, place] = at_[e];
    return instant || done_[stream] >= place ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  }
  static inline std::atomic<ToldGpu*> current_{nullptr};
  std::atomic<uintptr_t> events_{0};
  std::mutex mutex_;
  std::map<CUstream, uint64_t> issued_, done_;
  std::map<CUevent, std::pair<CUstream, uint64_t>> at_;
};

inline int64_t now() { return static_cast<int64_t>(channel::now_ns()); }
inline CUstream stream(uintptr_t n) { return reinterpret_cast<CUstream>(n + 16); }

// Never taken down: the keeper's thread lives as long as the process, as a worker's does.
struct Rig {
  ToldGpu gpu;
  arbiter::TurnPage* page = nullptr;
  int bell = -1;
  Cut cut;
  std::unique_ptr<TurnKeeper> keeper;
  std::unique_ptr<Gate> gate;

  // `until`: what the page says at first.
  explicit Rig(int64_t until = kNoTurn, int64_t hand_over_ns = 0) {
    const int fd = memfd_create("turns", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(fd, arbiter::kTurnPageBytes), 0);
    page = static_cast<arbiter::TurnPage*>(
        mmap(nullptr, arbiter::kTurnPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    page->magic = wire::kTurnPageMagic;
    page->turn = until == kNoTurn ? 0 : 1;
    page->until = until;
    beat();
    bell = eventfd(0, EFD_NONBLOCK);
    std::string error;
    keeper = TurnKeeper::open(fd, dup(bell), &error, hand_over_ns);
    EXPECT_TRUE(keeper) << error;
    gate = std::make_unique<Gate>(gpu.driver, nullptr, keeper.get(), &cut);
    keeper->add(gate.get());
    EXPECT_TRUE(keeper->start());
  }
  void beat() { page->beat = now() + 3'600'000'000'000; }  // alive for the whole test
  void say(int64_t until) {
    page->until = until;
    ++page->changes;
    channel::futex_wake(page->changes, 100);
  }
  void give(int64_t until) {
    ++page->turn;
    say(until);
  }
  bool rang() {
    uint64_t n;
    return read(bell, &n, sizeof n) == sizeof n;
  }
  // `thinks`: as a library's call does before it launches something.
  void launch(CUstream s, uint64_t kind = 7, std::chrono::nanoseconds thinks = 0ns) {
    auto passage = gate->pass(s, {kind});
    if (thinks > 0ns) channel::sleep_ns(static_cast<uint64_t>(thinks.count()));
    gpu.launch(s);
    passage.issued();
  }
  bool returned() const { return page->returned == page->turn; }
};

template <class F>
bool soon(F&& what) {
  for (int i = 0; i < 20'000; ++i) {
    if (what()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}
// What must not happen has had the time to.
inline void a_while() { std::this_thread::sleep_for(50ms); }

}  // namespace sluice::worker::turns
