// SPDX-License-Identifier: Apache-2.0
// The software GPU's own CUPTI: as much of the Activity API as the worker calls, by NVIDIA's names,
// in the driver's own library. Records are kept here and go into the caller's buffers at a flush.
#include "softgpu/runtime/profiling.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_set>
#include <variant>
#include <vector>

#include "cupti_abi.h"
#include "softgpu/api/api.h"
#include "softgpu/memory/allocations.h"
#include "softgpu/runtime/module.h"

namespace sluice::softgpu::profiling {

std::atomic<uint64_t> kinds{0};

namespace {

using namespace cupti;

constexpr uint32_t kVersion = 130001;
constexpr size_t kMostRecords = 1 << 18;

using Record = std::variant<KernelRecord, CopyRecord, FillRecord, ExternalRecord>;

struct State {
  std::mutex mutex;
  std::deque<Record> records;
  size_t dropped = 0;
  std::unordered_set<std::string> names;  // of kernels; live for ever, as records point at them
  BufferRequested requested = nullptr;
  BufferCompleted completed = nullptr;
};
State& state() {
  static State* one = new State;
  return *one;
}

std::atomic<uint32_t> next_correlation{0};
std::atomic<int64_t> next_grid{0};
thread_local std::vector<uint64_t> external[kExternalKinds];

// What this thread's operation is of.
struct Doing {
  uint32_t correlation = 0, stream = 0, context = 0;
};
thread_local Doing doing;

bool wanted(uint32_t kind) { return kinds.load(std::memory_order_relaxed) >> kind & 1; }

void keep(Record record) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (s.records.size() < kMostRecords)
    s.records.push_back(std::move(record));
  else
    ++s.dropped;
}

const char* kept_name(const std::string& name) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  return s.names.insert(name).first->c_str();
}

bool on_host(const CopySide& side) {
  const auto found = Allocations::instance().find(side.address);
  return !found || found->host();
}

uint8_t memory_kind(const CopySide& side) {
  return !on_host(side) ? kDevice : side.pinned ? kPinned : kPageable;
}

uint8_t copy_kind(const CopyBox& box) {
  if (on_host(box.from)) return on_host(box.to) ? kOnHost : kToDevice;
  return on_host(box.to) ? kToHost : kOnDevice;
}

size_t size_of(const Record& record) {
  return std::visit([](const auto& r) { return sizeof r; }, record);
}

}  // namespace

uint64_t now() {
  timespec at{};
  clock_gettime(CLOCK_REALTIME, &at);
  return static_cast<uint64_t>(at.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(at.tv_nsec);
}

Stream::Operation noted(const Stream& stream, Stream::Operation operation) {
  const Doing call{next_correlation.fetch_add(1) + 1, static_cast<uint32_t>(stream.id()),
                   static_cast<uint32_t>(stream.context().id())};
  if (wanted(kExternalCorrelation))
    for (uint32_t kind = 0; kind < kExternalKinds; ++kind)
      if (!external[kind].empty())
        keep(
            ExternalRecord{kExternalCorrelation, kind, external[kind].back(), call.correlation, 0});
  return [call, operation = std::move(operation)] {
    const Doing before = std::exchange(doing, call);
    operation();
    doing = before;
  };
}

bool Running::begin(uint32_t kind) {
  if (!wanted(kind) || doing.correlation == 0) return false;
  kind_ = kind;
  start_ = now();
  return true;
}

Running::Running(const KernelWork& work) {
  if (!begin(kConcurrentKernel) && !begin(cupti::kKernel)) return;
  kernel_ = &work;
  device_ = static_cast<uint32_t>(work.kernel->module->context().device().ordinal);
}

Running::Running(Context& context, const CopyBox& box) {
  if (!begin(kMemcpy)) return;
  copy_ = &box;
  device_ = static_cast<uint32_t>(context.device().ordinal);
}

Running::Running(Context& context, const Fill& fill) {
  if (!begin(kMemset)) return;
  fill_ = &fill;
  device_ = static_cast<uint32_t>(context.device().ordinal);
}

Running::~Running() {
  const uint64_t end = now();
  const auto work = [&](auto* r) {
    r->start = start_;
    r->end = end;
    r->device = device_;
    r->context = doing.context;
    r->stream = doing.stream;
    r->correlation = doing.correlation;
  };
  if (kernel_) {
    KernelRecord k{};
    work(&k);
    k.kind = kind_;
    k.registers = 32;
    k.completed = end;
    for (int i = 0; i < 3; ++i) {
      k.grid[i] = static_cast<int32_t>(kernel_->shape.grid[i]);
      k.block[i] = static_cast<int32_t>(kernel_->shape.block[i]);
    }
    k.static_shared = static_cast<int32_t>(kernel_->kernel->function->static_shared);
    k.dynamic_shared = static_cast<int32_t>(kernel_->shape.dynamic_shared);
    k.grid_id = next_grid.fetch_add(1) + 1;
    k.name = kept_name(kernel_->kernel->function->name);
    keep(k);
  } else if (copy_) {
    CopyRecord c{};
    work(&c);
    c.kind = kMemcpy;
    c.copy_kind = copy_kind(*copy_);
    c.from_kind = memory_kind(copy_->from);
    c.to_kind = memory_kind(copy_->to);
    c.bytes = copy_->width * copy_->height * copy_->depth;
    keep(c);
  } else if (fill_) {
    FillRecord f{};
    work(&f);
    f.kind = kMemset;
    f.value = fill_->value;
    f.bytes = fill_->width * fill_->height * fill_->element;
    f.memory_kind = kDevice;
    keep(f);
  }
}

namespace {

// Into the caller's buffers, oldest first. Nothing of the caller's is called under the mutex.
void flush() {
  State& s = state();
  BufferRequested requested = nullptr;
  BufferCompleted completed = nullptr;
  std::deque<Record> records;
  {
    std::lock_guard lock(s.mutex);
    requested = s.requested;
    completed = s.completed;
    if (!requested || !completed) return;
    records.swap(s.records);
  }
  while (!records.empty()) {
    uint8_t* buffer = nullptr;
    size_t size = 0, most = 0, used = 0, count = 0;
    requested(&buffer, &size, &most);
    while (buffer && !records.empty() && used + size_of(records.front()) <= size &&
           (most == 0 || count < most)) {
      std::visit([&](const auto& r) { std::memcpy(buffer + used, &r, sizeof r); }, records.front());
      used += size_of(records.front());
      ++count;
      records.pop_front();
    }
    if (!buffer || used == 0) {
      std::lock_guard lock(s.mutex);
      s.dropped += records.size();
      records.clear();
    }
    if (buffer) completed(nullptr, 0, buffer, size, used);
  }
}

size_t record_size(uint32_t kind) {
  switch (kind) {
    case kMemcpy:
      return sizeof(CopyRecord);
    case kMemset:
      return sizeof(FillRecord);
    case cupti::kKernel:
    case kConcurrentKernel:
      return sizeof(KernelRecord);
    case kExternalCorrelation:
      return sizeof(ExternalRecord);
    default:
      return 0;
  }
}

}  // namespace
}  // namespace sluice::softgpu::profiling

