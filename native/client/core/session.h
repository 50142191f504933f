// SPDX-License-Identifier: Apache-2.0
// The process's session: opened at the first CUDA call that needs it, closed at exit. Owns the
// channel, the vGPUs and the tables of minted handles; everything under client/driver goes through
// post() and exchange(). Promises: commands of all threads reach the worker in the order in which
// post()/exchange() were entered; an error that the worker declared sticky is returned by every
// later call; a child of fork() gets CUDA_ERROR_NOT_INITIALIZED. Driver calls begin with enter()
// (core/enter.h); what the tables hold is in client/objects.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "abi/cuda_driver.h"
#include "client/core/answer_cache.h"
#include "client/core/captures.h"
#include "client/core/channel.h"
#include "client/core/config.h"
#include "client/core/device_memory.h"
#include "client/core/event_progress.h"
#include "client/core/fences.h"
#include "client/core/host_memory.h"
#include "client/core/host_pools.h"
#include "client/core/imported_pool.h"
#include "client/core/marks.h"
#include "client/core/module_globals.h"
#include "client/core/node_links.h"
#include "client/core/shared_memory.h"
#include "client/core/statistics.h"
#include "client/core/sync_memops.h"
#include "client/core/virtual_memory.h"
#include "client/core/work_account.h"
#include "client/managed/memory.h"
#include "client/objects/handles.h"
#include "wire/frame.h"

namespace sluice::client {

struct Array;
struct Code;
struct Context;
struct Device;
struct Event;
struct Function;
struct Graph;
struct GraphExec;
struct GraphNode;
struct GreenContext;
struct Link;
struct MipmappedArray;
struct PoolHandle;
struct Stream;
struct UserObject;

class Session {
 public:
  // The open session, nullptr before cuInit.
  static Session* get() { return current_.load(std::memory_order_acquire); }
  // Opens it once; later calls return what the first one did. The reason of a failure was printed.
  static CUresult open();
  // For tests, once in a process: makes a session on this channel the process's own.
  static bool adopt_for_test(std::unique_ptr<Channel> channel, std::string* error);
  void close();

  // 0, or what every call returns now.
  CUresult sticky() {
    const uint32_t e = channel_->sticky_error();
    return e ? static_cast<CUresult>(e)
             : static_cast<CUresult>(lost_.load(std::memory_order_relaxed));
  }

  // What came of memory of a device, as a result; where the session was lost meanwhile, or that
  // device's node, it is what the calls that follow return.
  CUresult outcome(DeviceMemory::Result result, const Device& device);

  // The stream that a command gives work to, if it does, and whether the host may notice when that
  // is done (core/work_account.h).
  struct Work {
    Work(Stream* to = nullptr, bool is_seen = true) : stream(to), seen(is_seen) {}
    Stream* stream;
    bool seen;
  };

  // ---- commands (core/exchange.cc)
  // Fire and forget.
  CUresult post(uint16_t function, const void* body, size_t bytes,
                std::span<const std::byte> tail = {}, Work work = {}, uint32_t context = 0);
  // Sends and waits. The reply's body is copied to `sink` as far as it goes; `got` says how many
  // bytes it had.
  CUresult exchange(uint16_t function, const void* body, size_t bytes,
                    std::span<const std::byte> tail = {}, std::span<std::byte> sink = {},
                    size_t* got = nullptr, Work work = {}, uint32_t context = 0);
  // Its two halves, for a thread that has several under way: each that began must be ended, in any
  // order. has_room() takes the lane beforehand and fails where begin_exchange() would wait for one
  // that may be held by somebody who waits, too.
  struct Exchange {
    uint32_t lane = 0, sequence = 0, context = 0;
    uint16_t function = 0;
    bool has_lane = false;
    std::span<std::byte> sink;
  };
  bool has_room(Exchange* exchange) {
    return exchange->has_lane = take_lane(&exchange->lane, false);
  }
  CUresult begin_exchange(Exchange* exchange, uint16_t function, const void* body, size_t bytes,
                          std::span<const std::byte> tail, std::span<std::byte> sink, Work work,
                          uint32_t context);
  CUresult end_exchange(Exchange& exchange, size_t* got);
  // How many answers have been handed to whoever waited for them. Where no memory is shared nothing
  // is heard of a node otherwise.
  uint64_t answers_heard() const { return answers_heard_.load(std::memory_order_acquire); }
  template <class T>
  CUresult post(uint16_t function, const T& body, std::span<const std::byte> tail = {},
                Work work = {}, uint32_t context = 0) {
    return post(function, &body, sizeof body, tail, work, context);
  }
  template <class T>
  CUresult exchange(uint16_t function, const T& body, std::span<const std::byte> tail = {},
                    std::span<std::byte> sink = {}, size_t* got = nullptr, Work work = {},
                    uint32_t context = 0) {
    return exchange(function, &body, sizeof body, tail, sink, got, work, context);
  }

  // The same about a device, to its node and in its context; `answer` is filled as far as it goes.
  template <class T>
  CUresult tell(const Device& device, uint16_t function, const T& body,
                std::span<const std::byte> tail = {}) {
    return post(function, &body, sizeof body, tail, nullptr, context_of(device));
  }
  template <class T>
  CUresult ask(const Device& device, uint16_t function, const T& body) {
    return exchange(function, &body, sizeof body, {}, {}, nullptr, nullptr, context_of(device));
  }
  template <class T, class Answer>
  CUresult ask(const Device& device, uint16_t function, const T& body, Answer* answer) {
    return exchange(function, &body, sizeof body, {}, std::as_writable_bytes(std::span(answer, 1)),
                    nullptr, nullptr, context_of(device));
  }

