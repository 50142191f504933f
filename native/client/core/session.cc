// SPDX-License-Identifier: Apache-2.0
#include "client/core/session.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "channel/futex.h"
#include "client/core/log.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace sluice::client {

std::atomic<Session*> Session::current_{nullptr};
std::atomic<bool> Session::forked_{false};

namespace {

std::mutex g_open_mutex;
CUresult g_open_result = CUDA_ERROR_NOT_INITIALIZED;
bool g_open_tried = false;

uint64_t own_start_time() {
  std::ifstream in("/proc/self/stat");
  std::string all;
  std::getline(in, all);
  const size_t paren = all.rfind(')');
  if (paren == std::string::npos) return 0;
  const char* at = all.c_str() + paren + 1;
  for (int field = 2; *at && field < 21; ++at)
    if (*at == ' ') ++field;
  return std::strtoull(at, nullptr, 10);
}

template <size_t N>
void put_text(char (&to)[N], const std::string& from) {
  std::memcpy(to, from.data(), std::min(from.size(), N - 1));
}

wire::OpenSession make_request(const Config& c) {
  wire::OpenSession r{};
  r.header = {sizeof r, wire::kOpenSession, wire::kNoLane, 0, 0};
  r.magic = wire::kOpenMagic;
  r.protocol_major = wire::kProtocolMajor;
  r.protocol_minor = wire::kProtocolMinor;
  r.vgpu_count = static_cast<uint32_t>(c.visible.size());
  if (!c.job.empty()) {
    // A job's vGPUs are its processes' own to tell apart: which of them this one has is said.
    put_text(r.job, c.job);
    r.job_processes = c.job_processes;
    r.vgpu_count = c.vgpu_count;
    r.chosen_count = static_cast<uint32_t>(c.visible.size());
    bool all = c.visible.size() == c.vgpu_count;
    for (size_t i = 0; i < c.visible.size(); ++i) {
      r.chosen[i] = static_cast<uint8_t>(c.visible[i]);
      all = all && c.visible[i] == i;
    }
    if (all) r.chosen_count = 0;
  }
  r.gmem_mib = c.gmem_mib;
  r.ratio_percent = c.ratio_percent;
  r.flags = (c.cross_node ? wire::kCrossNode : 0u) | (c.wishes.preempt ? wire::kPreempt : 0u) |
            (c.wishes.same_gpu ? wire::kSameGpu : 0u) |
            (c.wishes.mode == "reserved" ? wire::kReservedOnly : 0u) |
            (c.wishes.mode == "on-demand" ? wire::kOnDemandOnly : 0u) | wire::kTakesRelay;
  r.priority = c.priority;
  r.wait_seconds = c.wait_seconds;
  r.pid = static_cast<uint32_t>(getpid());
  r.uid = static_cast<uint32_t>(getuid());
  r.start_time = own_start_time();
  r.cuda_version = 13000;
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  put_text(r.host, host);
  char exe[256];
  const ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
  if (n > 0) {
    const std::string path(exe, static_cast<size_t>(n));
    put_text(r.program, path.substr(path.rfind('/') + 1));
  }
  return r;
}

std::unique_ptr<Channel> open_channel(const Config& c, const wire::OpenSession& request,
                                      Refusal* refusal) {
  const bool any = c.channel == "auto";
  std::string why_not;
  if (c.channel == "shm" || (any && access(c.server_socket.c_str(), F_OK) == 0))
    return open_unix(c.server_socket, request, c.wishes, refusal);
  if (any || c.channel == "ivshmem") {
    const std::string resource = c.ivshmem.empty() ? find_ivshmem(&why_not) : c.ivshmem;
    if (!resource.empty()) return open_ivshmem(resource, request, c.wishes, refusal);
    if (!any) {
      refusal->text = why_not;
      return nullptr;
    }
  }
  std::string no_vsock;
  if (c.channel == "vsock" || (any && find_vsock(&no_vsock)))
    return open_vsock(request, c.wishes, refusal);
  if (any) why_not += "; " + no_vsock;
  if (any && !c.enable_net) {
    refusal->text = "no channel: no server socket " + c.server_socket + "; " + why_not +
                    "; the network is disabled (enable_net)";
    return nullptr;
  }
  auto channel = open_tcp(c, request, refusal);
  if (!channel && any)
    refusal->text += " (before that: no server socket " + c.server_socket + "; " + why_not + ")";
  return channel;
}

}  // namespace

