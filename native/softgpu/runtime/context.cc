// SPDX-License-Identifier: Apache-2.0
#include "softgpu/runtime/context.h"

#include <sys/mman.h>

#include <algorithm>

#include "softgpu/memory/allocations.h"
#include "softgpu/memory/range_map.h"
#include "softgpu/runtime/log.h"
#include "softgpu/runtime/module.h"
#include "softgpu/runtime/pool.h"
#include "softgpu/runtime/profiling.h"

namespace sluice::softgpu {
namespace {

std::atomic<uint64_t> next_context_id{1};

struct ContextTable {
  std::mutex mutex;
  std::unordered_map<const void*, std::shared_ptr<Context>> live;
};

ContextTable& table() {
  static auto* contexts = new ContextTable;
  return *contexts;
}

thread_local std::vector<std::shared_ptr<Context>> context_stack;
thread_local int per_thread_default = 0;

// malloc() of device code, on the device's own memory.
class ContextHeap : public DeviceHeap {
 public:
  explicit ContextHeap(Context& context) : context_(context) {}
  uint64_t allocate(uint64_t size) override {
    uintptr_t address = context_.device().memory.allocate(size);
    if (address == 0) return 0;
    uint64_t bit = 1ull << context_.device().ordinal;
    Allocations::instance().add(
        {address, size, AllocationKind::kDevice, context_.device().ordinal, &context_});
    RangeMap::instance().grant(address, size, bit, bit);
    return address;
  }
  void release(uint64_t address) override {
    auto known = Allocations::instance().remove(address);
    if (!known) return;
    RangeMap::instance().retract(known->base, known->size);
    context_.device().memory.release(address);
  }

 private:
  Context& context_;
};

}  // namespace

Context::Context(Device& device, unsigned flags, bool primary)
    : device_(device),
      flags_(flags),
      primary_(primary),
      id_(next_context_id.fetch_add(1)),
      heap_(std::make_unique<ContextHeap>(*this)) {
  legacy_ = std::make_shared<Stream>(*this, 0, 0, true);
  limits_[CU_LIMIT_STACK_SIZE] = 1024;
  limits_[CU_LIMIT_PRINTF_FIFO_SIZE] = 1u << 20;
  limits_[CU_LIMIT_MALLOC_HEAP_SIZE] = 8u << 20;
  limits_[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
  limits_[CU_LIMIT_PERSISTING_L2_CACHE_SIZE] = 0;
}

Context::~Context() = default;

void Context::poison(int error, const std::string& why) {
  int none = 0;
  if (error_.compare_exchange_strong(none, error)) {
    log(1, "context %llu fails with error %d: %s", static_cast<unsigned long long>(id_), error,
        why.c_str());
    notify_pollers();
  }
}

std::vector<Point> Context::order(Stream& stream, std::vector<Point> after) {
  if (stream.legacy()) {
    for (const std::shared_ptr<Stream>& other : streams()) {
      if (other.get() != &stream && other->blocking()) after.push_back(other->tail());
    }
  } else if (stream.blocking()) {
    after.push_back(legacy_->tail());
  }
  std::erase_if(after, [](const Point& point) { return point.done(); });
  return after;
}

Point Context::submit(Stream& stream, Stream::Operation operation, std::vector<Point> after) {
  return submit_always(
      stream,
      [this, operation = std::move(operation)] {
        if (error() == 0 && !dead()) operation();
      },
      std::move(after));
}

Point Context::submit_always(Stream& stream, Stream::Operation operation,
                             std::vector<Point> after) {
  if (profiling::on()) operation = profiling::noted(stream, std::move(operation));
  std::lock_guard lock(order_mutex_);
  return stream.push(std::move(operation), order(stream, std::move(after)));
}

void Context::submit_and_wait(Stream& stream, const Stream::Operation& given) {
  const Stream::Operation noted =
      profiling::on() ? profiling::noted(stream, given) : Stream::Operation();
  const Stream::Operation& operation = noted ? noted : given;
  Point point;
  {
    std::unique_lock lock(order_mutex_);
    if (order(stream, {}).empty() && stream.claim(point)) {
      lock.unlock();
      if (error() == 0) operation();
      stream.finish();
      printf_.flush();
      return;
    }
    point = stream.push(
        [this, &operation] {
          if (error() == 0 && !dead()) operation();
        },
        order(stream, {}));
  }
  point.wait();
  printf_.flush();
}

void Context::synchronize() {
  std::vector<Point> points;
  for (const std::shared_ptr<Stream>& stream : streams()) points.push_back(stream->tail());
  for (const Point& point : points) point.wait();
  printf_.flush();
}

std::vector<std::shared_ptr<Stream>> Context::streams() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Stream>> all;
  all.reserve(streams_.size() + per_thread_.size() + 1);
  all.push_back(legacy_);
  for (const auto& [key, stream] : streams_) all.push_back(stream);
  for (const auto& [thread, stream] : per_thread_) all.push_back(stream);
  for (const auto& stream : retired_) all.push_back(stream);
  return all;
}

std::shared_ptr<Stream> Context::create_stream(unsigned flags, int priority) {
  auto stream = std::make_shared<Stream>(*this, flags, priority, false);
  std::lock_guard lock(mutex_);
  streams_[stream.get()] = stream;
  return stream;
}

// Queued work still runs, and the legacy stream still waits for it; the thread ends after it.
void Context::destroy_stream(Stream* stream) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  found->second->close();
  std::erase_if(retired_, [](const auto& old) { return old->tail().done(); });
  retired_.push_back(std::move(found->second));
  streams_.erase(found);
}

