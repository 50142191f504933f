// SPDX-License-Identifier: Apache-2.0
// Good frames of memory: backed, mapped, shared, copied and filled.
#include "tests/native/roundtrip/valid_frames.h"
#include "wire/bodies/merging.h"
#include "wire/generated.h"
#include "wire/gpu_figures.h"

namespace sluice::test {

namespace {

using Rig = FurnishedRig;
using Frames = std::vector<ValidFrame>;

void add_memory(Rig& rig, Frames* all) {
  const uint64_t beyond = rig.address() + Rig::kMappedBytes + (2 << 20);
  auto f = make("MemoryMap", wire::kMemoryMap, false, "cuMemMap",
                wire::MemoryMap{0, 0, beyond, 2 << 20});
  f.addresses = {{offsetof(wire::MemoryMap, address), 2 << 20}};
  f.devices = {offsetof(wire::MemoryMap, device)};
  all->push_back(f);
  f = make("MemoryUnmap", wire::kMemoryUnmap, false, "cuMemUnmap",
           wire::MemoryUnmap{0, 0, rig.address(), Rig::kMappedBytes});
  f.addresses = {{offsetof(wire::MemoryMap, address), Rig::kMappedBytes}};
  f.devices = {offsetof(wire::MemoryMap, device)};
  all->push_back(f);
  f = make("ArenaRegister", wire::kArenaRegister, false, "cuMemHostRegister_v2",
           wire::ArenaRegister{rig.arena() + wire::kArenaChunk, kArenaBytes - wire::kArenaChunk});
  f.arena = {{offsetof(wire::ArenaRegister, address), kArenaBytes - wire::kArenaChunk}};
  all->push_back(f);
  f = make("MemoryCredit", wire::kMemoryCredit, true, "", wire::MemoryCredit{0, 0, 2 << 20});
  f.devices = {offsetof(wire::MemoryCredit, device)};
  all->push_back(f);
  f = make("LocalMemory", wire::kLocalMemory, true, "", wire::LocalMemory{0, 0, 4096});
  f.devices = {offsetof(wire::LocalMemory, device)};
  all->push_back(f);
  wire::CuCtxSetLimit limit{};
  limit.limit = CU_LIMIT_MALLOC_HEAP_SIZE;
  limit.value = 1 << 20;
  f = make("cuCtxSetLimit", wire::kCuCtxSetLimit, true, "cuCtxSetLimit", limit);
  f.choices = {offsetof(wire::CuCtxSetLimit, limit)};
  all->push_back(f);
  f = make("DeviceIdle", wire::kDeviceIdle, true, "cuCtxSynchronize", wire::DeviceIdle{0, 0});
  f.devices = {offsetof(wire::DeviceIdle, device)};
  all->push_back(f);
}

void add_virtual_memory(Rig& rig, Frames* all) {
  const uint64_t mapped = rig.address() + Rig::kMappedBytes, free = mapped + (2 << 20);
  using C = wire::AllocationCreate;
  auto f = make("AllocationCreate", wire::kAllocationCreate, false, "cuMemCreate",
                C{handle_id(HandleKind::kAllocation, 9), 2 << 20, 0, 0});
  f.minted = {offsetof(C, id)};
  f.devices = {offsetof(C, device)};
  all->push_back(f);
  f = make("AllocationCreate, compressible", wire::kAllocationCreate, true, "cuMemCreate",
           C{handle_id(HandleKind::kAllocation, 9), 2 << 20, 0, wire::kCompressible});
  f.minted = {offsetof(C, id)};
  f.devices = {offsetof(C, device)};
  f.choices = {offsetof(C, flags)};
  all->push_back(f);
  f = make("AllocationDestroy", wire::kAllocationDestroy, false, "cuMemRelease",
           wire::AllocationId{Rig::kSpareAllocationId});
  f.handles = {0};
  all->push_back(f);
  using M = wire::AllocationMap;
  f = make("AllocationMap", wire::kAllocationMap, false, "cuMemMap",
           M{Rig::kSpareAllocationId, free, 2 << 20});
  f.handles = {offsetof(M, id)};
  f.addresses = {{offsetof(M, address), 2 << 20}};
  all->push_back(f);
  using U = wire::AllocationUnmap;
  f = make("AllocationUnmap", wire::kAllocationUnmap, false, "cuMemUnmap", U{mapped, 2 << 20});
  f.addresses = {{offsetof(U, address), 2 << 20}};
  all->push_back(f);
  using A = wire::AllocationAccess;
  f = make("AllocationAccess", wire::kAllocationAccess, false, "cuMemSetAccess",
           A{mapped, 2 << 20, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  f.addresses = {{offsetof(A, address), 2 << 20}};
  f.devices = {offsetof(A, device)};
  f.choices = {offsetof(A, flags)};
  all->push_back(f);
}

void add_peers(Rig&, Frames* all) {
  using P = wire::PeerAccess;
  auto f = make("PeerAccess", wire::kPeerAccess, true, "cuCtxEnablePeerAccess", P{0, 1, 1, 0});
  f.devices = {offsetof(P, device), offsetof(P, peer)};
  f.choices = {offsetof(P, enable)};
  all->push_back(f);
  f = make("GpuFigures", wire::kGpuFigures, true, "", wire::GpuFiguresAsk{1, 0});
  f.devices = {offsetof(wire::GpuFiguresAsk, device)};
  all->push_back(f);
  all->push_back(make("MergeFigures", wire::kMergeFigures, true, "", wire::MergeFiguresAsk{}));
}

void add_shared(Rig& rig, Frames* all) {
  auto f = make("ShareMemory", wire::kShareMemory, true, "cuMemExportToShareableHandle",
                wire::ShareMemory{rig.address() + 4096});
  all->push_back(f);
  using O = wire::OpenShared;
  f = make("OpenShared", wire::kOpenShared, true, "cuMemImportFromShareableHandle",
           O{{{3, 4}}, rig.opened() + (2 << 20), 2 << 20, 0, 0});
  f.addresses = {{offsetof(O, address), 2 << 20}};
  f.devices = {offsetof(O, device)};
  f.choices = {offsetof(O, flags)};
  all->push_back(f);
  f = make("ShareAllocation", wire::kShareAllocation, true, "cuMemExportToShareableHandle",
           wire::AllocationId{Rig::kSpareAllocationId});
  f.handles = {0};
  all->push_back(f);
  f = make("OpenAllocation", wire::kOpenAllocation, true, "cuMemImportFromShareableHandle",
           wire::OpenAllocation{{{3, 4}}, handle_id(HandleKind::kAllocation, 9), 2 << 20});
  f.minted = {offsetof(wire::OpenAllocation, id)};
  all->push_back(f);
  using C = wire::CloseShared;
  f = make("CloseShared", wire::kCloseShared, false, "cuMemUnmap", C{rig.opened(), 2 << 20, 0, 0});
  f.addresses = {{offsetof(C, address), 2 << 20}};
  f.devices = {offsetof(C, device)};
  all->push_back(f);
  f = make("SharedEventCreate", wire::kSharedEventCreate, true, "",
           wire::EventId{handle_id(HandleKind::kEvent, 9)});
  f.minted = {0};
  all->push_back(f);
  using P = wire::OpenSharedEvent;
  f = make("OpenSharedEvent", wire::kOpenSharedEvent, true, "cuMemHostRegister_v2",
           P{{{{5, 6}}, 8}, handle_id(HandleKind::kEvent, 9)});
  f.minted = {offsetof(P, id)};
  all->push_back(f);
  const auto of_event = [&](const char* name, uint16_t function, bool answered) {
    auto g = make(name, function, answered, "", wire::EventId{Rig::kSharedEventId});
    g.handles = {0};
    all->push_back(g);
  };
  of_event("SharedEventDestroy", wire::kSharedEventDestroy, false);
  of_event("SharedEventQuery", wire::kSharedEventQuery, true);
  of_event("SharedEventSynchronize", wire::kSharedEventSynchronize, true);
  of_event("ShareEvent", wire::kShareEvent, true);
  using U = wire::SharedEventUse;
  for (const auto& [name, function, calls] :
       {std::tuple{"SharedEventRecord", wire::kSharedEventRecord, "cuStreamWriteValue64_v2"},
        std::tuple{"SharedEventWait", wire::kSharedEventWait, ""}}) {
    f = make(name, function, false, calls, U{Rig::kSharedEventId, Rig::kStreamId});
    f.handles = {offsetof(U, event), offsetof(U, stream)};
    all->push_back(f);
  }
}

void add_linear_copies(Rig& rig, Frames* all) {
  using C = wire::CopyToDevice;
  const auto copy = [&](const char* name, uint16_t function, bool answered, const char* calls,
                        wire::HostPlace place, uint64_t rows, const std::string& tail) {
    C c{};
    c.stream = Rig::kStreamId;
    c.device_address = rig.address() + 512;
    c.device_pitch = 256;
    c.host_address = place == wire::HostPlace::kArena ? rig.arena() + 4096 : 0;
    c.host_pitch = 128;
    c.width = 100;
    c.rows = rows;
    c.place = place;
    c.mark = place == wire::HostPlace::kArena ? 5 : wire::kNoMark;
    c.value = 3;
    auto f = make(name, function, answered, calls, c, tail);
    f.handles = {offsetof(C, stream)};
    f.addresses = {{offsetof(C, device_address), (rows - 1) * 256 + 100}};
    if (place == wire::HostPlace::kArena)
      f.arena = {{offsetof(C, host_address), (rows - 1) * 128 + 100}};
    f.choices = {offsetof(C, place)};
    all->push_back(f);
  };
  using enum wire::HostPlace;
  const std::string data(100, 'd');
  copy("CopyToDevice, inline", wire::kCopyToDevice, false, "cuMemcpyHtoDAsync_v2", kInline, 1,
       data);
  copy("CopyToDevice, inline rows", wire::kCopyToDevice, false, "cuMemcpy2DAsync_v2", kInline, 3,
       data + data + data);
  copy("CopyToDevice, arena", wire::kCopyToDevice, true, "cuMemcpyHtoDAsync_v2", kArena, 1, "");
  copy("CopyToDevice, arena rows", wire::kCopyToDevice, false, "cuMemcpy2DAsync_v2", kArena, 3, "");
  copy("CopyToHost, inline", wire::kCopyToHost, true, "cuMemcpyDtoHAsync_v2", kInline, 1, "");
  copy("CopyToHost, inline rows", wire::kCopyToHost, true, "cuMemcpy2DAsync_v2", kInline, 3, "");
  copy("CopyToHost, arena", wire::kCopyToHost, false, "cuMemcpyDtoHAsync_v2", kArena, 1, "");
  copy("CopyToHost, arena rows", wire::kCopyToHost, true, "cuMemcpy2DAsync_v2", kArena, 3, "");

  using D = wire::CopyOnDevice;
  for (uint64_t rows : {1, 3}) {
    auto f =
        make(rows == 1 ? "CopyOnDevice" : "CopyOnDevice, rows", wire::kCopyOnDevice, false,
             rows == 1 ? "cuMemcpyDtoDAsync_v2" : "cuMemcpy2DAsync_v2",
             D{Rig::kStreamId, rig.address(), 256, rig.address() + 65536, 128, 100, rows, 0, 0});
    f.handles = {offsetof(D, stream)};
    f.addresses = {{offsetof(D, to), (rows - 1) * 256 + 100},
                   {offsetof(D, from), (rows - 1) * 128 + 100}};
    all->push_back(f);
  }
  using F = wire::FillDevice;
  const char* const calls[] = {"cuMemsetD8Async",   "cuMemsetD16Async",   "cuMemsetD32Async",
                               "cuMemsetD2D8Async", "cuMemsetD2D16Async", "cuMemsetD2D32Async"};
  for (uint32_t i = 0; i < 6; ++i) {
    const uint32_t element = 1u << i % 3;
    const uint64_t rows = i < 3 ? 1 : 3;
    auto f = make("FillDevice", wire::kFillDevice, false, calls[i],
                  F{Rig::kStreamId, rig.address(), 256, 32, rows, element, 0x01020304});
    f.handles = {offsetof(F, stream)};
    f.addresses = {{offsetof(F, address), (rows - 1) * 256 + 32 * element}};
    f.choices = {offsetof(F, element_bytes)};
    all->push_back(f);
  }
}

}  // namespace

void add_memory_frames(FurnishedRig& rig, std::vector<ValidFrame>* all) {
  add_memory(rig, all);
  add_virtual_memory(rig, all);
  add_peers(rig, all);
  add_shared(rig, all);
  add_linear_copies(rig, all);
}

}  // namespace sluice::test