std::vector<std::byte> open_frame(wire::OpenSession request, const Wishes& wishes) {
  std::string text;
  const auto add = [&text](const std::string& name, const std::string& value) {
    if (!value.empty()) text += name + "=" + value + "\n";
  };
  add("project", wishes.project);
  add("gpu_model", wishes.gpu_model);
  add("gpu_architecture", wishes.gpu_architecture);
  for (const auto& [name, value] : wishes.labels) add("label", name + "=" + value);
  text.resize(std::min(wire::round_up(text.size(), 8), wire::kMaxWishBytes));
  request.header.size = static_cast<uint32_t>(sizeof request + text.size());
  std::vector<std::byte> frame(request.header.size);
  std::memcpy(frame.data(), &request, sizeof request);
  std::memcpy(frame.data() + sizeof request, text.data(), text.size());
  return frame;
}

ThreadState& thread_state() {
  static thread_local ThreadState state{};
  return state;
}

CUresult Session::open() {
  if (forked_) return CUDA_ERROR_NOT_INITIALIZED;
  if (current_.load(std::memory_order_acquire)) return CUDA_SUCCESS;
  std::lock_guard lock(g_open_mutex);
  if (g_open_tried) return g_open_result;
  g_open_tried = true;
  static Session* session = new Session(read_config());  // lives until the process ends
  g_open_result = session->start();
  if (g_open_result == CUDA_SUCCESS) {
    become_current(session);
  }
  return g_open_result;
}

CUresult Session::start() {
  log_open(config_);
  Refusal refusal{config_.error};
  if (refusal.text.empty() && config_.visible.empty()) {
    // An empty list, -1 or a word is how GPUs are hidden; a number that is too high is a mistake.
    const std::string list = std::getenv("CUDA_VISIBLE_DEVICES");
    const bool meant = list.find_first_of("0123456789") != 0;
    log_line(meant ? LogLevel::kInfo : LogLevel::kError,
             "CUDA_VISIBLE_DEVICES=" + list + " leaves none of this process's " +
                 std::to_string(config_.vgpu_count) + " vGPU (SLUICE_VGPU), numbered from 0");
    return CUDA_ERROR_NO_DEVICE;
  }
  const wire::OpenSession request = make_request(config_);
  if (refusal.text.empty()) channel_ = open_channel(config_, request, &refusal);
  if (channel_ && begin(&refusal.text)) return CUDA_SUCCESS;
  log_line(LogLevel::kError, "no vGPU: " + refusal.text);
  return static_cast<CUresult>(refusal.status);
}

Refusal Session::hold_job() {
  const Config config = read_config();
  Refusal refusal{config.error};
  if (refusal.text.empty() && config.job.empty()) refusal.text = "SLUICE_JOB is not set";
  if (!refusal.text.empty()) return refusal;
  wire::OpenSession request = make_request(config);
  request.flags |= wire::kHoldJob;
  open_channel(config, request, &refusal);
  return refusal;
}

bool Session::adopt_for_test(std::unique_ptr<Channel> channel, std::string* error) {
  static Session* session = new Session(Config{});
  session->channel_ = std::move(channel);
  if (!session->begin(error)) return false;
  g_open_tried = true;
  g_open_result = CUDA_SUCCESS;
  become_current(session);
  return true;
}

void Session::become_current(Session* session) {
  // Channel, lanes and arena belong to the parent. A child of fork() learns what native CUDA says,
  // from every call: it has not even the arena's pages.
  pthread_atfork(nullptr, nullptr, [] {
    forked_ = true;
    current_.store(nullptr, std::memory_order_release);
  });
  current_.store(session, std::memory_order_release);
}

bool Session::begin(std::string* error) {
  if (!read_record(error)) {
    channel_.reset();
    return false;
  }
  lanes_ = std::make_unique<LaneUse[]>(channel_->lane_count());
  marks_.open(channel_->marks());
  host_memory_.open(channel_->arena(), &marks_, [this](uint64_t address, uint64_t bytes) {
    return post(wire::kArenaRegister, wire::ArenaRegister{address, bytes}) == CUDA_SUCCESS;
  });
  return true;
}

