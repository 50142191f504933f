// SPDX-License-Identifier: Apache-2.0
// One session: the vGPUs that a grant gives, the objects that its client made, and the books of its
// memory. Handlers (memory.cc, copy.cc, code.cc, launch.cc, stream.cc, event.cc and the generated
// ones) check everything that a command says against it. A command that does not fit ends the
// session by reject(); nothing else of the worker's does what a client says.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "wire/array_shape.h"
#include "wire/commands.h"
#include "wire/frame.h"
#include "worker/arena_view.h"
#include "worker/bounce.h"
#include "worker/bulk.h"
#include "worker/code_cache.h"
#include "worker/compiler.h"
#include "worker/driver.h"
#include "worker/endpoint.h"
#include "worker/gate.h"
#include "worker/grant_ledger.h"
#include "worker/graph.h"
#include "worker/limits.h"
#include "worker/objects.h"
#include "worker/signals.h"
#include "worker/traffic.h"

namespace sluice::worker {

// A GPU that this worker sees, with its primary context retained.
struct Gpu {
  CUdevice ordinal = 0;
  CUuuid uuid{};
  std::string name;
  std::string pci_bus_id;
  uint64_t memory_bytes = 0;
  CUcontext context = nullptr;
  CUstream house = nullptr;  // non-blocking, the worker's own
};

// "GPU-8-4-4-4-12", as nvidia-smi and CUDA_VISIBLE_DEVICES spell it.
std::string uuid_text(const CUuuid& uuid);

struct Vgpu {
  uint32_t index = 0;
  Gpu* gpu = nullptr;
  uint64_t memory_bytes = 0;
  uint32_t compute_percent = 100;
  uint64_t window_begin = 0, window_bytes = 0;
  uint32_t grant_index = 0;  // which of the grant's vGPUs it is
  std::mutex mutex;          // the books below
  struct Mapping {
    uint64_t bytes;
    CUmemGenericAllocationHandle handle;
    uint64_t allocation;  // an id of Session::allocations; 0: the mapping owns its memory
    bool shared = false;  // another session's memory, opened by CUDA IPC and charged there
  };
  std::map<uint64_t, Mapping> mappings;
  uint64_t mapped_bytes = 0;  // allocations that are mapped nowhere included
  // What may be taken: all of it, or what this session of a job has of the job's ledger.
  uint64_t credit_bytes = 0;
  uint64_t library_bytes = 0;  // what NVIDIA's libraries have taken (worker/library/charge.h)
  uint64_t library_changes = 0;
  uint64_t library_host_bytes = 0;         // and pinned on the node
  uint64_t streams = 0, streams_paid = 0;  // worker/library/charge.h
  uint64_t code_bytes = 0;                 // of the client's and of what libraries compiled
  uint64_t opened_bytes = 0;               // other sessions' memory that this one has opened
  // What others may open: mappings by address, allocations by id.
  std::map<uint64_t, wire::ShareKey> exported;
  // As the server was told last.
  std::atomic<uint64_t> shown_used{0}, shown_library{0};
  uint64_t users = 0;  // bit i: the vGPU i may use all memory of this window too (worker/peer.cc)
  wire::ArrayCharges array_charges;  // what they come to is in mapped_bytes
  Limits limits;
  std::unique_ptr<Gate> gate;
  // Under the mutex: what neither the client nor the libraries have.
  uint64_t room() const {
    const uint64_t taken = mapped_bytes + library_bytes;
    return credit_bytes > taken ? credit_bytes - taken : 0;
  }
  CUevent legacy_done = nullptr;  // the legacy stream when something last began to capture
};

struct SessionPlan {
  std::string id, grant, channel;
  struct VgpuPlan {
    std::string device;  // UUID
    uint64_t memory_mib;
    uint32_t compute_percent;
    uint32_t grant_index = 0;
  };
  std::vector<VgpuPlan> vgpus;
  uint64_t grant_vgpus = 0;  // 0: the workers of other grants are this user, too
};

class Session;
class Broker;
class SharedEvents;

// A command's body, read piece by piece; `ok` turns false at the first piece that is not there.
// fixed() must come first: only the start of a body is aligned.
class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> body) : rest_(body) {}
  template <class T>
  const T& fixed() {
    static const T blank{};
    if (rest_.size() < sizeof(T)) return ok_ = false, blank;
    const T* at = reinterpret_cast<const T*>(rest_.data());
    rest_ = rest_.subspan(sizeof(T));
    return *at;
  }
  std::span<const std::byte> bytes(uint64_t n) {
    if (n > rest_.size()) return ok_ = false, std::span<const std::byte>();
    const auto piece = rest_.first(n);
    rest_ = rest_.subspan(n);
    return piece;
  }
  bool ok() const { return ok_; }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