std::shared_ptr<Stream> Context::stream(CUstream handle) {
  std::lock_guard lock(mutex_);
  if (handle == nullptr && per_thread_default != 0) handle = CU_STREAM_PER_THREAD;
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return legacy_;
  if (handle == CU_STREAM_PER_THREAD) {
    std::shared_ptr<Stream>& own = per_thread_[std::this_thread::get_id()];
    if (!own) own = std::make_shared<Stream>(*this, 0, 0, false);
    return own;
  }
  auto found = streams_.find(reinterpret_cast<Stream*>(handle));
  return found == streams_.end() ? nullptr : found->second;
}

Event* Context::create_event(unsigned flags) {
  auto event = std::make_shared<Event>(*this, flags);
  Event* handle = event.get();
  std::lock_guard lock(mutex_);
  events_[handle] = std::move(event);
  return handle;
}

bool Context::destroy_event(Event* event) {
  std::lock_guard lock(mutex_);
  return events_.erase(event) != 0;
}

std::shared_ptr<Event> Context::event(CUevent handle) {
  std::lock_guard lock(mutex_);
  auto found = events_.find(reinterpret_cast<Event*>(handle));
  return found == events_.end() ? nullptr : found->second;
}

void Context::add_module(std::shared_ptr<LoadedModule> module) {
  std::lock_guard lock(mutex_);
  const LoadedModule* key = module.get();
  modules_[key] = std::move(module);
}

std::shared_ptr<LoadedModule> Context::remove_module(const LoadedModule* module) {
  std::lock_guard lock(mutex_);
  auto found = modules_.find(module);
  if (found == modules_.end()) return nullptr;
  std::shared_ptr<LoadedModule> held = found->second;
  modules_.erase(found);
  return held;
}

uint64_t Context::limit(CUlimit which) const {
  auto& self = const_cast<Context&>(*this);
  std::lock_guard lock(self.mutex_);
  auto found = limits_.find(which);
  return found == limits_.end() ? 0 : found->second;
}

bool Context::set_limit(CUlimit which, uint64_t value) {
  std::lock_guard lock(mutex_);
  auto found = limits_.find(which);
  if (found == limits_.end()) return false;
  found->second = value;
  return true;
}

void Context::destroy() {
  synchronize();  // as CUDA does; work of a poisoned context is skipped
  bool running = false;
  if (!dead_.compare_exchange_strong(running, true)) return;
  std::vector<std::shared_ptr<Stream>> held = streams();
  for (const auto& stream : held) stream->close();
  std::unordered_map<const LoadedModule*, std::shared_ptr<LoadedModule>> modules;
  {
    std::lock_guard lock(mutex_);
    modules.swap(modules_);
    streams_.clear();
    retired_.clear();
    per_thread_.clear();
    events_.clear();
  }
  modules.clear();
  free_memory();
  device_.memory.refund(device_.context_bytes);
}

void Context::free_memory() {
  for (const auto& [base, allocation] : Allocations::instance().of(this)) {
    Allocations::instance().remove(base);
    switch (allocation.kind) {
      case AllocationKind::kHost:
        RangeMap::instance().retract(base, allocation.size);
        munmap(reinterpret_cast<void*>(base), allocation.size);
        break;
      case AllocationKind::kRegistered:
        RangeMap::instance().retract(base, allocation.size);
        break;
      case AllocationKind::kMapped:
        break;
      default:
        release_device_allocation(allocation);
    }
  }
}

PerThreadDefault::PerThreadDefault() { ++per_thread_default; }
PerThreadDefault::~PerThreadDefault() { --per_thread_default; }

std::shared_ptr<Context> current_context() {
  return context_stack.empty() ? nullptr : context_stack.back();
}

void set_current_context(std::shared_ptr<Context> context) {
  if (!context_stack.empty()) context_stack.pop_back();
  if (context) context_stack.push_back(std::move(context));
}

void push_context(std::shared_ptr<Context> context) { context_stack.push_back(std::move(context)); }

bool pop_context(std::shared_ptr<Context>& popped) {
  if (context_stack.empty()) return false;
  popped = std::move(context_stack.back());
  context_stack.pop_back();
  return true;
}

CUcontext handle_of(const Context* context) {
  return reinterpret_cast<CUcontext>(const_cast<Context*>(context));
}

std::shared_ptr<Context> context_from(CUcontext handle) {
  std::lock_guard lock(table().mutex);
  auto found = table().live.find(handle);
  return found == table().live.end() ? nullptr : found->second;
}

void register_context(const std::shared_ptr<Context>& context) {
  std::lock_guard lock(table().mutex);
  table().live[context.get()] = context;
}

void unregister_context(const Context* context) {
  std::lock_guard lock(table().mutex);
  table().live.erase(context);
}

std::vector<std::shared_ptr<Context>> all_contexts() {
  std::lock_guard lock(table().mutex);
  std::vector<std::shared_ptr<Context>> all;
  for (const auto& [key, context] : table().live) all.push_back(context);
  return all;
}

void synchronize_all_contexts() {
  for (const std::shared_ptr<Context>& context : all_contexts()) context->synchronize();
}

}  // namespace sluice::softgpu