bool Session::read_record(std::string* error) {
  const std::span<const std::byte> all = channel_->open_reply();
  wire::SessionRecord record;
  if (all.size() < sizeof(wire::OpenReply) + sizeof record) {
    *error = "the session's record is cut short";
    return false;
  }
  const std::byte* at = all.data() + sizeof(wire::OpenReply);
  std::memcpy(&record, at, sizeof record);
  at += sizeof record;
  if (record.device_count == 0 || record.device_count > wire::kMaxDevices ||
      record.device_bytes < sizeof(wire::DeviceRecord) ||
      all.size() < sizeof(wire::OpenReply) + sizeof record +
                       size_t{record.device_bytes} * record.device_count) {
    *error =
        "the session's record does not fit this client: bring client and server to one release";
    return false;
  }
  driver_version_ = record.driver_version;
  software_gpu_ = record.software_gpu != 0;
  node_keeps_code = record.keeps_code != 0;
  std::memcpy(driver_name_, record.driver_name, sizeof driver_name_ - 1);
  for (uint32_t i = 0; i < record.device_count; ++i, at += record.device_bytes) {
    auto d = std::make_unique<Device>();
    d->index = i;
    std::memcpy(&d->record, at, sizeof d->record);
    d->record.name[sizeof d->record.name - 1] = 0;
    d->record.pci_bus_id[sizeof d->record.pci_bus_id - 1] = 0;
    void* window = reinterpret_cast<void*>(d->record.window_begin);
    // Nothing of this process may lie where device addresses are: a pointer's value alone says what
    // it is.
    void* got = mmap(window, d->record.window_bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != window) {
      *error = "the vGPU's address window cannot be reserved in this process: " +
               std::string(std::strerror(errno));
      return false;
    }
    madvise(window, d->record.window_bytes, MADV_DONTFORK);
    Device* raw = d.get();
    const auto tell = [this, raw](uint16_t function) {
      return [this, raw, function](uint64_t address, uint64_t bytes) {
        return post(function, wire::MemoryMap{raw->index, 0, address, bytes}) == CUDA_SUCCESS;
      };
    };
    DeviceMemory::Sink sink{tell(wire::kMemoryMap), tell(wire::kMemoryUnmap), {}};
    if (record.shares_memory)
      sink.credit = [this, raw](uint64_t bytes, uint64_t* left) {
        wire::MemoryCreditReply reply{};
        const CUresult e = exchange(wire::kMemoryCredit, wire::MemoryCredit{raw->index, 0, bytes},
                                    {}, std::as_writable_bytes(std::span(&reply, 1)));
        *left = reply.free_bytes;
        return e == CUDA_SUCCESS               ? DeviceMemory::Result::kDone
               : e == CUDA_ERROR_OUT_OF_MEMORY ? DeviceMemory::Result::kOutOfMemory
                                               : DeviceMemory::Result::kSessionLost;
      };
    d->memory.open(d->record.window_begin, d->record.window_bytes, d->record.memory_bytes,
                   std::move(sink),
                   record.shares_memory ? nullptr : channel_->memory_used(d->index));
    d->thread_bytes = d->record.thread_bytes ? d->record.thread_bytes : ~uint64_t{0};
    d->legacy.device = raw;
    d->pools.open(&d->memory, std::make_unique<DeviceOrder>(*this, *raw));
    d->graph_memory.open(this, raw);
    *pools.create(&d->standard_pool) = {raw, d->pools.standard()};
    d->current_pool = d->standard_pool;
    Context* context = contexts.create(&d->primary);
    *context = {raw, 0, true};
    devices_.push_back(std::move(d));
  }
  channel_->on_library_memory = [this](const wire::LibraryMemory& m) {
    if (m.device < devices_.size()) devices_[m.device]->memory.note_libraries(m.order, m.bytes);
  };
  return true;
}

void Session::note_done(Device& device, Stream* stream, uint64_t upto) {
  std::lock_guard lock(append_);
  if (stream) stream->done = std::max(stream->done, upto);
  if (upto <= device.idle_at) return;
  if (!stream || device.only_stream == stream) device.idle_at = upto;
}

StreamPoint Session::stream_point(const Stream& stream) {
  const Device& d = *stream.device;
  std::lock_guard lock(append_);
  // The legacy stream waits for the blocking ones and they for it, also when they get nothing of
  // their own to do.
  const bool apart = stream.flags & CU_STREAM_NON_BLOCKING;
  const uint64_t others = apart ? 0 : &stream == &d.legacy ? d.last_blocking : d.legacy.last_work;
  if (others > stream.last_work) return {d.issued, true};
  return {stream.last_work, false};
}

