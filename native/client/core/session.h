// SPDX-License-Identifier: Apache-2.0
// The process's session: opened at the first CUDA call that needs it, closed at exit. Owns the
// channel, the vGPUs and the tables of minted handles; everything under client/driver goes through
// post() and exchange(). Promises: commands of all threads reach the worker in the order in which
// post()/exchange() were entered; an error that the worker declared sticky is returned by every
// later call; a child of fork() gets CUDA_ERROR_NOT_INITIALIZED.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi/cuda_driver.h"
#include "client/core/answer_cache.h"
#include "client/core/captures.h"
#include "client/core/channel.h"
#include "client/core/config.h"
#include "client/core/device_memory.h"
#include "client/core/graph_memory.h"
#include "client/core/graphs.h"
#include "client/core/handles.h"
#include "client/core/host_memory.h"
#include "client/core/imported_pool.h"
#include "client/core/jit_logs.h"
#include "client/core/marks.h"
#include "client/core/memory_pool.h"
#include "client/core/shared_memory.h"
#include "client/core/statistics.h"
#include "client/core/sync_memops.h"
#include "client/core/virtual_memory.h"
#include "wire/array_shape.h"
#include "wire/commands.h"
#include "wire/frame.h"

namespace sluice::client {

struct Device;

struct Context {
  Device* device = nullptr;
  unsigned flags = 0;
  bool primary = false;
  uint64_t green = 0;  // the green context that it stands for
  uint32_t uses = 1;   // cuCtxCreate and cuCtxAttach count up, cuCtxDetach down
};

// A part of a device's multiprocessors (driver/green_context.cc).
struct GreenContext {
  Device* device = nullptr;
  uint64_t context = 0;   // the handle that cuCtxFromGreenCtx gives
  uint64_t standard = 0;  // the stream that its null stream stands for
};

struct Stream {
  Device* device = nullptr;
  uint64_t wire_id = 0;  // 0: the legacy default stream
  unsigned flags = 0;
  int priority = 0;
  uint64_t green = 0;   // the green context that it runs in
  bool orphan = false;  // … which is gone
  // Under the session's append lock: numbers of Device::issued. The newest work that the stream was
  // given, and up to where its work is known to be done.
  uint64_t last_work = 0, done = 0;
  // Under the lock of the device's pools: a mark that the stream was asked for.
  uint32_t probe = wire::kNoMark;
  uint64_t probe_value = 0, probe_work = 0;
  // The capture that it takes part in, 0: none. Changed under the captures' lock.
  alignas(8) uint64_t capture = 0;
  std::vector<CUlaunchAttribute> attributes;  // that it was given
};

// What the application has of a memory pool.
struct PoolHandle {
  Device* device = nullptr;
  MemoryPool* pool = nullptr;
  ImportedPool* imported = nullptr;  // instead: another process's, from which nothing is allocated
  uint64_t users = 0;                // bit i: opened to the device i
};

struct Event {
  Device* device = nullptr;
  unsigned flags = 0;
  bool shared = false;  // with other processes: only the worker knows where it stands
  uint32_t mark = wire::kNoMark;
  uint64_t value = 0;  // of the newest record; 0: never recorded
  Stream* stream = nullptr;
  uint64_t work = 0;      // Device::issued at the newest record
  uint64_t captured = 0;  // the capture that the newest record belongs to, if it does
  bool in_graph = false;  // graphs record it: only the driver knows
};

// A loaded module or library.
struct Code {
  Device* device = nullptr;  // of a module
  struct Named {
    std::string name;
    uint64_t handle;
  };
  std::vector<Named> functions;
  struct Global {
    std::string name;
    uint64_t address, bytes;
  };
  std::vector<Global> globals;
};

// A link of the node's linker under way (driver/link.cc).
struct Link {
  Device* device = nullptr;
  JitLogs logs;
  std::vector<char> image;  // the product
  bool complete = false;
};

// A module's function or a library's kernel.
struct Function {
  Device* device = nullptr;  // nullptr for a kernel: it runs on the current context's device
  uint64_t code = 0;
  std::string name;
  wire::FunctionRecord record{};
  struct Param {
    uint32_t offset, size;
  };
  std::vector<Param> params;
  // What the functions of CUDA 2 have set for the next launch (driver/old_launch.cc).
  struct Prepared {
    uint32_t block[3] = {1, 1, 1};
    uint32_t shared = 0;
    std::vector<std::byte> params;
  };
  std::shared_ptr<Prepared> prepared;
};

struct Array {
  Device* device = nullptr;
  wire::ArrayShape shape;
  uint64_t mipmapped = 0;  // the mipmapped array that it is a level of
};
struct MipmappedArray {
  Device* device = nullptr;
  wire::ArrayShape shape;
  std::vector<uint64_t> levels;  // handles of the levels that were asked for; 0: not yet
};

// A texture or a surface, by the driver's own number.
struct Texture {
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC texture{};
  CUDA_RESOURCE_VIEW_DESC view{};
};

struct Device {
  uint32_t index = 0;
  wire::DeviceRecord record{};
  DeviceMemory memory;
  MemoryPools pools;
  GraphMemory graph_memory;
  uint64_t standard_pool = 0;             // its handle, minted at open
  std::atomic<uint64_t> current_pool{0};  // what cuMemAllocAsync takes from
  uint64_t primary = 0;                   // CUcontext of the primary context, minted at open
  std::atomic<uint32_t> primary_uses{0};
  std::atomic<unsigned> primary_flags{0};
  Stream legacy;
  std::atomic<uint64_t> peers_enabled{0};  // bit i: cuCtxEnablePeerAccess of the device i
  std::atomic<uint64_t> pool_users{0};     // bit i: a pool here was opened to the device i
  // Bit i: work of the device i may touch memory of this window. Bits are never cleared: all that
  // one costs is a look at whether that device is idle.
  std::atomic<uint64_t> users{0};
  // Arrays and textures: what changes under this mutex reaches the worker in the same order.
  std::mutex arrays_mutex;
  wire::ArrayCharges array_charges;
  std::map<std::pair<bool, uint64_t>, Texture> textures;  // by surface, number
  std::atomic<uint32_t> host_functions{0};                // on any of its streams, not yet run
  // Local memory of each thread for which the node has been asked, or ~0 where nobody counts it.
  std::atomic<uint64_t> thread_bytes{0};