using namespace sluice::softgpu;
namespace profiling = sluice::softgpu::profiling;
namespace cupti = sluice::cupti;

#pragma GCC visibility push(default)
extern "C" {

int cuptiGetVersion(uint32_t* version) {
  if (!version) return cupti::kInvalidParameter;
  *version = profiling::kVersion;
  return cupti::kSuccess;
}

int cuptiGetTimestamp(uint64_t* at) {
  if (!at) return cupti::kInvalidParameter;
  *at = profiling::now();
  return cupti::kSuccess;
}

int cuptiActivityRegisterCallbacks(cupti::BufferRequested requested,
                                   cupti::BufferCompleted completed) {
  if (!requested || !completed) return cupti::kInvalidParameter;
  std::lock_guard lock(profiling::state().mutex);
  profiling::state().requested = requested;
  profiling::state().completed = completed;
  return cupti::kSuccess;
}

// Calls have no records here: who asks for them gets none.
int cuptiActivityEnable(uint32_t kind) {
  if (!profiling::record_size(kind) && kind != cupti::kDriver && kind != cupti::kRuntime &&
      kind != cupti::kMemcpyPeer)
    return cupti::kNotSupported;
  profiling::kinds.fetch_or(uint64_t{1} << kind);
  return cupti::kSuccess;
}

int cuptiActivityDisable(uint32_t kind) {
  if (kind >= 64) return cupti::kInvalidKind;
  profiling::kinds.fetch_and(~(uint64_t{1} << kind));
  return cupti::kSuccess;
}

int cuptiActivityFlushAll(uint32_t) {
  try {
    profiling::flush();
  } catch (...) {
    return cupti::kUnknown;
  }
  return cupti::kSuccess;
}

int cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, const void** record) {
  if (!buffer || !record) return cupti::kInvalidParameter;
  size_t at = 0;
  uint32_t kind = 0;
  if (*record) {
    std::memcpy(&kind, *record, sizeof kind);
    at = static_cast<size_t>(static_cast<const uint8_t*>(*record) - buffer) +
         profiling::record_size(kind);
  }
  if (at >= valid) return cupti::kMaxLimitReached;
  *record = buffer + at;
  return cupti::kSuccess;
}

int cuptiActivityGetNumDroppedRecords(void*, uint32_t, size_t* dropped) {
  if (!dropped) return cupti::kInvalidParameter;
  std::lock_guard lock(profiling::state().mutex);
  *dropped = std::exchange(profiling::state().dropped, 0);
  return cupti::kSuccess;
}

int cuptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id) {
  if (kind == 0 || kind >= cupti::kExternalKinds) return cupti::kInvalidParameter;
  profiling::external[kind].push_back(id);
  return cupti::kSuccess;
}

int cuptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t* last) {
  if (kind == 0 || kind >= cupti::kExternalKinds) return cupti::kInvalidParameter;
  if (profiling::external[kind].empty()) return cupti::kQueueEmpty;
  if (last) *last = profiling::external[kind].back();
  profiling::external[kind].pop_back();
  return cupti::kSuccess;
}

int cuptiGetStreamIdEx(void* handle, void* stream, uint8_t, uint32_t* id) {
  if (!id) return cupti::kInvalidParameter;
  const auto context = context_from(static_cast<CUcontext>(handle));
  if (!context) return cupti::kInvalidContext;
  const auto found = context->stream(static_cast<CUstream>(stream));
  if (!found) return cupti::kInvalidStream;
  *id = static_cast<uint32_t>(found->id());
  return cupti::kSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