  // ---- what it has
  std::vector<std::unique_ptr<Device>>& devices() { return devices_; }
  WorkAccount& work() { return work_; }
  Channel& channel() { return *channel_; }
  HostMemory& host_memory() { return host_memory_; }
  Marks& marks() { return marks_; }
  Statistics& statistics() { return statistics_; }
  // Whether its vGPUs are of several nodes (core/nodes_channel.h).
  bool spans_nodes() const { return spans_nodes_; }
  // A device of each node that is not lost.
  std::vector<Device*> one_of_each_node();
  // What the worker said of the node when the session opened.
  const wire::SessionRecord& record() const { return record_; }
  // Whether commands are preceded by whose call they are, for a profiler (client/profile).
  std::atomic<bool> marks_calls{false};
  // For a profiler: this thread's call copies from or to that host memory.
  void note_host_side(const void* at) {
    if (marks_calls.load(std::memory_order_relaxed)) [[unlikely]]
      note_host_kind(at);
  }
  bool node_keeps_code = false;  // it may have images of earlier sessions

  HandleTable<Context> contexts{Kind::kContext};
  HandleTable<GreenContext> green_contexts{Kind::kGreenContext};
  std::atomic<bool> green_in_use{false};  // there has been one
  HandleTable<Stream> streams{Kind::kStream};
  std::atomic<uint32_t> plain_streams{0};  // of them, those that are not green, alive
  HandleTable<Event> events{Kind::kEvent};
  HandleTable<Code> modules{Kind::kModule};
  HandleTable<Code> libraries{Kind::kLibrary};
  HandleTable<Function> functions{Kind::kFunction};
  HandleTable<Function> kernels{Kind::kKernel};
  HandleTable<Link> links{Kind::kLink};
  HandleTable<Array> arrays{Kind::kArray};
  HandleTable<MipmappedArray> mipmapped_arrays{Kind::kMipmappedArray};
  HandleTable<PoolHandle> pools{Kind::kPool};
  HandleTable<Graph> graphs{Kind::kGraph};
  HandleTable<GraphExec> graph_execs{Kind::kGraphExec};
  HandleTable<GraphNode> graph_nodes{Kind::kGraphNode};
  HandleTable<UserObject> user_objects{Kind::kUserObject};

  AnswerCache answers;
  Captures captures;
  EventProgress event_progress{*this};
  Fences fences{*this};
  HostPools host_pools{*this};
  ImportedPools imported_pools{*this};
  ManagedMemory managed{*this};
  ModuleGlobals module_globals;
  NodeLinks node_links{*this};
  SharedMemory shared_memory{*this};
  SyncMemops sync_memops;
  VirtualMemory virtual_memory{*this};

  // Its worker is gone: what every call returns from now on. Where that is one node's of several,
  // what calls for that node return: `context` says which was asked for.
  CUresult lose(uint32_t context);
  // What a node has said of itself before an answer that it gave: of several, whose error is none
  // of its driver's where a copy from another did not come.
  CUresult told_before(uint32_t context);

  // A wait that the application asked for is over: what is kept for later may go.
  void after_synchronisation(Device& device);

 private:
  explicit Session(Config config);
  ~Session();
  static void become_current(Session* session);
  CUresult start();
  // On a channel that has opened.
  bool begin(std::string* error);
  bool open_devices(std::string* error);

  static uint32_t context_of(const Device& device);
  void show_output(uint32_t context);
  void print_statistics();
  // Of the lane, which the caller holds; never 0.
  uint32_t next_sequence(uint32_t lane) {
    uint32_t& sequence = lanes_[lane].sequence;
    return ++sequence ? sequence : ++sequence;
  }
  bool take_lane(uint32_t* taken, bool wait);
  CUresult before_work(uint16_t function, Stream* stream);
  std::vector<std::byte> taken_from_managed(std::span<const std::byte> tail);
  void note_host_kind(const void* at);
  // Says whose call the next frame is. The sender holds the channel.
  bool append_mark(bool gives_work, uint32_t context);
  // Adds a frame to the ring; `lane` is kNoLane when nobody waits for an answer.
  bool append(uint16_t function, uint32_t lane, uint32_t sequence, const void* body, size_t bytes,
              std::span<const std::byte> tail, Work work, uint32_t context);

  static std::atomic<Session*> current_;
  static std::atomic<bool> forked_;  // this process is a child without a session

  Config config_;
  std::unique_ptr<Channel> channel_;
  bool spans_nodes_ = false;
  WorkAccount work_;
  std::atomic<uint32_t> lost_{0};
  std::atomic<uint64_t> answers_heard_{0};
  struct LaneUse {
    std::atomic<bool> busy{false};
    uint32_t sequence = 0;
  };
  std::unique_ptr<LaneUse[]> lanes_;
  std::vector<std::unique_ptr<Device>> devices_;
  HostMemory host_memory_;
  Marks marks_;
  Statistics statistics_;
  wire::SessionRecord record_{};
};

}  // namespace sluice::client