  // For who runs out of memory: gives back what is only kept. Whether there was anything.
  bool make_room(bool wait) {
    const bool some = pools.make_room(wait);
    return graph_memory.trim() || some;
  }

  // Under the session's append lock: commands that give the device work, how many of them are known
  // to be done, and the stream that has all the others (nullptr: several have).
  uint64_t issued = 0, idle_at = 0;
  uint64_t last_blocking = 0;  // the newest work of streams that the legacy one waits for
  Stream* only_stream = nullptr;
};

class Session {
 public:
  // The open session, nullptr before cuInit.
  static Session* get() { return current_.load(std::memory_order_acquire); }
  // Opens it once; later calls return what the first one did. The reason of a failure was printed.
  static CUresult open();

  // 0, or what every call returns now.
  CUresult sticky() {
    const uint32_t e = channel_->sticky_error();
    return e ? static_cast<CUresult>(e)
             : static_cast<CUresult>(lost_.load(std::memory_order_relaxed));
  }

  // Fire and forget. `work`: the stream that the command gives work to, if it does.
  CUresult post(uint16_t function, const void* body, size_t bytes,
                std::span<const std::byte> tail = {}, Stream* work = nullptr, uint32_t context = 0);
  // Sends and waits. The reply's body is copied to `sink` as far as it goes; `got` says how many
  // bytes it had.
  CUresult exchange(uint16_t function, const void* body, size_t bytes,
                    std::span<const std::byte> tail = {}, std::span<std::byte> sink = {},
                    size_t* got = nullptr, Stream* work = nullptr, uint32_t context = 0);
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
                          std::span<const std::byte> tail, std::span<std::byte> sink, Stream* work,
                          uint32_t context);
  CUresult end_exchange(Exchange& exchange, size_t* got);
  template <class T>
  CUresult post(uint16_t function, const T& body, std::span<const std::byte> tail = {},
                Stream* work = nullptr, uint32_t context = 0) {
    return post(function, &body, sizeof body, tail, work, context);
  }
  template <class T>
  CUresult exchange(uint16_t function, const T& body, std::span<const std::byte> tail = {},
                    std::span<std::byte> sink = {}, size_t* got = nullptr, Stream* work = nullptr,
                    uint32_t context = 0) {
    return exchange(function, &body, sizeof body, tail, sink, got, work, context);
  }