bool Session::stream_passed(const Device& device, const Stream* stream, StreamPoint point) {
  std::lock_guard lock(append_);
  return device.idle_at >= point.work || (!point.whole_device && stream->done >= point.work);
}

void Session::forget_stream(Device& device, const Stream* stream) {
  std::lock_guard lock(append_);
  if (device.only_stream == stream) device.only_stream = nullptr;
}

uint64_t Session::issued(const Device& device) {
  std::lock_guard lock(append_);
  return device.issued;
}

bool Session::idle(const Device& device) {
  std::lock_guard lock(append_);
  return device.issued == device.idle_at;
}

Device* Session::device_of_address(uint64_t address) {
  for (auto& d : devices_)
    if (d->memory.in_window(address)) return d.get();
  return nullptr;
}

bool Session::same_gpu(const Device& a, const Device& b) {
  return std::memcmp(a.record.physical_uuid, b.record.physical_uuid,
                     sizeof a.record.physical_uuid) == 0;
}

bool Session::is_device_address(uint64_t address) {
  Global global;
  return device_of_address(address) || find_global(address, &global);
}

bool Session::find_range(uint64_t address, DeviceRange* range) {
  Device* d = device_of_address(address);
  if (!d) return false;
  range->device = d;
  range->plain = d->memory.find(address, &range->start, &range->bytes);
  if (range->plain) return true;
  range->pooled = d->pools.find(address, &range->start, &range->bytes);
  if (range->pooled) return true;
  range->graphs = d->graph_memory.find(address, &range->start, &range->bytes);
  if (range->graphs || shared_memory.find(address, &range->start, &range->bytes)) return true;
  range->imported = imported_pools.find(address, &range->start, &range->bytes);
  if (range->imported) return true;
  VirtualMemory::Mapping mapping;
  if (!virtual_memory.find(address, &range->start, &mapping)) return false;
  range->device = mapping.device;
  range->bytes = mapping.bytes;
  return true;
}

bool Session::is_backed(uint64_t address, uint64_t bytes) {
  if (Device* d = device_of_address(address)) return d->memory.covers(address, bytes);
  if (host_memory_.in_arena(reinterpret_cast<void*>(address), bytes)) return true;
  Global global;
  return find_global(address, &global) && bytes <= global.bytes - (address - global.start);
}

void Session::add_global(const Global& global) {
  std::lock_guard lock(globals_mutex_);
  globals_[global.start] = global;
}

bool Session::find_global(uint64_t address, Global* global) {
  std::lock_guard lock(globals_mutex_);
  auto it = globals_.upper_bound(address);
  if (it == globals_.begin()) return false;
  --it;
  if (address - it->first >= it->second.bytes) return false;
  *global = it->second;
  return true;
}

void Session::drop_globals_of(uint64_t code) {
  std::lock_guard lock(globals_mutex_);
  std::erase_if(globals_, [&](const auto& g) { return g.second.code == code; });
}

void Session::close() {
  if (forked_) return;
  if (config_.stats) statistics_.print(channel_->bytes_out, answers.hits());
  channel_->close();
}

CUresult enter(Session** session, Device** device) {
  if (const CUresult e = enter(session); e != CUDA_SUCCESS) return e;
  const ThreadState& thread = thread_state();
  if (thread.depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  const Context* context = (*session)->contexts.find(thread.contexts[thread.depth - 1]);
  if (!context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *device = context->device;
  return CUDA_SUCCESS;
}

CUresult resolve_stream(Session* session, Device* device, CUstream handle, Stream** stream) {
  const auto value = reinterpret_cast<uint64_t>(handle);
  if (value <= 1) {
    *stream = &device->legacy;
    const GreenContext* green = session->green_in_use.load(std::memory_order_relaxed)
                                    ? session->green_contexts.find(current_green(session))
                                    : nullptr;
    if (green) *stream = session->streams.find(green->standard);
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  if (value == 2) return per_thread_stream(session, device, stream);
  *stream = session->streams.find(value);
  if (!*stream) return CUDA_ERROR_INVALID_HANDLE;
  return (*stream)->orphan ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

namespace {
struct CloseAtExit {
  ~CloseAtExit() {
    if (Session* s = Session::get()) s->close();
  }
} close_at_exit;
}  // namespace

}  // namespace sluice::client
