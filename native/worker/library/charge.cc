// SPDX-License-Identifier: Apache-2.0
#include "worker/library/charge.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>

#include "channel/futex.h"
#include "process/log.h"
#include "worker/library/laid.h"
#include "worker/turn_keeper.h"

namespace sluice::worker {

namespace {

constexpr uint32_t kNobody = ~0u;
// For what a library takes.
constexpr uint64_t kRoomNs = 10'000'000'000;

void* meter = nullptr;
std::atomic<Session*> metered{nullptr};

// The vGPU that this thread's command is about, if it lies on the device; a library's own threads,
// and calls that change the device by themselves, charge the first that does.
Vgpu* on_device(Session& s, int device) {
  if (Vgpu* v = s.used_last(); v && v->gpu->ordinal == device) return v;
  for (auto& v : s.vgpus)
    if (v->gpu->ordinal == device) return v.get();
  return nullptr;
}

// Where more is promised of the GPU than it has, and others are to go for what has just been taken.
// The library is before its call to the driver, so this may stand still here. What it waits for may
// never come: then the driver decides, as without this.
void wait_for_room(Session& s, const Vgpu& v) {
  if (!s.turns || !s.turns->memory().over(v.index)) return;
  MemoryAllowance& room = s.turns->memory();
  const uint64_t until = channel::now_ns() + kRoomNs;
  do {
    const Cut::KeptBack kept(s.cut);
    const MemoryAllowance::Waiting waiting(room);
    while (!s.cut.closed() && channel::now_ns() < until) {
      const uint32_t changes = room.changes();
      if (!room.over(v.index)) break;
      room.wait(changes);
    }
    s.cut.wait_until_open();
  } while (s.cut.closed());
}

bool take(Metered kind, int device, uint64_t bytes, uint32_t* account) {
  *account = kNobody;
  Session* s = metered.load(std::memory_order_acquire);
  Vgpu* v = s ? on_device(*s, device) : nullptr;
  if (!v) return true;  // the driver refuses what has no context
  if (!(kind == Metered::kStream ? take_stream(*s, *v) : take_for_library(*s, *v, kind, bytes))) {
    static std::atomic<int> said{0};
    if (said.fetch_add(1) < 10)
      process::log_info("a library was refused " + std::to_string(bytes) +
                        (kind == Metered::kHost     ? " bytes of pinned memory"
                         : kind == Metered::kCode   ? " bytes of code"
                         : kind == Metered::kStream ? " stream"
                                                    : " bytes of the vGPU's memory"));
    return false;
  }
  *account = v->index;
  if (kind == Metered::kDevice || kind == Metered::kCode) wait_for_room(*s, *v);
  return true;
}

void give(Metered kind, uint32_t account, uint64_t bytes) {
  Session* s = metered.load(std::memory_order_acquire);
  if (!s || account >= s->vgpus.size()) return;
  if (kind == Metered::kStream)
    give_stream(*s->vgpus[account]);
  else
    give_for_library(*s, *s->vgpus[account], kind, bytes);
}

bool left(int device, uint64_t* free, uint64_t* total) {
  Session* s = metered.load(std::memory_order_acquire);
  Vgpu* v = s ? on_device(*s, device) : nullptr;
  if (!v) return false;
  std::lock_guard lock(v->mutex);
  *total = v->memory.bytes();
  *free = v->memory.room();
  if (s->ledger) {
    const uint64_t used = s->ledger->used(GrantLedger::Kind::kMemory, v->grant_index);
    *free = *total - std::min(*total, used);
  }
  return true;
}

CUresult lay_here(int device, uint64_t bytes, CUdeviceptr* address) {
  Session* s = metered.load(std::memory_order_acquire);
  Vgpu* v = s ? on_device(*s, device) : nullptr;
  return v ? lay(*s, *v, bytes, address) : CUDA_ERROR_NOT_SUPPORTED;
}

bool lift_here(CUdeviceptr address, CUresult* status) {
  Session* s = metered.load(std::memory_order_acquire);
  return s && lift(*s, address, status);
}

MemoryUse use_of(Metered kind) {
  return kind == Metered::kHost   ? MemoryUse::kLibraryHost
         : kind == Metered::kCode ? MemoryUse::kCode
                                  : MemoryUse::kLibrary;
}

GrantLedger::Kind ledger_kind(MemoryUse use) {
  return use == MemoryUse::kCode ? GrantLedger::Kind::kCode : GrantLedger::Kind::kMemory;
}

// In a job: what all of its sessions have together is on one page, and no client has to be told.
bool take_from_job(Session& s, Vgpu& v, MemoryUse use, uint64_t bytes) {
  if (!s.ledger->take(ledger_kind(use), v.grant_index, bytes, v.memory.bytes())) return false;
  if (use == MemoryUse::kLibrary) v.memory.add_credit(bytes);
  return v.memory.take(use, bytes);
}

void give_to_job(Session& s, Vgpu& v, MemoryUse use, uint64_t bytes) {
  const uint64_t given = v.memory.give(use, bytes);
  if (use == MemoryUse::kLibrary) v.memory.drop_credit(given);
  s.ledger->give(ledger_kind(use), v.grant_index, given);
}

// The client's half of the shared word is not believed: it can only make less of what is there.
bool claim(std::atomic<uint64_t>* used, uint64_t limit, uint64_t bytes) {
  if (!used) return true;
  uint64_t now = used->load();
  do {
    if (now > limit || bytes > limit - now) return false;
  } while (!used->compare_exchange_weak(now, now + bytes));
  return true;
}

}  // namespace

bool take_for_library(Session& s, Vgpu& v, Metered kind, uint64_t bytes) {
  const MemoryUse use = use_of(kind);
  uint64_t now = 0, order = 0;
  {
    std::lock_guard lock(v.mutex);
    if (s.ledger && use != MemoryUse::kLibraryHost) return take_from_job(s, v, use, bytes);
    if (use != MemoryUse::kLibrary) return v.memory.take(use, bytes);
    if (bytes > v.memory.left(use) ||
        !claim(s.endpoint().memory_used(v.index), v.memory.bytes(), bytes))
      return false;
    v.memory.take(use, bytes);
    now = v.memory.taken(use);
    order = v.memory.library_changes();
  }
  s.endpoint().tell_library_memory({v.index, 0, order, now});
  return true;
}

void give_for_library(Session& s, Vgpu& v, Metered kind, uint64_t bytes) {
  const MemoryUse use = use_of(kind);
  uint64_t now = 0, order = 0;
  {
    std::lock_guard lock(v.mutex);
    if (s.ledger && use != MemoryUse::kLibraryHost) return give_to_job(s, v, use, bytes);
    const uint64_t given = v.memory.give(use, bytes);
    if (use != MemoryUse::kLibrary) return;
    now = v.memory.taken(use);
    order = v.memory.library_changes();
    // The client may use it from here on, so the session's own accounts come first.
    if (auto* used = s.endpoint().memory_used(v.index)) used->fetch_sub(given);
  }
  s.endpoint().tell_library_memory({v.index, 0, order, now});
}

bool take_stream(Session& s, Vgpu& v) {
  {
    std::lock_guard lock(v.mutex);
    if (v.memory.take_paid_stream()) return true;
  }
  if (!take_for_library(s, v, Metered::kDevice, kStreamBytes)) return false;
  std::lock_guard lock(v.mutex);
  v.memory.add_paid_stream();
  return true;
}

bool take_promised_stream(Session& s, Vgpu& v) {
  if (take_stream(s, v)) return true;
  std::lock_guard lock(v.mutex);
  // Libraries have used up what was free: as many again, and no more.
  return v.memory.take_unpaid_stream();
}

void give_stream(Vgpu& v) {
  std::lock_guard lock(v.mutex);
  v.memory.give_stream();
}

bool load_meter(std::string* error) {
  char exe[4096];
  const ssize_t n = readlink("/proc/self/exe", exe, sizeof exe);
  std::string folder(exe, n > 0 ? static_cast<size_t>(n) : 0);
  folder.erase(folder.rfind('/') == std::string::npos ? 0 : folder.rfind('/'));
  for (const char* place : {"/sluice_meter.so", "/../lib/sluice_meter.so"}) {
    const std::string path = folder + place;
    if (access(path.c_str(), F_OK) != 0) continue;
    meter = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!meter) *error = dlerror();
    return meter != nullptr;
  }
  *error = "there is no sluice_meter.so beside " + std::string(exe, n > 0 ? n : 0) +
           ": install the worker with it";
  return false;
}

void bind_meter(const Driver& driver) {
  static MeterHost host{driver.library, take, give, left, lay_here, lift_here};
  const auto bind = reinterpret_cast<void (*)(const MeterHost*)>(dlsym(meter, "sluice_meter_bind"));
  if (bind) bind(&host);
}

void meter_session(Session* session) { metered.store(session, std::memory_order_release); }

}  // namespace sluice::worker