  // The same for a command that gives work to more streams than one, once it was sent.
  void add_work(Stream& stream);

  // What a completed wait teaches: all work of `stream` (nullptr: of the device) up to issue number
  // `upto` is done.
  void note_done(Device& device, Stream* stream, uint64_t upto);
  // What memory pools ask (core/stream_order.h).
  StreamPoint stream_point(const Stream& stream);
  bool stream_passed(const Device& device, const Stream* stream, StreamPoint point);
  // A wait that the application asked for is over: what is kept for later may go.
  void after_synchronisation(Device& device) {
    device.pools.after_synchronisation();
    imported_pools.after_synchronisation();
  }
  uint64_t issued(const Device& device);
  // The stream is gone and its place may be another's soon, while its work goes on.
  void forget_stream(Device& device, const Stream* stream);
  bool idle(const Device& device);

  Channel& channel() { return *channel_; }
  HostMemory& host_memory() { return host_memory_; }
  Marks& marks() { return marks_; }
  std::vector<std::unique_ptr<Device>>& devices() { return devices_; }
  const Config& config() const { return config_; }
  Statistics& statistics() { return statistics_; }
  uint32_t driver_version() const { return driver_version_; }
  bool software_gpu() const { return software_gpu_; }
  bool node_keeps_code = false;  // it may have images of earlier sessions
  const char* driver_name() const { return driver_name_; }
  Device* device_of_address(uint64_t address);
  // Whether two vGPUs are slices of one GPU.
  static bool same_gpu(const Device& a, const Device& b);
  // In a vGPU's window, or a module's global (whose address is the driver's own).
  bool is_device_address(uint64_t address);
  // What the application was given as one piece at `address`: an allocation or a mapping.
  struct DeviceRange {
    Device* device = nullptr;  // whose memory it is
    uint64_t start = 0, bytes = 0;
    bool pooled = false;
    bool graphs = false;    // allocated by a node of a graph
    bool plain = false;     // of cuMemAlloc, which can be shared by CUDA IPC
    bool imported = false;  // from another process's memory pool
  };
  bool find_range(uint64_t address, DeviceRange* range);
  // Whether all of [address, address + bytes) is backed: an allocation, a module's global, or
  // pinned memory of the arena.
  bool is_backed(uint64_t address, uint64_t bytes);
  // Module globals: their addresses are the driver's own, in no window. They go with their code.
  struct Global {
    uint64_t start = 0, bytes = 0;
    Device* device = nullptr;
    uint64_t code = 0;
  };
  void add_global(const Global& global);
  bool find_global(uint64_t address, Global* global);
  void drop_globals_of(uint64_t code);

  HandleTable<Context> contexts{Kind::kContext};
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
  HandleTable<GreenContext> green_contexts{Kind::kGreenContext};
  std::atomic<bool> green_in_use{false};  // there has been one
  VirtualMemory virtual_memory{*this};
  HandleTable<Graph> graphs{Kind::kGraph};
  HandleTable<GraphExec> graph_execs{Kind::kGraphExec};
  HandleTable<GraphNode> graph_nodes{Kind::kGraphNode};
  HandleTable<UserObject> user_objects{Kind::kUserObject};
  SharedMemory shared_memory{*this};
  ImportedPools imported_pools{*this};
  AnswerCache answers;
  Captures captures;
  SyncMemops sync_memops;