// What a handler answers. For a fire-and-forget command only `status` counts.
struct Reply {
  CUresult status = CUDA_SUCCESS;
  std::vector<std::byte> body;
  std::span<const std::byte> borrowed;  // sent behind `body`; valid until the reply is sent
  std::shared_ptr<std::byte> held;      // where it lies, if it is a piece of Session::bounces
  bool more = false;                    // the rest is fetched later
  template <class T>
  void put(const T& value) {
    const auto* at = reinterpret_cast<const std::byte*>(&value);
    body.insert(body.end(), at, at + sizeof value);
  }
  void put_bytes(const void* data, size_t n) {
    const auto* at = static_cast<const std::byte*>(data);
    body.insert(body.end(), at, at + n);
  }
};

struct StreamObject {
  CUstream handle = nullptr;
  uint32_t device = 0;
  uint64_t green = 0;  // the green context that it runs in
};
struct GreenObject {
  CUgreenCtx handle = nullptr;
  CUcontext context = nullptr;  // what it is as a context
  uint32_t device = 0;
};
struct CodeObject {
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  uint32_t device = 0;
  bool has_ptx = false;                // what the driver asks of it may compile
  bool module_kind = true;             // else a library, which belongs to no context
  uint64_t bytes = 0, data_bytes = 0;  // charged for it (worker/code_charge.h)
};
struct AllocationObject {
  CUmemGenericAllocationHandle handle = 0;
  uint32_t device = 0;
  uint64_t bytes = 0;
  bool shared = false;  // another session's, and charged there
};
// An event that other processes may record and wait for (worker/shared_event.cc).
struct SharedEventObject {
  class EventRegion* region = nullptr;
  uint32_t index = 0;
};
struct FunctionObject {
  CUfunction function = nullptr;  // or a kernel, cast
  CUkernel kernel = nullptr;
  uint64_t code = 0;  // the module or library that it came from
  uint32_t param_bytes = 0;
  uint32_t local_bytes = 0;  // of each thread
  bool settled = false;      // was launched: what the driver took for it is charged
};

struct ArrayObject {
  CUarray array = nullptr;
  CUmipmappedArray mipmapped = nullptr;
  uint32_t device = 0;
  wire::ArrayShape shape;
  uint64_t parent = 0;  // the mipmapped array that it is a level of
};

class Session {
 public:
  Session(const Driver& driver, std::unique_ptr<Endpoint> endpoint, SessionPlan plan);
  ~Session();

  // Reserves windows, registers what is shared and publishes the record. False with `error`.
  bool open(std::vector<Gpu>& gpus, std::string* error);

  // A command that no client of ours sends. Ends the session with this reason.
  void reject(const std::string& reason);
  bool rejected() const { return rejected_.load(std::memory_order_relaxed); }
  std::string reason();

  // Makes the vGPU's context current on this thread. nullptr: there is no such device (rejected).
  Vgpu* use(uint32_t device);
  // What this thread named last; nullptr for threads that ran no command.
  Vgpu* used_last() const;
  // Under the vGPU's mutex: whether the client may take `bytes` of its memory. More than the vGPU
  // has ends the session, as a client of ours counts itself. So much that only what libraries have
  // taken is in the way is an error of the session, out of memory: over TCP a client may learn of
  // that too late.
  bool may_take(const Vgpu& v, uint64_t bytes, const char* what, Reply& reply);
  // By the frame's context field (device + 1).
  Vgpu* use_context(uint32_t context) { return use(context - 1); }

  // The driver's stream; its context is made current. False: no such stream (rejected).
  bool stream(uint64_t id, uint32_t context, CUstream* handle, Vgpu** owner = nullptr);
  // Of one that the table has no more: out of the gate, out of the driver, out of the account.
  // Under captures.mutex.
  CUresult end_stream(Vgpu& v, const StreamObject& o);
  // Whether all of [address, address + bytes) is device memory that this session may name.
  bool device_range(uint64_t address, uint64_t bytes);
  bool arena_range(uint64_t address, uint64_t bytes);
  // The vGPU whose memory lies at a window's address, kNobody for other addresses.
  static constexpr uint32_t kNobody = ~0u;
  uint32_t memory_owner(uint64_t address);
  // Has `stream` write `value` into the completion page. kNoMark does nothing.
  CUresult mark(CUstream stream, uint32_t mark, uint64_t value);

  const Driver& driver;
  BulkFrames bulk;
  Bounces bounces;
  const SessionPlan plan;
  Endpoint& endpoint() { return *endpoint_; }
  std::vector<std::unique_ptr<Vgpu>> vgpus;
  std::unique_ptr<CodeCache> code_cache;  // where the node keeps code; set before open()
  std::unique_ptr<GrantLedger> ledger;    // where other sessions use the same vGPUs; likewise

