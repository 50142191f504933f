// SPDX-License-Identifier: Apache-2.0
#include "worker/session.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "wire/address_windows.h"
#include "wire/frame.h"
#include "worker/device_attributes.h"
#include "worker/log.h"
#include "worker/peer.h"
#include "worker/shared_event.h"

namespace sluice::worker {

namespace {

std::string hex(uint64_t v) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(v));
  return text;
}

}  // namespace

std::string uuid_text(const CUuuid& u) {
  char text[48];
  const auto b = [&](int i) { return static_cast<unsigned char>(u.bytes[i]); };
  std::snprintf(text, sizeof text,
                "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b(0),
                b(1), b(2), b(3), b(4), b(5), b(6), b(7), b(8), b(9), b(10), b(11), b(12), b(13),
                b(14), b(15));
  return text;
}

Session::Session(const Driver& d, std::unique_ptr<Endpoint> endpoint, SessionPlan p)
    : driver(d), bulk(d), bounces(d), plan(std::move(p)), endpoint_(std::move(endpoint)) {
  events_of_others = std::make_unique<SharedEvents>(*this);
}

Session::~Session() = default;

void Session::reject(const std::string& reason) {
  std::lock_guard lock(reason_mutex_);
  if (rejected_) return;
  reason_ = reason;
  rejected_ = true;
}

std::string Session::reason() {
  std::lock_guard lock(reason_mutex_);
  return reason_;
}

bool Session::open(std::vector<Gpu>& gpus, std::string* error) {
  for (const auto& v : plan.vgpus) {
    const auto gpu = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& g) {
      return v.device.empty() || uuid_text(g.uuid) == v.device;
    });
    if (gpu == gpus.end()) {
      *error = "this worker does not see the GPU " + v.device;
      return false;
    }
    auto made = std::make_unique<Vgpu>();
    made->index = static_cast<uint32_t>(vgpus.size());
    made->gpu = &*gpu;
    made->memory_bytes = v.memory_mib << 20;
    made->compute_percent = v.compute_percent;
    made->grant_index = v.grant_index;
    made->credit_bytes = ledger ? 0 : made->memory_bytes;
    made->gate = std::make_unique<Gate>(driver);
    vgpus.push_back(std::move(made));
  }
  if (vgpus.empty() || vgpus.size() > wire::kMaxDevices) {
    *error = "a session needs 1 to 64 vGPUs";
    return false;
  }
  if (!reserve_windows(error) || !share_marks(error)) return false;
  for (auto& v : vgpus) {
    driver.cuCtxSetCurrent(v->gpu->context);
    open_limits(driver, *v);
  }
  return endpoint_->publish_record(record(), error);
}

bool Session::reserve_windows(std::string* error) {
  const uint64_t bytes = vgpus.size() <= 4 ? wire::kLargeWindowBytes : wire::kSmallWindowBytes;
  uint64_t at = wire::kWindowsBegin;
  for (auto& v : vgpus) {
    if (at < wire::kWindowHoleEnd && at + bytes > wire::kWindowHoleBegin) at = wire::kWindowHoleEnd;
    if (at + bytes > wire::kWindowsEnd) {
      *error = "too many vGPUs for the address windows";
      return false;
    }
    driver.cuCtxSetCurrent(v->gpu->context);
    CUdeviceptr got = 0;
    const CUresult e = driver.cuMemAddressReserve(&got, bytes, 0, at, 0);
    if (e != CUDA_SUCCESS || got != at) {
      *error = "the driver does not give the address window at " + hex(at) + ": " +
               (e != CUDA_SUCCESS ? driver.error_text(e) : "it offers " + hex(got));
      return false;
    }
    v->window_begin = at;
    v->window_bytes = bytes;
    at += bytes;
  }
  return true;
}