  void close();
  // For `sluice run --share`: asks that this process's job keeps its vGPUs for as long as it lives,
  // and returns when nobody keeps it any more, with the reason. Opens no session.
  static Refusal hold_job();
  // For tests, once in a process: makes a session on this channel the process's own.
  static bool adopt_for_test(std::unique_ptr<Channel> channel, std::string* error);

 private:
  explicit Session(Config config) : config_(std::move(config)) {}
  CUresult start();
  static void become_current(Session* session);
  // On a channel that has opened.
  bool begin(std::string* error);
  bool read_record(std::string* error);
  CUresult lose();
  void show_output();
  // Of the lane, which the caller holds; never 0.
  uint32_t next_sequence(uint32_t lane) {
    uint32_t& sequence = lanes_[lane].sequence;
    return ++sequence ? sequence : ++sequence;
  }
  void count_work(Stream& stream);  // under append_
  // Adds a frame to the ring; `lane` is kNoLane when nobody waits for an answer.
  bool take_lane(uint32_t* taken, bool wait);
  bool append(uint16_t function, uint32_t lane, uint32_t sequence, const void* body, size_t bytes,
              std::span<const std::byte> tail, Stream* work, uint32_t context);

  static std::atomic<Session*> current_;
  static std::atomic<bool> forked_;  // this process is a child without a session

  Config config_;
  std::unique_ptr<Channel> channel_;
  std::mutex append_;
  std::atomic<uint32_t> lost_{0};
  struct LaneUse {
    std::atomic<bool> busy{false};
    uint32_t sequence = 0;
  };
  std::unique_ptr<LaneUse[]> lanes_;
  std::vector<std::unique_ptr<Device>> devices_;
  HostMemory host_memory_;
  Marks marks_;
  std::mutex globals_mutex_;
  std::map<uint64_t, Global> globals_;  // by start
  Statistics statistics_;
  uint32_t driver_version_ = 0;
  bool software_gpu_ = false;
  char driver_name_[sizeof(wire::SessionRecord::driver_name)] = "";
};

// What a thread carries: its stack of current contexts (the newest last), and its own streams.
struct ThreadState {
  static constexpr uint32_t kDepth = 64;
  uint32_t depth = 0;
  uint32_t last_lane = 0;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  uint64_t contexts[kDepth];
};
ThreadState& thread_state();

// The start of every driver call: the session, or the error to return.
inline CUresult enter(Session** session) {
  *session = Session::get();
  if (!*session) return CUDA_ERROR_NOT_INITIALIZED;
  return (*session)->sticky();
}

// The same for questions about devices, which CUDA answers even when the context is dead.
inline CUresult enter_query(Session** session) {
  *session = Session::get();
  return *session ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

// The same as enter() for calls that need a current context.
CUresult enter(Session** session, Device** device);
// The stream that a handle means in the current context, or CUDA_ERROR_INVALID_HANDLE.
CUresult resolve_stream(Session* session, Device* device, CUstream handle, Stream** stream);
// enter() for a call that is about a stream.
inline CUresult with_stream(CUstream handle, Session** session, Stream** stream) {
  Device* device;
  if (const CUresult e = enter(session, &device); e != CUDA_SUCCESS) return e;
  return resolve_stream(*session, device, handle, stream);
}
// The same for a call that gives the stream work.
inline CUresult stream_for_work(Session* session, Device* device, CUstream handle,
                                Stream** stream) {
  if (const CUresult e = resolve_stream(session, device, handle, stream); e != CUDA_SUCCESS)
    return e;
  return session->captures.work(*stream);
}
// The green context that is current on this thread, 0 for none, and a stream made in one
// (driver/green_context.cc).
uint64_t current_green(Session* session);
CUresult mint_green_stream(Session* session, uint64_t green, unsigned flags, int priority,
                           uint64_t* id);
// The blocking stream that stands for CU_STREAM_PER_THREAD of this thread and device, minted at
// first use (client/driver/stream.cc).
CUresult per_thread_stream(Session* session, Device* device, Stream** stream);

}  // namespace sluice::client
