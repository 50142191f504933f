// SPDX-License-Identifier: Apache-2.0
#include "client/managed/memory.h"

#include <algorithm>
#include <string>

#include "client/core/enter.h"
#include "client/core/log.h"
#include "client/core/session.h"
#include "client/driver/wait.h"
#include "client/managed/allocation.h"
#include "client/managed/fault_signal.h"
#include "client/objects/device.h"
#include "client/objects/stream.h"

namespace sluice::client {

namespace {

constexpr uint64_t kPage = ManagedPages::kPage;
constexpr uint64_t kSmallest = 1ull << 20;  // from here on an allocation has slabs of its own

uint64_t page_of(uint64_t at) { return at / kPage * kPage; }
uint64_t pages_up(uint64_t at) { return wire::round_up(at, kPage); }

CUresult no_host_memory(const std::string& reason) {
  log_line(LogLevel::kError, "managed memory: " + reason);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace

ManagedMemory::ManagedMemory(Session& session) : session_(session) {}
ManagedMemory::~ManagedMemory() = default;

bool& ManagedMemory::runs_host_function() {
  static thread_local bool runs = false;
  return runs;
}

bool& ManagedMemory::Lock::held() {
  static thread_local bool held = false;
  return held;
}

// ---- what there is

CUresult ManagedMemory::mover_of(Device* device, Stream** stream) {
  Stream*& mover = movers_[device];
  if (!mover) {
    uint64_t id;
    const CUresult e = mint_stream(&session_, device, CU_STREAM_NON_BLOCKING, 0, &id, &mover);
    if (e != CUDA_SUCCESS) {
      movers_.erase(device);
      return e;
    }
    mover->joins_nothing = true;
  }
  *stream = mover;
  return CUDA_SUCCESS;
}

// Small ones share blocks of one slab.
CUresult ManagedMemory::place(Device* device, uint64_t bytes, ManagedBlock** block,
                              uint64_t* address) {
  const bool shares = bytes < kSmallest;
  for (const auto& each : blocks_) {
    if (!shares || each->device != device || each->mapping->bytes() != DeviceMemory::kSlab)
      continue;
    *address = each->pieces.allocate(bytes);
    if (*address == RangeAllocator::kNone) continue;
    *block = each.get();
    return CUDA_SUCCESS;
  }
  const uint64_t whole = wire::round_up(bytes, DeviceMemory::kSlab);
  uint64_t start = 0;
  auto result = device->memory.take(whole, &start);
  for (const bool wait : {false, true})
    if (result == DeviceMemory::Result::kOutOfMemory && device->make_room(wait))
      result = device->memory.take(whole, &start);
  if (result != DeviceMemory::Result::kDone) return session_.outcome(result, *device);
  std::string error;
  auto made = std::make_unique<ManagedBlock>();
  made->device = device;
  made->mapping = ManagedMapping::make(start, whole, ManagedMapping::Where::kWindow, &error);
  if (!made->mapping) {
    device->memory.give(start);
    return no_host_memory(error);
  }
  made->pieces.add(start, whole);
  *address = made->pieces.allocate(bytes);
  *block = made.get();
  blocks_.push_back(std::move(made));
  return CUDA_SUCCESS;
}

void ManagedMemory::give_up(ManagedBlock* block) {
  if (block->pieces.used_count() != 0) return;
  const uint64_t start = block->mapping->start();
  Device* device = block->device;
  std::erase_if(blocks_, [&](const auto& each) { return each.get() == block; });
  device->memory.give(start);
}

void ManagedMemory::note_range(uint64_t from, uint64_t to) {
  from_ = std::min(from_.load(), from);
  to_ = std::max(to_.load(), to);
  any_.store(true, std::memory_order_release);
}

void ManagedMemory::note_held(const ManagedAllocation& allocation) {
  auto* key = const_cast<ManagedAllocation*>(&allocation);
  if (allocation.pages.held())
    held_.insert(key);
  else
    held_.erase(key);
}

CUresult ManagedMemory::allocate(Device* device, uint64_t bytes, unsigned flags,
                                 uint64_t* address) {
  const uint64_t whole = pages_up(bytes);
  if (whole < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  {
    const Lock lock(*this);
    Stream* mover;
    if (const CUresult e = mover_of(device, &mover); e != CUDA_SUCCESS) return e;
    ManagedBlock* block;
    if (const CUresult e = place(device, whole, &block, address); e != CUDA_SUCCESS) return e;
    auto made = std::make_unique<ManagedAllocation>(session_, device, mover, *address, whole,
                                                    *block->mapping, ManagedPages::State::kFresh);
    made->block = block;
    made->begin = *address;
    made->whole = whole;
    made->asked = bytes;
    if (flags == CU_MEM_ATTACH_HOST) made->attached = ManagedAllocation::Attached::kHost;
    note_range(*address, *address + whole);
    note_held(*made);
    allocations_.emplace(*address, std::move(made));
  }
  watch_faults();
  return CUDA_SUCCESS;
}

void ManagedMemory::remove(Allocations::iterator it) {
  ManagedAllocation& a = *it->second;
  held_.erase(&a);
  std::erase_if(prefetches_,
                [&](const Prefetch& p) { return p.address >= a.start() && p.address < a.end(); });
  ManagedBlock* block = a.block;
  if (block) {
    a.protect(a.start(), a.whole, PageMover::Access::kNone);
    block->mapping->clear(a.start(), a.whole);
    block->pieces.release(a.start());
  }
  allocations_.erase(it);
  if (block) give_up(block);
}

CUresult ManagedMemory::free(uint64_t address) {
  const Lock lock(*this);
  const auto it = allocations_.find(address);
  if (it == allocations_.end() || !it->second->block) return CUDA_ERROR_INVALID_VALUE;
  remove(it);
  return CUDA_SUCCESS;
}

void ManagedMemory::clear(const Device* device) {
  const Lock lock(*this);
  for (auto it = allocations_.begin(); it != allocations_.end();) {
    const auto here = it++;
    if (here->second->device == device && here->second->block) remove(here);
  }
}

CUresult ManagedMemory::add_variable(Device* device, uint64_t address, uint64_t bytes,
                                     uint64_t code) {
  if (bytes == 0 || address + bytes < address) return CUDA_ERROR_INVALID_VALUE;
  {
    const Lock lock(*this);
    std::vector<ManagedExtent> extents{{address, bytes, code}};
    uint64_t from = page_of(address), to = pages_up(address + bytes);
    // Those that share a page with it come into one. Nobody touches this one yet.
    for (auto it = allocations_.begin(); it != allocations_.end();) {
      const auto here = it++;
      ManagedAllocation& other = *here->second;
      if (other.block || other.end() <= from || other.start() >= to) continue;
      for (const auto& e : other.extents) {
        if (e.start == address && e.bytes == bytes) return CUDA_SUCCESS;
        extents.push_back(e);
      }
      Stream* moved = nullptr;
      if (const CUresult e = release(other, other.start(), other.end(), &moved); e != CUDA_SUCCESS)
        return e;
      if (moved) session_.fences.set(moved, false);
      from = std::min(from, other.start());
      to = std::max(to, other.end());
      remove(here);
    }
    Stream* mover;
    if (const CUresult e = mover_of(device, &mover); e != CUDA_SUCCESS) return e;
    std::string error;
    auto mapping = ManagedMapping::make(from, to - from, ManagedMapping::Where::kFree, &error);
    if (!mapping) {
      log_line(LogLevel::kError,
               "a __managed__ variable lies at an address of the GPU node's that this process uses "
               "for something else; start it again: " +
                   error);
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    add(device, mover, std::move(mapping), std::move(extents));
  }
  watch_faults();
  return CUDA_SUCCESS;
}

// What the device has already, at the addresses of this mapping.
void ManagedMemory::add(Device* device, Stream* mover, std::unique_ptr<ManagedMapping> mapping,
                        std::vector<ManagedExtent> extents) {
  const uint64_t from = mapping->start(), bytes = mapping->bytes();
  auto made = std::make_unique<ManagedAllocation>(session_, device, mover, from, bytes, *mapping,
                                                  ManagedPages::State::kDevice);
  made->own = std::move(mapping);
  made->begin = from;
  made->whole = made->asked = bytes;
  made->extents = std::move(extents);
  // What was launched before it was known here may touch it.
  ++works_;
  note_range(from, from + bytes);
  allocations_.emplace(from, std::move(made));
}

CUresult ManagedMemory::adopt(Device* device, uint64_t address, uint64_t bytes) {
  {
    const Lock lock(*this);
    if (const ManagedAllocation* a = at(address)) {
      const bool same = !a->block && a->start() == address && a->whole == bytes;
      return same ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    Stream* mover;
    if (const CUresult e = mover_of(device, &mover); e != CUDA_SUCCESS) return e;
    std::string error;
    auto mapping = ManagedMapping::make(address, bytes, ManagedMapping::Where::kWindow, &error);
    if (!mapping) return no_host_memory(error);
    add(device, mover, std::move(mapping), {{address, bytes, ManagedExtent::kOfNoCode}});
  }
  watch_faults();
  return CUDA_SUCCESS;
}

CUresult ManagedMemory::disown(uint64_t address, uint64_t bytes) {
  if (!any()) return CUDA_SUCCESS;
  std::set<Stream*> movers;
  {
    const Lock lock(*this);
    for (auto it = allocations_.lower_bound(address);
         it != allocations_.end() && it->first - address < bytes;) {
      const auto here = it++;
      ManagedAllocation& a = *here->second;
      if (a.extents.empty() || a.extents[0].code != ManagedExtent::kOfNoCode) continue;
      Stream* moved = nullptr;
      const CUresult e = release(a, a.start(), a.end(), &moved);
      if (moved) movers.insert(moved);
      if (e != CUDA_SUCCESS) return e;
      remove(here);
    }
  }
  for (Stream* mover : movers)
    if (const CUresult e = synchronize_stream(&session_, mover); e != CUDA_SUCCESS) return e;
  return CUDA_SUCCESS;
}

void ManagedMemory::drop_variables(uint64_t code) {
  if (!any()) return;
  const Lock lock(*this);
  for (auto it = allocations_.begin(); it != allocations_.end();) {
    const auto here = it++;
    ManagedAllocation& a = *here->second;
    if (a.block) continue;
    std::erase_if(a.extents, [&](const auto& e) { return e.code == code; });
    if (a.extents.empty()) remove(here);
  }
}

ManagedAllocation* ManagedMemory::at(uint64_t address) {
  auto it = allocations_.upper_bound(address);
  if (it == allocations_.begin()) return nullptr;
  ManagedAllocation* a = std::prev(it)->second.get();
  return address < a->end() ? a : nullptr;
}

bool ManagedMemory::find(uint64_t address, Found* found) {
  if (!may_contain(address)) return false;
  const Lock lock(*this);
  const ManagedAllocation* a = at(address);
  if (!a) return false;
  *found = {a->start(), a->asked, a->device};
  if (a->extents.empty()) return address - a->start() < a->asked;
  for (const auto& e : a->extents) {
    if (address - e.start >= e.bytes) continue;
    *found = {e.start, e.bytes, a->device};
    return true;
  }
  return false;
}

// ---- the device's turn

// `moved`: the stream that something was stored by, if any was.
CUresult ManagedMemory::release(ManagedAllocation& a, uint64_t from, uint64_t to, Stream** moved) {
  if (!a.pages.release(from, to - from)) {
    const CUresult e = session_.sticky();
    return e != CUDA_SUCCESS ? e : CUDA_ERROR_OUT_OF_MEMORY;
  }
  note_held(a);
  *moved = a.mover;
  return CUDA_SUCCESS;
}

CUresult ManagedMemory::before_work(const Stream& stream) {
  if (stream.joins_nothing || stream.capture) return CUDA_SUCCESS;
  const Lock lock(*this);
  ++works_;
  if (held_.empty()) return CUDA_SUCCESS;
  std::set<Stream*> movers;
  for (auto it = held_.begin(); it != held_.end();) {
    ManagedAllocation& a = **it++;
    using enum ManagedAllocation::Attached;
    if (a.attached == kHost || (a.attached == kSingle && a.stream != stream.wire_id)) continue;
    Stream* moved = nullptr;
    const CUresult e = release(a, a.start(), a.end(), &moved);
    if (moved) movers.insert(moved);
    if (e != CUDA_SUCCESS) return e;
  }
  // All that any stream is given from here on comes after what was stored.
  for (Stream* mover : movers)
    if (const CUresult e = session_.fences.set(mover, false); e != CUDA_SUCCESS) return e;
  return CUDA_SUCCESS;
}

void ManagedMemory::note_other_work(ManagedAllocation* a, const Stream& stream) {
  const uint64_t work = ++works_;
  // A touch waits for that stream anyway.
  if (a->attached == ManagedAllocation::Attached::kSingle && stream.wire_id == a->stream) return;
  const bool alone = waited_ >= a->other_work || a->other_stream == stream.wire_id;
  a->other_stream = alone ? stream.wire_id : 0;
  a->other_work = work;
}

CUresult ManagedMemory::before_use(const Stream& stream, uint64_t address, uint64_t bytes) {
  if (!may_contain(address) || bytes == 0) return CUDA_SUCCESS;
  const Lock lock(*this);
  for (const uint64_t end = address + std::min(bytes, ~address); address < end;) {
    ManagedAllocation* a = at(address);
    if (!a) return CUDA_SUCCESS;
    note_other_work(a, stream);
    Stream* moved = nullptr;
    const uint64_t to = std::min(end, a->end());
    CUresult e = release(*a, address, to, &moved);
    if (e == CUDA_SUCCESS && moved) e = session_.fences.set(moved, false);
    if (e != CUDA_SUCCESS) return e;
    address = to;  // adopted memory may have more behind it
  }
  return CUDA_SUCCESS;
}

// ---- the program's turn

uint64_t ManagedMemory::given() const {
  const uint64_t counted = works_;
  return giving_ == 0 ? counted : waited_.load();
}

void ManagedMemory::note_waited(uint64_t upto) {
  uint64_t before = waited_;
  while (before < upto && !waited_.compare_exchange_weak(before, upto)) {
  }
}

CUresult ManagedMemory::wait_for_devices() {
  const uint64_t upto = given();
  for (auto& d : session_.devices())
    if (const CUresult e = wait_idle(&session_, d.get()); e != CUDA_SUCCESS) return e;
  note_waited(upto);
  return CUDA_SUCCESS;
}

CUresult ManagedMemory::wait_for_stream(uint64_t id) {
  Stream* stream = session_.streams.find(id);
  if (!stream) return wait_for_devices();  // it is gone, and its work may go on
  return session_.work().finished(*stream) ? CUDA_SUCCESS : synchronize_stream(&session_, stream);
}

// Until no work that may touch it is under way. `mine`: whether all of it is managed.
bool ManagedMemory::wait_before_fetch(uint64_t address, uint64_t bytes, bool* mine) {
  using enum ManagedAllocation::Attached;
  uint64_t own_stream = 0, other_stream = 0, other_work = 0;
  bool all = false;
  {
    const Lock lock(*this);
    const ManagedAllocation* a = at(address);
    *mine = a != nullptr;
    if (!a || !a->pages.needs_fetch(address, std::min(bytes, a->end() - address))) return true;
    if (a->attached == kSingle) own_stream = a->stream;
    if (waited_ < a->other_work) other_stream = a->other_stream, other_work = a->other_work;
    all = a->attached == kGlobal ? waited_ < works_ : other_work && !other_stream;
  }
  if (runs_host_function()) return true;
  CUresult e = all ? wait_for_devices() : CUDA_SUCCESS;
  if (!all && own_stream) e = wait_for_stream(own_stream);
  if (!all && other_stream && e == CUDA_SUCCESS) {
    const bool sent = giving_ == 0;
    e = wait_for_stream(other_stream);
    const Lock lock(*this);
    ManagedAllocation* a = sent ? at(address) : nullptr;
    if (e == CUDA_SUCCESS && a && a->other_work == other_work) a->other_work = a->other_stream = 0;
  }
  // With the session's end all work has ended.
  return e == CUDA_SUCCESS || session_.sticky() != CUDA_SUCCESS;
}

bool ManagedMemory::touch(uint64_t address, bool write) {
  if (!may_contain(address)) return false;
  bool mine;
  if (!wait_before_fetch(address, 1, &mine) || !mine) return false;
  after_wait();
  const Lock lock(*this);
  ManagedAllocation* a = at(address);
  if (!a || !a->pages.touch(address, write)) return false;
  note_held(*a);
  return true;
}

bool ManagedMemory::prepare(uint64_t address, uint64_t bytes, bool write) {
  for (const uint64_t end = address + bytes; address < end;) {
    bool mine;
    if (!wait_before_fetch(address, end - address, &mine)) return false;
    const Lock lock(*this);
    ManagedAllocation* a = at(address);
    if (!a) return true;
    const uint64_t to = std::min(end, a->end());
    if (!a->pages.prepare(address, to - address, write)) return false;
    note_held(*a);
    address = to;
  }
  return true;
}

void ManagedMemory::after_wait() {
  if (!prefetches_wait_.load(std::memory_order_relaxed) || runs_host_function() || Lock::held())
    return;
  if (waited_ < works_) {
    const uint64_t upto = given();
    for (auto& d : session_.devices())
      if (!session_.work().idle(*d)) return;
    note_waited(upto);
  }
  const Lock lock(*this);
  prefetches_wait_ = false;
  for (const Prefetch& p : std::exchange(prefetches_, {})) {
    ManagedAllocation* a = at(p.address);
    if (!a) continue;
    const uint64_t bytes = std::min(p.bytes, a->end() - p.address);
    if (a->pages.prepare(p.address, bytes, false)) a->mapping.populate(p.address, bytes);
    note_held(*a);
  }
}

}  // namespace sluice::client