bool Session::share_marks(std::string* error) {
  std::atomic<uint64_t>* marks = endpoint_->marks();
  if (!marks) return true;
  driver.cuCtxSetCurrent(vgpus[0]->gpu->context);
  const size_t bytes = endpoint_->mark_count() * sizeof(uint64_t);
  CUresult e = driver.cuMemHostRegister_v2(
      marks, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (e == CUDA_SUCCESS) e = driver.cuMemHostGetDevicePointer_v2(&marks_device_, marks, 0);
  if (e != CUDA_SUCCESS) {
    *error = "the completion page cannot be registered: " + driver.error_text(e);
    return false;
  }
  mark_count_ = static_cast<uint32_t>(endpoint_->mark_count());
  return true;
}

void Session::fill(const Vgpu& v, wire::DeviceRecord* r) {
  r->window_begin = v.window_begin;
  r->window_bytes = v.window_bytes;
  r->memory_bytes = v.memory_bytes;
  r->compute_percent = v.compute_percent;
  std::memcpy(r->physical_uuid, v.gpu->uuid.bytes, 16);
  // A vGPU is a device of its own: the same card in two sessions has two names, and one in all
  // sessions of a job.
  std::memcpy(r->uuid, v.gpu->uuid.bytes, 16);
  uint64_t h = 0xcbf29ce484222325 ^ (ledger ? v.grant_index : v.window_begin);
  for (unsigned char c : ledger ? plan.grant : plan.id) h = (h ^ c) * 0x100000001b3;
  for (int i = 0; i < 8; ++i) r->uuid[i] ^= static_cast<uint8_t>(h >> (8 * i));
  std::snprintf(r->name, sizeof r->name, "%s", v.gpu->name.c_str());
  std::snprintf(r->pci_bus_id, sizeof r->pci_bus_id, "%s", v.gpu->pci_bus_id.c_str());
  r->granularity = 2 << 20;
  r->thread_bytes = std::max<uint64_t>(v.limits.base_bytes, 1);
  r->attribute_count = std::min<uint32_t>(wire::kDeviceAttributes, CU_DEVICE_ATTRIBUTE_MAX);
  for (uint32_t a = 1; a < r->attribute_count; ++a) {
    int value = 0;
    if (driver.cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(a), v.gpu->ordinal) ==
        CUDA_SUCCESS)
      r->attributes[a] = value;
  }
  const auto set = [&](CUdevice_attribute a, int value) { r->attributes[a] = value; };
  tell_the_truth(r->attributes, {!endpoint_->arena().empty(), plan.channel == "shm"});
  // Both by the broker.
  set(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  set(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1);
  driver.cuCtxSetCurrent(v.gpu->context);
  driver.cuCtxGetStreamPriorityRange(&r->stream_priority_least, &r->stream_priority_greatest);
  for (int l = 0; l < 8; ++l) {
    size_t value = 0;
    r->limits[l] =
        driver.cuCtxGetLimit(&value, static_cast<CUlimit>(l)) == CUDA_SUCCESS ? value : ~0ull;
  }
}

void Session::fill_peers(const Vgpu& v, wire::DeviceRecord* r) {
  for (size_t i = 0; i < vgpus.size(); ++i) {
    if (vgpus[i].get() == &v) continue;
    const PeerLink link = peer_link(driver, *v.gpu, *vgpus[i]->gpu);
    r->peers |= uint64_t{link.access} << i;
    r->peer_atomics |= uint64_t{link.atomics} << i;
    r->peer_rank[i] = link.rank;
  }
}

std::vector<std::byte> Session::record() {
  wire::OpenReply reply{};
  wire::SessionRecord head{};
  reply.header = {sizeof reply, wire::kOpenReply, wire::kNoLane, 0, 0};
  reply.session_id = std::strtoull(plan.id.c_str(), nullptr, 16);
  head.device_bytes = sizeof(wire::DeviceRecord);
  head.device_count = static_cast<uint32_t>(vgpus.size());
  head.record_bytes =
      static_cast<uint32_t>(sizeof head + vgpus.size() * sizeof(wire::DeviceRecord));
  int version = 0;
  driver.cuDriverGetVersion(&version);
  head.driver_version = static_cast<uint32_t>(version);
  head.keeps_code = code_cache != nullptr;
  head.shares_memory = ledger != nullptr;
  head.software_gpu = vgpus[0]->gpu->name.find("software GPU") != std::string::npos;
  if (!head.software_gpu)
    std::snprintf(head.driver_name, sizeof head.driver_name, "%s", driver.kernel_driver.c_str());
  std::vector<std::byte> all(sizeof reply + head.record_bytes);
  std::memcpy(all.data(), &reply, sizeof reply);
  std::memcpy(all.data() + sizeof reply, &head, sizeof head);
  for (size_t i = 0; i < vgpus.size(); ++i) {
    wire::DeviceRecord r{};
    fill(*vgpus[i], &r);
    fill_peers(*vgpus[i], &r);
    std::memcpy(all.data() + sizeof reply + sizeof head + i * sizeof r, &r, sizeof r);
  }
  return all;
}

namespace {
thread_local uint32_t last_used = ~0u;
}

Vgpu* Session::used_last() const {
  return last_used < vgpus.size() ? vgpus[last_used].get() : nullptr;
}

bool Session::may_take(const Vgpu& v, uint64_t bytes, const char* what, Reply& reply) {
  // A well-behaved client cannot get here: it keeps the same books, and asks for credit in a job.
  if (bytes > (ledger ? v.room() : v.memory_bytes - v.mapped_bytes)) {
    reject(std::string(what) + " asks for more than the vGPU's memory");
    return false;
  }
  if (bytes <= v.room()) return true;
  log_error(std::string(what) + ": libraries have taken " + std::to_string(v.library_bytes) +
            " bytes of the vGPU's memory, so " + std::to_string(bytes) + " more are not there");
  reply.status = CUDA_ERROR_OUT_OF_MEMORY;
  return false;
}

Vgpu* Session::use(uint32_t device) {
  if (device >= vgpus.size()) {
    reject("a command names the vGPU " + std::to_string(device) + " of " +
           std::to_string(vgpus.size()));
    return nullptr;
  }
  Vgpu* v = vgpus[device].get();
  last_used = device;
  static thread_local CUcontext current = nullptr;
  if (current != v->gpu->context) {
    driver.cuCtxSetCurrent(v->gpu->context);
    current = v->gpu->context;
  }
  return v;
}

bool Session::stream(uint64_t id, uint32_t context, CUstream* handle, Vgpu** owner) {
  Vgpu* v;
  if (id == 0) {
    *handle = CU_STREAM_LEGACY;
    v = use_context(context);
  } else {
    StreamObject s;
    if (!streams.get(id, &s)) {
      reject("a command names the stream " + hex(id) + ", which the session does not have");
      return false;
    }
    *handle = s.handle;
    v = use(s.device);
  }
  if (owner) *owner = v;
  return v != nullptr;
}

bool Session::device_range(uint64_t address, uint64_t bytes) {
  for (auto& v : vgpus) {
    const uint64_t at = address - v->window_begin;
    if (at < v->window_bytes) return bytes <= v->window_bytes - at;
  }
  if (arena_range(address, bytes))
    return true;  // the device reaches pinned memory by the same address
  std::lock_guard lock(globals_mutex_);
  auto it = globals_.upper_bound(address);
  if (it == globals_.begin()) return false;
  --it;
  const uint64_t at = address - it->first;
  return at < it->second.bytes && bytes <= it->second.bytes - at;
}

uint32_t Session::memory_owner(uint64_t address) {
  for (uint32_t i = 0; i < vgpus.size(); ++i) {
    Vgpu& v = *vgpus[i];
    if (address - v.window_begin >= v.window_bytes) continue;
    std::lock_guard lock(v.mutex);
    const auto it = v.mappings.upper_bound(address);
    AllocationObject o;
    // Any vGPU's memory can be mapped into a window by the virtual memory API.
    return it != v.mappings.begin() && allocations.get(std::prev(it)->second.allocation, &o)
               ? o.device
               : i;
  }
  return kNobody;
}

bool Session::arena_range(uint64_t address, uint64_t bytes) {
  const auto arena = endpoint_->arena();
  const uint64_t at = address - reinterpret_cast<uint64_t>(arena.data());
  return at < arena.size() && bytes <= arena.size() - at;
}

bool Session::keep_rest(uint16_t lane, uint64_t from, std::span<const std::byte> rest) {
  std::lock_guard lock(answers_mutex_);
  // The lane's last answer, if its client never wanted all of it.
  if (const auto old = answers_.find(lane); old != answers_.end()) {
    rest_bytes_ -= old->second.bytes.size();
    answers_.erase(old);
  }
  if (rest.size() > kMostRests - rest_bytes_) return false;
  rest_bytes_ += rest.size();
  answers_[lane] = {from, {rest.begin(), rest.end()}};
  return true;
}

bool Session::take_rest(uint16_t lane, uint64_t from, size_t most, std::vector<std::byte>* piece,
                        bool* more) {
  std::lock_guard lock(answers_mutex_);
  const auto it = answers_.find(lane);
  if (it == answers_.end() || from != it->second.from + it->second.sent) return false;
  Rest& rest = it->second;
  const size_t n = std::min(most, rest.bytes.size() - rest.sent);
  const auto at = rest.bytes.begin() + static_cast<ptrdiff_t>(rest.sent);
  piece->assign(at, at + static_cast<ptrdiff_t>(n));
  rest.sent += n;
  *more = rest.sent < rest.bytes.size();
  if (!*more) {
    rest_bytes_ -= rest.bytes.size();
    answers_.erase(it);
  }
  return true;
}

void Session::add_global(uint64_t address, uint64_t bytes, uint64_t code) {
  std::lock_guard lock(globals_mutex_);
  globals_[address] = {bytes, code};
}

void Session::drop_globals_of(uint64_t code) {
  std::lock_guard lock(globals_mutex_);
  std::erase_if(globals_, [&](const auto& g) { return g.second.code == code; });
}

CUresult Session::mark(CUstream stream, uint32_t mark, uint64_t value) {
  if (mark == wire::kNoMark) return CUDA_SUCCESS;
  if (!mark_valid(mark)) {
    reject("a command names the mark " + std::to_string(mark) + ", which there is not");
    return CUDA_SUCCESS;
  }
  return driver.cuStreamWriteValue64_v2(stream, mark_address(mark), value, 0);
}

bool Session::capturing(CUstream stream) {
  if (!captures.any()) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void Session::keep_out(CUstream stream, Vgpu* v) {
  v->gate->leave(stream);
  // Once a blocking stream captures, the legacy stream can be asked no more.
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver.cuStreamIsCapturing(CU_STREAM_LEGACY, &status) != CUDA_SUCCESS) return;
  if (!v->legacy_done &&
      driver.cuEventCreate(&v->legacy_done, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
    return;
  driver.cuEventRecord(v->legacy_done, CU_STREAM_LEGACY);
}

CUresult Session::wait_for_legacy(Vgpu* v) {
  CUevent done;
  {
    std::lock_guard lock(captures.mutex);
    done = v->legacy_done;
  }
  return done ? driver.cuEventSynchronize(done) : CUDA_SUCCESS;
}

CUresult Session::wait_idle(Vgpu* v) {
  if (!captures.any()) return driver.cuCtxSynchronize();
  // A context with a stream that captures cannot be waited for as a whole, in no mode.
  CUresult result = CUDA_SUCCESS;
  const auto wait = [&](CUstream stream) {
    if (result == CUDA_SUCCESS && !capturing(stream)) result = driver.cuStreamSynchronize(stream);
  };
  streams.for_each([&](uint64_t, const StreamObject& s) {
    if (vgpus[s.device].get() == v) wait(s.handle);
  });
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver.cuStreamIsCapturing(CU_STREAM_LEGACY, &status) == CUDA_SUCCESS)
    wait(CU_STREAM_LEGACY);
  else if (result == CUDA_SUCCESS)
    result = wait_for_legacy(v);
  return result;
}

}  // namespace sluice::worker