  ObjectTable<StreamObject> streams{wire::HandleKind::kStream};
  ObjectTable<CUevent> events{wire::HandleKind::kEvent};
  ObjectTable<CodeObject> modules{wire::HandleKind::kModule};
  ObjectTable<CodeObject> libraries{wire::HandleKind::kLibrary};
  Compiler compiler;  // before the links, which it has to end
  ObjectTable<std::shared_ptr<struct LinkState>> links{wire::HandleKind::kLink};
  ObjectTable<FunctionObject> functions{wire::HandleKind::kFunction};
  ObjectTable<FunctionObject> kernels{wire::HandleKind::kKernel};
  ObjectTable<AllocationObject> allocations{wire::HandleKind::kAllocation};
  ObjectTable<SharedEventObject> shared_events{wire::HandleKind::kEvent, wire::kMaxSharedEvents};
  Broker* broker = nullptr;  // the way to other sessions; the worker's own
  std::unique_ptr<SharedEvents> events_of_others;
  ObjectTable<ArrayObject> arrays{wire::HandleKind::kArray};
  ObjectTable<ArrayObject> mipmapped_arrays{wire::HandleKind::kMipmappedArray};
  ObjectTable<GreenObject> green_contexts{wire::HandleKind::kGreenContext};
  // What clients name by number (worker/green_context.cc). The leader's alone.
  struct KnownResource {
    CUdevResource resource;
    uint32_t device;
  };
  std::vector<KnownResource> dev_resources;
  std::vector<CUdevResourceDesc> dev_descriptions;
  // Textures and surfaces by vGPU, kind and the driver's number. The leader's alone.
  std::set<std::tuple<uint32_t, bool, uint64_t>> textures;
  // How often each allocation is mapped. The leader's alone.
  std::map<uint64_t, uint32_t> times_mapped;
  ObjectTable<GraphRef> graphs{wire::HandleKind::kGraph};
  ObjectTable<GraphExecObject> graph_execs{wire::HandleKind::kGraphExec};
  uint64_t graph_nodes = 0;  // of all of both (worker/graph_size.h). The leader's alone.
  Captures captures;
  Shadows shadows;
  ArenaViews arena_views;
  Signals signals;
  GraphTraffic graph_traffic;

  // Whether the driver has this stream in a capture.
  bool capturing(CUstream stream);
  // The worker's own work leaves a stream that is about to capture. Under the captures' lock.
  void keep_out(CUstream stream, Vgpu* v);
  // Waits for all work of the vGPU that is under way.
  CUresult wait_idle(Vgpu* v);
  // For what the legacy stream had when something last began to capture.
  CUresult wait_for_legacy(Vgpu* v);

  // Blobs under way (kUpload), filled by the leader, taken by whoever loads them.
  std::mutex blobs_mutex;
  struct Blob {
    std::vector<std::byte> bytes;  // what has come
    uint64_t total = 0, received = 0;
    bool refused = false;  // there was no room: what comes is counted only
  };
  std::map<uint64_t, Blob> blobs;
  uint64_t blob_bytes = 0;  // of all of them

  // What of an answer an endpoint did not carry at once, by lane, until the lane has fetched it.
  // `from`: how much of the answer has gone out. False: what others have not fetched leaves no
  // room for it.
  static constexpr size_t kMostRests = 64 << 20;  // sixteen of the longest answer
  [[nodiscard]] bool keep_rest(uint16_t lane, uint64_t from, std::span<const std::byte> rest);
  // The next piece; false when nothing of that lane is left to be sent from there on.
  bool take_rest(uint16_t lane, uint64_t from, size_t most, std::vector<std::byte>* piece,
                 bool* more);

  // Address ranges of module globals, which lie outside the windows.
  void add_global(uint64_t address, uint64_t bytes, uint64_t code);
  void drop_globals_of(uint64_t code);
  CUdeviceptr mark_address(uint32_t mark) const { return marks_device_ + mark * sizeof(uint64_t); }
  bool mark_valid(uint32_t mark) const { return mark < mark_count_; }

  std::atomic<uint64_t> commands{0}, round_trips{0}, replied{0};  // the last in bytes
  std::atomic<uint64_t> shared_in{0}, shared_out{0};              // bytes (worker/traffic.h)
  // All that came from the client and all that went there, whichever way it took.
  uint64_t bytes_in() const { return endpoint_->bytes_in() + shared_in.load(); }
  uint64_t bytes_out() const { return replied.load() + shared_out.load(); }
  std::atomic<uint64_t> activity{0};  // grows while there may be GPU work: the watchdog looks

 private:
  bool reserve_windows(std::string* error);
  bool share_marks(std::string* error);
  std::vector<std::byte> record();
  void fill(const Vgpu& v, wire::DeviceRecord* r);
  void fill_peers(const Vgpu& v, wire::DeviceRecord* r);

  std::unique_ptr<Endpoint> endpoint_;
  std::atomic<bool> rejected_{false};
  std::mutex reason_mutex_;
  std::string reason_;
  CUdeviceptr marks_device_ = 0;
  uint32_t mark_count_ = 0;
  std::mutex answers_mutex_;
  struct Rest {
    uint64_t from = 0;
    std::vector<std::byte> bytes;
    size_t sent = 0;
  };
  std::map<uint16_t, Rest> answers_;
  size_t rest_bytes_ = 0;  // of all of them
  std::mutex globals_mutex_;
  struct Global {
    uint64_t bytes, code;
  };
  std::map<uint64_t, Global> globals_;
};

}  // namespace sluice::worker
