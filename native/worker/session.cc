// SPDX-License-Identifier: Apache-2.0
#include "worker/session.h"

#include <algorithm>

#include "worker/hex.h"
#include "worker/node_links.h"
#include "worker/rehearsal.h"
#include "worker/session_record.h"
#include "worker/shared_event.h"

namespace sluice::worker {

Session::Session(const Driver& d, std::unique_ptr<Endpoint> endpoint, SessionPlan p)
    : driver(d),
      plan(std::move(p)),
      bulk(d, wire::kMaxFrameBytes, 6),  // some are read, one is received into, two are ahead
      large_bulk(d, wire::kMaxLargeFrameBytes, 3),
      bounces(d),
      endpoint_(std::move(endpoint)) {
  events_of_others = std::make_unique<SharedEvents>(*this);
}

// Links end first: they speak of it to the client.
Session::~Session() { links.reset(); }

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
    made->memory = VgpuMemory(v.memory_mib << 20, ledger ? 0 : v.memory_mib << 20);
    if (turns) {
      MemoryAllowance& room = turns->memory();
      made->memory.show_on(room.taken(made->index), room.staying(made->index));
    }
    made->compute_percent = v.compute_percent;
    made->grant_index = v.grant_index;
    made->gate = std::make_unique<Gate>(driver, made->gpu->context, turns.get(), &cut);
    if (turns) turns->add(made->gate.get());
    vgpus.push_back(std::move(made));
    if (vgpus.back()->gpu != vgpus.front()->gpu) ties.tie(Tie::kSeveralGpus);
  }
  if (concurrent) ties.tie(Tie::kMps);
  if (links) ties.tie(Tie::kOtherNodes);
  if (vgpus.empty() || vgpus.size() > wire::kMaxDevices) {
    *error = "a session needs 1 to 64 vGPUs";
    return false;
  }
  if (!reserve_windows(driver, vgpus, plan.windows, plan.first_window, error)) return false;
  driver.cuCtxSetCurrent(vgpus[0]->gpu->context);
  if (!marks.share(driver, *endpoint_, error)) return false;
  for (auto& v : vgpus) {
    driver.cuCtxSetCurrent(v->gpu->context);
    open_limits(driver, *v);
  }
  collectives.show(turns.get());
  if (turns && !turns->start()) {
    *error = "there is no thread to be had for its turns on the GPU (session_pids)";
    return false;
  }
  std::string no_kernel;  // whoever opens a link says so
  if (links) links->kernel(&no_kernel);
  return endpoint_->publish_record(session_record(*this), error);
}

void Session::reject(const std::string& reason) {
  if (Rehearsal* r = Rehearsal::current()) return r->refuse();
  rejection_.reject(reason);
}

namespace {
thread_local uint32_t last_used = ~0u;
}

Vgpu* Session::used_last() const {
  return last_used < vgpus.size() ? vgpus[last_used].get() : nullptr;
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

void Session::went_quiet() {
  const uint32_t before = last_used;
  for (uint32_t i = 0; i < vgpus.size(); ++i)
    if (vgpus[i]->gate->measures()) use(i)->gate->quiet();
  if (before < vgpus.size()) use(before);
}

bool Session::stream(uint64_t id, uint32_t context, CUstream* handle, Vgpu** owner) {
  Vgpu* v;
  if (id == 0) {
    *handle = CU_STREAM_LEGACY;
    v = use_context(context);
  } else {
    StreamObject s;
    if (!objects.streams.get(id, &s)) {
      reject("a command names the stream " + hex_text(id) + ", which the session does not have");
      return false;
    }
    *handle = s.handle;
    v = use(s.device);
  }
  if (owner) *owner = v;
  if (const Rehearsal* r = Rehearsal::current(); r && r->is(id, context)) *handle = r->instead();
  return v != nullptr;
}

bool Session::device_range(uint64_t address, uint64_t bytes) {
  for (auto& v : vgpus)
    if (v->window_holds(address)) return v->window_holds(address, bytes);
  // The device reaches pinned memory by the same address.
  return arena_range(address, bytes) || globals.holds(address, bytes);
}

uint32_t Session::memory_owner(uint64_t address) {
  for (uint32_t i = 0; i < vgpus.size(); ++i) {
    Vgpu& v = *vgpus[i];
    if (!v.window_holds(address)) continue;
    std::lock_guard lock(v.mutex);
    const auto it = v.mappings.upper_bound(address);
    AllocationObject o;
    // Any vGPU's memory can be mapped into a window by the virtual memory API.
    return it != v.mappings.begin() && objects.allocations.get(std::prev(it)->second.allocation, &o)
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

CUresult Session::mark(CUstream stream, uint32_t mark, uint64_t value) {
  if (mark == wire::kNoMark) return CUDA_SUCCESS;
  if (!marks.valid(mark)) {
    reject("a command names the mark " + std::to_string(mark) + ", which there is not");
    return CUDA_SUCCESS;
  }
  return driver.cuStreamWriteValue64_v2(stream, marks.address(mark), value, 0);
}

}  // namespace sluice::worker
