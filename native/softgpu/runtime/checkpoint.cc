// SPDX-License-Identifier: Apache-2.0
#include "softgpu/runtime/checkpoint.h"

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "softgpu/memory/shared_file.h"
#include "softgpu/memory/virtual_memory.h"
#include "softgpu/runtime/context.h"
#include "softgpu/runtime/device.h"
#include "softgpu/runtime/log.h"

namespace sluice::softgpu::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kLook = milliseconds(2);
constexpr uint32_t kKinds = 8;  // an order is its number times this, and its kind
// That a restore needs for a while, beyond what it takes.
constexpr uint64_t kRestoreBytes = 4 << 20;

std::atomic<bool> is_on{false};
std::mutex gate_mutex;
std::condition_variable gate_opens;
bool is_closed = false;  // with gate_mutex
int under_way = 0;       // calls, the same
thread_local int depth = 0;

// What the process had of each device beyond what stayed there.
std::vector<uint64_t> put_aside;

// As long as a checkpoint or a restore is made to take.
void pause() {
  static const long ms = environment("SLUICE_SOFTGPU_CHECKPOINT_MS", 0, 0, 600'000);
  std::this_thread::sleep_for(milliseconds(ms));
}

bool all_idle() {
  for (const auto& context : all_contexts())
    for (const auto& stream : context->streams())
      if (!stream->tail().done()) return false;
  return true;
}

void open_gate() {
  std::lock_guard lock(gate_mutex);
  is_closed = false;
  gate_opens.notify_all();
}

CUresult close_gate(uint32_t timeout_ms) {
  const auto until = Clock::now() + milliseconds(timeout_ms);
  {
    std::lock_guard lock(gate_mutex);
    is_closed = true;
  }
  for (;;) {
    {
      std::lock_guard lock(gate_mutex);
      if (under_way == 0 && all_idle()) return CUDA_SUCCESS;
    }
    if (timeout_ms != 0 && Clock::now() >= until) break;
    std::this_thread::sleep_for(kLook);
  }
  open_gate();
  return CUDA_ERROR_NOT_READY;
}

CUresult take_off() {
  pause();
  put_aside.assign(devices().size(), 0);
  for (const auto& device : devices()) {
    if (device->mps) return CUDA_ERROR_NOT_SUPPORTED;
    put_aside[static_cast<size_t>(device->ordinal)] =
        device->memory.put_aside(VirtualMemory::instance().exported(device->ordinal));
  }
  return CUDA_SUCCESS;
}

// Where each device is to be by an order's map; empty: where it is. False: the map will not do.
bool read_places(const SharedFile::Process& own, std::vector<int>* places) {
  int named = 0;
  for (const auto& place : own.places) named += place != 0;
  if (named == 0) return true;
  if (devices().size() < 2) return false;
  uint64_t seen = 0;
  for (const auto& device : devices()) {
    const int to = own.places[device->physical] - 1;
    if (to < 0) return false;
    places->push_back(to);
    if (seen >> to & 1) return false;
    seen |= 1ull << to;
  }
  for (const auto& device : devices()) seen &= ~(1ull << device->physical);
  // What it does not see is no place for it.
  return seen == 0 && static_cast<size_t>(named) == devices().size();
}

CUresult bring_back(const std::vector<int>& places) {
  if (VirtualMemory::instance().has_others()) return CUDA_ERROR_NOT_SUPPORTED;
  pause();
  for (size_t i = 0; i < places.size(); ++i) {
    Device& device = *devices()[i];
    if (places[i] == device.physical) continue;
    // What others may have open of it stayed where it was.
    if (VirtualMemory::instance().exported(device.ordinal) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    device.move(places[i]);
  }
  for (const auto& device : devices()) {  // of several, those that were first keep what they took
    const uint64_t bytes = put_aside[static_cast<size_t>(device->ordinal)];
    if (bytes != 0 && !device->memory.bring_back(bytes, kRestoreBytes))
      return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

CUresult carry_out(SharedFile::Process& own, Order order) {
  const auto state = static_cast<CUprocessState>(own.state.load());
  const auto from = [&](CUprocessState expected) { return state == expected; };
  CUresult e = CUDA_ERROR_ILLEGAL_STATE;
  // Nothing is left of one that could not be restored.
  if (state == CU_PROCESS_STATE_FAILED) return CUDA_ERROR_OPERATING_SYSTEM;
  if (order == Order::kLock && from(CU_PROCESS_STATE_RUNNING)) {
    if ((e = close_gate(own.timeout_ms)) == CUDA_SUCCESS) own.state = CU_PROCESS_STATE_LOCKED;
  } else if (order == Order::kCheckpoint && from(CU_PROCESS_STATE_LOCKED)) {
    if ((e = take_off()) == CUDA_SUCCESS) own.state = CU_PROCESS_STATE_CHECKPOINTED;
  } else if (order == Order::kRestore && from(CU_PROCESS_STATE_CHECKPOINTED)) {
    std::vector<int> places;
    if (!read_places(own, &places)) return CUDA_ERROR_INVALID_VALUE;
    e = bring_back(places);
    own.state = e == CUDA_SUCCESS ? CU_PROCESS_STATE_LOCKED : CU_PROCESS_STATE_FAILED;
  } else if (order == Order::kUnlock && from(CU_PROCESS_STATE_LOCKED)) {
    own.state = CU_PROCESS_STATE_RUNNING;
    open_gate();
    e = CUDA_SUCCESS;
  }
  return e;
}

void serve(SharedFile& file) {
  SharedFile::Process& own = file.process(file.own());
  for (;; std::this_thread::sleep_for(kLook)) {
    const uint32_t order = own.order;
    if (order == own.answered) continue;
    own.result = carry_out(own, static_cast<Order>(order % kKinds));
    own.answered = order;
  }
}

// -1: there is none.
int place_of(SharedFile& file, int pid) {
  for (int i = 0; i < SharedFile::kProcesses; ++i)
    if (file.process(i).pid == static_cast<uint32_t>(pid) && file.is_taken(i)) return i;
  return -1;
}

}  // namespace

void begin() {
  SharedFile* const file = SharedFile::get();
  if (!file || is_on.exchange(true)) return;
  std::thread(serve, std::ref(*file)).detach();
}

Call::Call() {
  if (!is_on.load(std::memory_order_relaxed) || depth++ > 0) return;
  std::unique_lock lock(gate_mutex);
  gate_opens.wait(lock, [] { return !is_closed; });
  ++under_way;
}

Call::~Call() {
  if (!is_on.load(std::memory_order_relaxed) || depth == 0 || --depth > 0) return;
  std::lock_guard lock(gate_mutex);
  --under_way;
}

CUresult ask(int pid, Order order, uint32_t timeout_ms, const std::vector<Pair>& pairs) {
  SharedFile* const file = SharedFile::get();
  if (!file) return CUDA_ERROR_NOT_SUPPORTED;
  const int place = place_of(*file, pid);
  if (place < 0) return CUDA_ERROR_INVALID_VALUE;
  static std::mutex mutex;
  const SharedFile::Lock lock(*file, SharedFile::asking(place), mutex);
  SharedFile::Process& process = file->process(place);
  // Whoever asked before may have been killed while it waited.
  const auto is_over = [&] { return process.answered == process.order.load(); };
  while (!is_over() && file->is_taken(place)) std::this_thread::sleep_for(kLook);
  process.timeout_ms = timeout_ms;
  for (auto& place : process.places) place = 0;
  for (const Pair& pair : pairs) process.places[pair.from] = static_cast<uint8_t>(pair.to + 1);
  const uint32_t number = (process.order / kKinds + 1) % (1u << 28);
  process.order = number * kKinds + static_cast<uint32_t>(order);
  while (!is_over()) {
    if (!file->is_taken(place) || process.pid != static_cast<uint32_t>(pid))
      return CUDA_ERROR_OPERATING_SYSTEM;
    std::this_thread::sleep_for(kLook);
  }
  return static_cast<CUresult>(process.result.load());
}

CUresult state(int pid, CUprocessState* state) {
  SharedFile* const file = SharedFile::get();
  if (!file) return CUDA_ERROR_NOT_SUPPORTED;
  const int place = place_of(*file, pid);
  if (place < 0) return CUDA_ERROR_INVALID_VALUE;
  *state = static_cast<CUprocessState>(file->process(place).state.load());
  return CUDA_SUCCESS;
}

}  // namespace sluice::softgpu::checkpoint
