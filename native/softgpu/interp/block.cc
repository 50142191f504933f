// SPDX-License-Identifier: Apache-2.0
#include "softgpu/interp/block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <thread>

#include "channel/futex.h"
#include "softgpu/align.h"

namespace sluice::softgpu {
namespace {

// Alignment of the shared window: what the largest .align of a shared variable may rely on.
constexpr uintptr_t kSharedAlign = 1024;
// A thread keeps this many blocks going when they wait for something outside of them.
constexpr size_t kMostResident = 32;
constexpr uint32_t kPatientSlices = 64;
// What is shorter than a thread of the host takes to fall asleep and wake is no nap; a device, too,
// sleeps for a millisecond at most.
constexpr uint32_t kLeastNapNs = 10'000, kMostNapNs = 1'000'000;

}  // namespace

void PrintfSink::append(const std::string& text) {
  std::lock_guard lock(mutex_);
  text_ += text;
  pending_.store(true, std::memory_order_release);
}

void PrintfSink::flush() {
  if (!pending_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex_);
  pending_.store(false, std::memory_order_release);
  std::fwrite(text_.data(), 1, text_.size(), stdout);
  std::fflush(stdout);
  text_.clear();
}

void LaunchState::report(Fault why, const std::string& text) {
  std::lock_guard lock(fault_mutex);
  if (fault == Fault::kNone) {
    fault = why;
    fault_text = text;
  }
  stop.store(true);
}

BlockState::BlockState(LaunchState& launch) : launch_(launch) {
  const Function& kernel = *launch.kernel;
  uint32_t threads = launch.threads();
  uint32_t warps = (threads + kWarpSize - 1) / kWarpSize;
  warps_.resize(warps);
  lane_ids_.resize(warps);
  for (uint32_t linear = 0; linear < warps * kWarpSize; ++linear) {
    LaneIds& ids = lane_ids_[linear / kWarpSize];
    uint32_t lane = linear % kWarpSize;
    ids.tid[0][lane] = linear % launch.block[0];
    ids.tid[1][lane] = linear / launch.block[0] % launch.block[1];
    ids.tid[2][lane] = linear / launch.block[0] / launch.block[1];
  }
  dynamic_offset_ = static_cast<uint32_t>(align_up(kernel.static_shared, 16));
  shared_size_ =
      launch.dynamic_shared ? dynamic_offset_ + launch.dynamic_shared : kernel.static_shared;
  shared_storage_.reset(new uint8_t[shared_size_ + kSharedAlign]());
  uintptr_t start = reinterpret_cast<uintptr_t>(shared_storage_.get());
  shared_ =
      shared_storage_.get() + ((start + kSharedAlign - 1) / kSharedAlign * kSharedAlign - start);
  local_stride_ = kernel.local_bytes;
  if (kernel.has_calls) local_stride_ += static_cast<uint32_t>(launch.stack_limit);
  local_stride_ = static_cast<uint32_t>(align_up(local_stride_, 16));
  local_bytes_ = static_cast<size_t>(local_stride_) * warps * kWarpSize;
  if (local_bytes_ != 0) {
    void* memory = mmap(nullptr, local_bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    local_ = static_cast<uint8_t*>(memory);
  }
}

BlockState::~BlockState() {
  if (local_) munmap(local_, local_bytes_);
}

void BlockState::start(uint64_t index) {
  ctaid[0] = static_cast<uint32_t>(index % launch_.grid[0]);
  ctaid[1] = static_cast<uint32_t>(index / launch_.grid[0] % launch_.grid[1]);
  ctaid[2] = static_cast<uint32_t>(index / launch_.grid[0] / launch_.grid[1]);
  std::fill(std::begin(barriers_), std::end(barriers_), Barrier());
  uint32_t threads = launch_.threads();
  for (uint32_t i = 0; i < warps_.size(); ++i) {
    uint32_t left = threads - i * kWarpSize;
    uint32_t lanes = left >= kWarpSize ? 0xffffffffu : (1u << left) - 1;
    uint8_t* local = local_ ? local_ + static_cast<size_t>(local_stride_) * kWarpSize * i : nullptr;
    warps_[i].start(*launch_.kernel, i, lanes, &lane_ids_[i], local);
  }
}

void BlockState::prepare(Exec& exec) {
  exec.launch = &launch_;
  exec.block = this;
  exec.params = launch_.params.data();
  exec.params_size = static_cast<uint32_t>(launch_.params.size());
  exec.shared = shared_;
  exec.shared_size = shared_size_;
  exec.dynamic_shared_offset = dynamic_offset_;
  exec.dynamic_shared_size = launch_.dynamic_shared;
  exec.local_stride = local_stride_;
}

uint32_t BlockState::live_threads() const {
  uint32_t live = 0;
  for (const Warp& warp : warps_) live += static_cast<uint32_t>(__builtin_popcount(warp.live()));
  return live;
}

WarpOutcome BlockState::run_slice(Exec& exec) {
  prepare(exec);
  for (;;) {
    bool alive = false;
    bool yielded = false;
    for (Warp& warp : warps_) {
      if (warp.done()) continue;
      WarpOutcome outcome = warp.run(exec);
      if (outcome == WarpOutcome::kFaulted) return outcome;
      if (outcome == WarpOutcome::kDone) continue;
      alive = true;
      yielded |= outcome == WarpOutcome::kYielded;
    }
    if (!alive) return WarpOutcome::kDone;
    bool released = release_ready(exec);
    if (exec.fault != Fault::kNone) return WarpOutcome::kFaulted;
    if (yielded) return WarpOutcome::kYielded;
    if (!released) {
      exec.fail(Fault::kDeadlock,
                "every warp of the block waits and nothing can release it (a barrier or a "
                "warp-synchronous instruction that not all of its threads reach)");
      return WarpOutcome::kFaulted;
    }
  }
}

void BlockState::arrive(Exec& exec, uint32_t barrier, uint32_t threads, uint32_t expected,
                        uint32_t trues) {
  Barrier& state = barriers_[barrier];
  state.used = true;
  state.arrived += threads;
  state.trues += trues;
  if (expected != 0) state.expected = expected;
  (void)exec;
}

// Exited threads do not hold up the barrier that all threads are to reach.
bool BlockState::release_ready(Exec& exec) {
  bool any = false;
  uint32_t live = live_threads();
  for (uint32_t i = 0; i < kBarriers; ++i) {
    Barrier& barrier = barriers_[i];
    if (!barrier.used) continue;
    uint32_t expected = barrier.expected != 0 ? barrier.expected : live;
    if (barrier.arrived < expected) continue;
    Barrier met = barrier;
    barrier = Barrier();
    for (Warp& warp : warps_) {
      warp.release(exec, i, met.trues, met.trues == met.arrived, met.trues != 0);
    }
    any = true;
  }
  return any;
}

void run_blocks(LaunchState& launch) {
  Exec exec;
  exec.view.enter(launch.device);
  std::vector<std::unique_ptr<BlockState>> resident;
  std::vector<std::unique_ptr<BlockState>> spare;
  uint64_t blocks = launch.blocks();
  uint32_t idle_slices = 0;
  bool more = true;
  while (!launch.stopped()) {
    bool wants_more = resident.empty() || (launch.cooperative && idle_slices > 0) ||
                      (idle_slices > kPatientSlices && resident.size() < kMostResident);
    if (more && wants_more) {
      uint64_t index = launch.next_block.fetch_add(1);
      more = index < blocks;
      if (more) {
        if (spare.empty()) {
          spare.push_back(std::make_unique<BlockState>(launch));
        }
        resident.push_back(std::move(spare.back()));
        spare.pop_back();
        resident.back()->start(index);
        idle_slices = 0;
      }
    }
    if (resident.empty()) break;
    bool finished = false;
    exec.rest_ns = UINT32_MAX;
    for (size_t i = 0; i < resident.size();) {
      WarpOutcome outcome = resident[i]->run_slice(exec);
      if (outcome == WarpOutcome::kFaulted) {
        if (exec.fault != Fault::kAborted) launch.report(exec.fault, exec.fault_text);
        exec.view.leave();
        return;
      }
      if (outcome == WarpOutcome::kDone) {
        spare.push_back(std::move(resident[i]));
        resident.erase(resident.begin() + static_cast<ptrdiff_t>(i));
        finished = true;
      } else {
        ++i;
      }
    }
    idle_slices = finished ? 0 : idle_slices + 1;
    if (!finished && exec.rest_ns >= kLeastNapNs) {  // all that there are sleep
      if (more && resident.size() < kMostResident)
        idle_slices = kPatientSlices + 1;
      else
        channel::sleep_ns(std::min(exec.rest_ns, kMostNapNs));
      continue;
    }
    if (idle_slices > kPatientSlices) std::this_thread::yield();
  }
  exec.view.leave();
}

}  // namespace sluice::softgpu
