// SPDX-License-Identifier: Apache-2.0
// A CUDA context: the streams, events, modules and memory that were made in it, and the error that
// killed it, if one did. Owned by the device (primary) or by the table of created contexts; the
// objects inside hold plain references, so a context outlives them by waiting for its streams.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include "abi/cuda_driver.h"
#include "softgpu/interp/launch_state.h"
#include "softgpu/runtime/device.h"
#include "softgpu/runtime/stream.h"

namespace sluice::softgpu {

class LoadedModule;

class Context : public std::enable_shared_from_this<Context> {
 public:
  Context(Device& device, unsigned flags, bool primary);
  ~Context();

  Device& device() const { return device_; }
  unsigned flags() const { return flags_; }
  void set_flags(unsigned flags) { flags_ = flags; }
  bool primary() const { return primary_; }
  uint64_t id() const { return id_; }

  // 0, or the CUresult that every call in this context answers from now on.
  int error() const { return error_.load(std::memory_order_acquire); }
  const std::atomic<int>& error_flag() const { return error_; }
  void poison(int error, const std::string& why);
  bool dead() const { return dead_.load(); }

  // Queues `operation` on the stream in CUDA's order: work of the legacy default stream waits for
  // all blocking streams and holds them up. Skipped if the context is poisoned by then.
  Point submit(Stream& stream, Stream::Operation operation, std::vector<Point> after = {});
  // As submit, but runs even in a poisoned context.
  Point submit_always(Stream& stream, Stream::Operation operation, std::vector<Point> after = {});
  // Executes on the calling thread if the stream is idle, else queues and waits.
  void submit_and_wait(Stream& stream, const Stream::Operation& operation);
  // All work of all streams queued so far.
  void synchronize();

  std::shared_ptr<Stream> create_stream(unsigned flags, int priority);
  void destroy_stream(Stream* stream);
  // Resolves 0, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD too; null if unknown.
  std::shared_ptr<Stream> stream(CUstream handle);
  std::vector<std::shared_ptr<Stream>> streams();

  Event* create_event(unsigned flags);
  bool destroy_event(Event* event);
  std::shared_ptr<Event> event(CUevent handle);

  void add_module(std::shared_ptr<LoadedModule> module);
  std::shared_ptr<LoadedModule> remove_module(const LoadedModule* module);

  PrintfSink& printf_sink() { return printf_; }
  DeviceHeap* heap() { return heap_.get(); }
  uint64_t limit(CUlimit which) const;
  bool set_limit(CUlimit which, uint64_t value);

  // Waits for the work, then frees everything. Called once, by whoever destroys the context.
  void destroy();

  std::atomic<int> cache_config{0};
  std::atomic<int> shared_config{0};

 private:
  std::vector<Point> order(Stream& stream, std::vector<Point> after);
  void free_memory();

  Device& device_;
  std::atomic<unsigned> flags_;
  const bool primary_;
  const uint64_t id_;
  std::atomic<int> error_{0};
  std::atomic<bool> dead_{false};

  std::mutex order_mutex_;  // submissions happen one at a time, so that order is well defined
  std::mutex mutex_;        // the tables below
  std::shared_ptr<Stream> legacy_;
  std::map<std::thread::id, std::shared_ptr<Stream>> per_thread_;
  std::unordered_map<Stream*, std::shared_ptr<Stream>> streams_;
  std::vector<std::shared_ptr<Stream>> retired_;  // destroyed with work left
  std::unordered_map<Event*, std::shared_ptr<Event>> events_;
  std::unordered_map<const LoadedModule*, std::shared_ptr<LoadedModule>> modules_;
  std::map<int, uint64_t> limits_;
  PrintfSink printf_;
  std::unique_ptr<DeviceHeap> heap_;
};

// While one lives, stream 0 is the calling thread's own stream instead of the legacy one.
class PerThreadDefault {
 public:
  PerThreadDefault();
  ~PerThreadDefault();
  PerThreadDefault(const PerThreadDefault&) = delete;
  PerThreadDefault& operator=(const PerThreadDefault&) = delete;
};

// ---- the calling thread's current context
// ---------------------------------------------------------

std::shared_ptr<Context> current_context();
void set_current_context(std::shared_ptr<Context> context);
void push_context(std::shared_ptr<Context> context);
bool pop_context(std::shared_ptr<Context>& popped);

// A handle that an application passed; null if it is none.
std::shared_ptr<Context> context_from(CUcontext handle);
CUcontext handle_of(const Context* context);
void register_context(const std::shared_ptr<Context>& context);
void unregister_context(const Context* context);
std::vector<std::shared_ptr<Context>> all_contexts();

// Memory that every kernel of every context may be using is about to go.
void synchronize_all_contexts();

}  // namespace sluice::softgpu
