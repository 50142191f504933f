// SPDX-License-Identifier: Apache-2.0
// Memory pools between processes, from exported function to driver call. The other process is this
// one, whose own pool can be imported too, or a roster that the test writes, with the fake broker's
// memory behind every key. What it says is hostile.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <set>

#include "client/core/pool_roster.h"
#include "client/objects/device.h"
#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {
namespace {

using client::PointerTicket;
using client::PoolRoster;

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

void* shareable(int fd) { return reinterpret_cast<void*>(intptr_t{fd}); }

CUmemPoolPtrExportData sealed(const PointerTicket& ticket) {
  CUmemPoolPtrExportData data{};
  std::memcpy(&data, &ticket, sizeof ticket);
  return data;
}

class SharedPools : public RoundTrip {
 protected:
  void SetUp() override {
    RoundTrip::SetUp();
    ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    pool = create(kFd);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    before = available();
    recording().clear();
    seen().clear();
  }
  void TearDown() override {
    broker().refusal.clear();
    EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    for (const auto& v : worker_session().vgpus) {
      EXPECT_EQ(v->memory.taken(worker::MemoryUse::kOpened), 0u) << "nothing stays open";
      EXPECT_TRUE(v->exported.empty()) << "or shared";
    }
    EXPECT_EQ(available(), before);
    RoundTrip::TearDown();
  }
  FakeBroker& broker() { return world().channel->rig.broker(); }
  static CUmemoryPool create(CUmemAllocationHandleType type) {
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.handleTypes = type;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    CUmemoryPool made = nullptr;
    EXPECT_EQ(cuMemPoolCreate(&made, &props), CUDA_SUCCESS);
    return made;
  }
  static size_t available() {
    size_t free_bytes = 0, total = 0;
    EXPECT_EQ(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    return free_bytes;
  }
  CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAllocFromPoolAsync(&p, bytes, pool, stream), CUDA_SUCCESS);
    return p;
  }
  static CUmemPoolPtrExportData exported(CUdeviceptr p) {
    CUmemPoolPtrExportData data{};
    EXPECT_EQ(cuMemPoolExportPointer(&data, p), CUDA_SUCCESS);
    return data;
  }
  static CUmemoryPool import_pool(int fd) {
    CUmemoryPool made = nullptr;
    EXPECT_EQ(cuMemPoolImportFromShareableHandle(&made, shareable(fd), kFd, 0), CUDA_SUCCESS);
    close(fd);
    return made;
  }
  CUmemoryPool import_own() {
    int fd = -1;
    EXPECT_EQ(cuMemPoolExportToShareableHandle(&fd, pool, kFd, 0), CUDA_SUCCESS);
    return import_pool(fd);
  }
  static CUresult open(CUmemoryPool from, CUmemPoolPtrExportData data, CUdeviceptr* p) {
    return cuMemPoolImportPointer(p, from, &data);
  }
  // Another process's pool on the first vGPU, one slab of which has an allocation at `offset`.
  struct Other {
    std::unique_ptr<PoolRoster> roster =
        PoolRoster::create(client::Session::get()->devices()[0]->record);
    uint64_t last = 0;
    PointerTicket ticket(uint64_t key, uint64_t offset = 4096, uint64_t bytes = 1024) {
      PointerTicket t;
      t.key = {{key, 1}};
      t.mapped_bytes = kSlab;
      t.offset = offset;
      t.bytes = bytes;
      return entered(t);
    }
    PointerTicket entered(PointerTicket t) {
      EXPECT_TRUE(roster->enter(++last, &t));
      return t;
    }
  };
  CUmemoryPool pool = nullptr;
  CUstream stream = nullptr;
  size_t before = 0;
};

TEST_F(SharedPools, AnAllocationIsOpenedWhereItsSlabLies) {
  const CUdeviceptr first = allocate(100000), second = allocate(700);
  const auto data = exported(first);
  const auto neighbour = exported(second);
  EXPECT_EQ(exported(first).reserved[0], data.reserved[0]);
  EXPECT_EQ(recording().calls_of("cuMemExportToShareableHandle").size(), 1u) << "one slab, one key";
  const size_t charged = available();
  const CUmemoryPool other = import_own();
  const CUmemoryPool again = import_own();
  EXPECT_EQ(other, again) << "as natively";
  CUdeviceptr a = 0, b = 0, twice = 0;
  ASSERT_EQ(open(other, data, &a), CUDA_SUCCESS);
  ASSERT_EQ(open(other, neighbour, &b), CUDA_SUCCESS);
  ASSERT_EQ(open(again, data, &twice), CUDA_SUCCESS);
  EXPECT_NE(a, first);
  EXPECT_EQ(b - a, second - first);
  EXPECT_EQ(twice, a);
  EXPECT_EQ(recording().calls_of("cuMemImportFromShareableHandle").size(), 1u);
  EXPECT_EQ(available(), charged) << "its owner pays";
  for (int which = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
       which <= CU_MEMPOOL_ATTR_USED_MEM_HIGH; ++which) {
    cuuint64_t value = 0;
    const auto attribute = static_cast<CUmemPool_attribute>(which);
    EXPECT_EQ(cuMemPoolGetAttribute(other, attribute, &value), CUDA_ERROR_INVALID_VALUE) << which;
    EXPECT_EQ(cuMemPoolSetAttribute(other, attribute, &value), CUDA_ERROR_INVALID_VALUE) << which;
  }
  EXPECT_EQ(cuMemPoolTrimTo(other, 0), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_EQ(cuMemGetAddressRange_v2(&base, &bytes, b + 5), CUDA_SUCCESS);
  EXPECT_EQ(base, b);
  EXPECT_EQ(bytes, 1024u);
  CUmemoryPool of = nullptr;
  EXPECT_EQ(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, b), CUDA_SUCCESS);
  EXPECT_EQ(of, other);
  CUmemPoolPtrExportData further{};
  EXPECT_EQ(cuMemPoolExportPointer(&further, a), CUDA_ERROR_INVALID_VALUE)
      << "is its owner's to do";
  EXPECT_EQ(cuMemsetD8Async(a, 1, 100000, stream), CUDA_SUCCESS);
  for (CUdeviceptr p : {a, a, b}) EXPECT_EQ(cuMemFreeAsync(p, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(a, stream), CUDA_ERROR_INVALID_VALUE) << "as often as it was imported";
  EXPECT_EQ(cuMemPoolDestroy(other), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolDestroy(again), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(first, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(second, stream), CUDA_SUCCESS);
}

TEST_F(SharedPools, FreeingWaitsForNothing) {
  const CUdeviceptr own = allocate(3 * kSlab);
  const auto data = exported(own);
  const CUmemoryPool other = import_own();
  CUdeviceptr p = 0;
  ASSERT_EQ(open(other, data, &p), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(p, 1, 3 * kSlab, stream), CUDA_SUCCESS);
  recording().clear();
  seen().clear();
  ASSERT_EQ(cuMemFreeAsync(p, stream), CUDA_SUCCESS);
  ASSERT_EQ(open(other, data, &p), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(p, stream), CUDA_SUCCESS);
  EXPECT_TRUE(seen().empty()) << "the slab is still open";
  ASSERT_EQ(cuMemPoolDestroy(other), CUDA_SUCCESS);
  EXPECT_TRUE(recording().calls_of("cuMemUnmap").empty()) << "the stream may still use it";
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(recording().only("cuMemUnmap").at<CUdeviceptr>(0), p);
  EXPECT_EQ(recording().only("cuMemUnmap").at<size_t>(1), 3 * kSlab);
  ASSERT_EQ(cuMemFreeAsync(own, stream), CUDA_SUCCESS);
}

// A worker of Python's multiprocessing does so between two tasks.
TEST_F(SharedPools, APoolThatIsDestroyedWhileASlabIsOpenIsImportedAnew) {
  const CUdeviceptr own = allocate(700);
  const auto data = exported(own);
  CUdeviceptr p = 0;
  CUmemoryPool other = nullptr;
  for (int turn = 0; turn < 3; ++turn) {
    other = import_own();
    ASSERT_EQ(open(other, data, &p), CUDA_SUCCESS) << turn;
    ASSERT_EQ(cuMemsetD8Async(p, 1, 700, stream), CUDA_SUCCESS);
    ASSERT_EQ(cuMemFreeAsync(p, stream), CUDA_SUCCESS);
    ASSERT_EQ(cuMemPoolDestroy(other), CUDA_SUCCESS);
    EXPECT_EQ(cuMemPoolDestroy(other), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(open(other, data, &p), CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_TRUE(recording().calls_of("cuMemUnmap").empty()) << "the stream may still use it";
  EXPECT_EQ(recording().calls_of("cuMemImportFromShareableHandle").size(), 1u);
  ASSERT_EQ(cuMemFreeAsync(own, stream), CUDA_SUCCESS);
}

// Natively the memory stays while the pool does, so programs free in the order of a stream that has
// nothing to do with the one that uses it (cuda.core's buffers, by default).
TEST_F(SharedPools, AnotherStreamsWorkFindsWhatWasFreed) {
  const CUdeviceptr own = allocate(700);
  const CUmemoryPool other = import_own();
  CUstream user;
  ASSERT_EQ(cuStreamCreate(&user, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  CUdeviceptr p = 0;
  ASSERT_EQ(open(other, exported(own), &p), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(p, 1, 700, user), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  recording().clear();
  ASSERT_EQ(cuMemFreeAsync(p, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_TRUE(recording().calls_of("cuMemUnmap").empty()) << "its user has not been waited for";
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(recording().calls_of("cuMemUnmap").size(), 1u);
  ASSERT_EQ(cuStreamDestroy_v2(user), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolDestroy(other), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(own, stream), CUDA_SUCCESS);
}

TEST_F(SharedPools, ASlabThatAStreamLeftIsClosedWhenTheDeviceRests) {
  const CUdeviceptr own = allocate(700), plainly = allocate(900);
  const CUmemoryPool other = import_own();
  CUstream brief;
  ASSERT_EQ(cuStreamCreate(&brief, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  CUdeviceptr p = 0, q = 0;
  ASSERT_EQ(open(other, exported(own), &p), CUDA_SUCCESS);
  ASSERT_EQ(open(other, exported(plainly), &q), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(p, 1, 700, brief), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(p, brief), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy_v2(brief), CUDA_SUCCESS);
  recording().clear();
  ASSERT_EQ(cuMemFree_v2(q), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(q), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_TRUE(recording().calls_of("cuMemUnmap").empty());
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(recording().calls_of("cuMemUnmap").size(), 1u);
  ASSERT_EQ(cuMemPoolDestroy(other), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(own, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(plainly, stream), CUDA_SUCCESS);
}

TEST_F(SharedPools, WhatWasFreedIsNotImported) {
  const CUdeviceptr own = allocate(5000), neighbour = allocate(700);
  const auto old = exported(own);
  const CUmemoryPool other = import_own();
  CUdeviceptr p = 0, q = 0;
  ASSERT_EQ(open(other, exported(neighbour), &q), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(own, stream), CUDA_SUCCESS);
  EXPECT_EQ(open(other, old, &p), CUDA_ERROR_INVALID_VALUE) << "though its slab is open";
  ASSERT_EQ(allocate(5000), own);
  EXPECT_EQ(open(other, old, &p), CUDA_ERROR_INVALID_VALUE) << "there is another now";
  ASSERT_EQ(open(other, exported(own), &p), CUDA_SUCCESS);
  // Slabs live while something of them is allocated, and are nobody's to open afterwards.
  ASSERT_EQ(cuMemFreeAsync(own, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(neighbour, stream), CUDA_SUCCESS);
  EXPECT_EQ(broker().shared.size(), 1u);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_TRUE(broker().shared.empty());
  ASSERT_EQ(cuMemFreeAsync(p, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(q, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolDestroy(other), CUDA_SUCCESS);
}

TEST_F(SharedPools, AnotherProcessesPool) {
  Other process;
  const CUmemoryPool other = import_pool(process.roster->descriptor());
  const PointerTicket good = process.ticket(7);
  CUdeviceptr p = 0;
  broker().refusal = "its session has ended";
  EXPECT_EQ(open(other, sealed(good), &p), CUDA_ERROR_INVALID_VALUE);
  broker().refusal.clear();
  ASSERT_EQ(open(other, sealed(good), &p), CUDA_SUCCESS);
  EXPECT_EQ(recording().only("cuMemMap").at<CUdeviceptr>(0), p - 4096);
  // Damaged on the way, any byte of it.
  CUdeviceptr none = 0;
  for (size_t i = 0; i < sizeof good; ++i) {
    CUmemPoolPtrExportData data = sealed(good);
    data.reserved[i] ^= static_cast<unsigned char>(1 + next() % 255);
    EXPECT_EQ(open(other, data, &none), CUDA_ERROR_INVALID_VALUE) << i;
  }
  for (const uint32_t place : {1u, PoolRoster::kPlaces - 1, PoolRoster::kPlaces, ~0u}) {
    PointerTicket t = good;
    t.place = place;
    EXPECT_EQ(open(other, sealed(t), &none), CUDA_ERROR_INVALID_VALUE);
  }
  // What an exporter itself says may be wrong.
  const std::function<void(PointerTicket&)> lies[] = {
      [](PointerTicket& t) { t.mapped_bytes = 0; },
      [](PointerTicket& t) { t.mapped_bytes = kSlab + 1; },
      [](PointerTicket& t) { t.mapped_bytes = 2 * kSlab; },
      [](PointerTicket& t) { t.mapped_bytes = ~uint64_t{0} << 21; },
      [](PointerTicket& t) { t.key = {{9, 9}}, t.mapped_bytes = 2 * kSlab; },  // not what it has
      [](PointerTicket& t) { t.offset = kSlab; },
      [](PointerTicket& t) { t.offset += 8; },
      [](PointerTicket& t) { t.offset += 512; },  // into what is imported
      [](PointerTicket& t) { t.offset = 0, t.bytes = 8192; },
      [](PointerTicket& t) { t.offset = ~uint64_t{0} << 9; },
      [](PointerTicket& t) { t.bytes = 0; },
      [](PointerTicket& t) { t.bytes += 512; },
      [](PointerTicket& t) { t.bytes = ~uint64_t{0}; },
  };
  for (const auto& lie : lies) {
    PointerTicket t = good;
    lie(t);
    EXPECT_EQ(open(other, sealed(process.entered(t)), &none), CUDA_ERROR_INVALID_VALUE)
        << &lie - lies;
  }
  // The pool lives until its last allocation is freed, its exporter's end or not.
  process.roster.reset();
  EXPECT_EQ(open(other, sealed(good), &none), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolDestroy(other), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8Async(p, 1, 1024, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(p, stream), CUDA_SUCCESS);
}

TEST_F(SharedPools, AVgpuOpensAsMuchAsItHas) {
  Other process;
  const CUmemoryPool other = import_pool(process.roster->descriptor());
  const size_t all = worker_session().vgpus[0]->memory.bytes() / kSlab;
  std::vector<CUdeviceptr> open_ones(all);
  uint64_t key = 0;
  for (auto& p : open_ones) ASSERT_EQ(open(other, sealed(process.ticket(++key)), &p), CUDA_SUCCESS);
  CUdeviceptr p = 0;
  EXPECT_EQ(open(other, sealed(process.ticket(++key)), &p), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(available(), before);
  // What a stream has not let go of yet is waited for before anything fails.
  EXPECT_EQ(cuMemsetD8Async(open_ones[0], 1, 1024, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(open_ones[0], stream), CUDA_SUCCESS);
  EXPECT_EQ(open(other, sealed(process.ticket(++key)), &open_ones[0]), CUDA_SUCCESS);
  // A reset ends what was imported, and not the pool.
  auto* session = client::Session::get();
  session->imported_pools.clear(*session->devices()[0]);
  EXPECT_EQ(cuMemFreeAsync(open_ones[0], stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(open(other, sealed(process.ticket(1)), &p), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(p, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolDestroy(other), CUDA_SUCCESS);
}

TEST_F(SharedPools, WhatCudaRefuses) {
  int types = 0;
  ASSERT_EQ(cuDeviceGetAttribute(&types, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(types, kFd) << "and nothing else";
  const CUdeviceptr own = allocate(4096);
  int fd = -1, odd = -1;
  CUmemoryPool made = nullptr;
  CUmemPoolPtrExportData data{};
  ASSERT_EQ(cuMemPoolExportToShareableHandle(&fd, pool, kFd, 0), CUDA_SUCCESS);
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(ftruncate(fd, 0), 0) << "nobody can take the roster away";
  const CUmemoryPool other = import_pool(dup(fd));
  EXPECT_EQ(cuMemPoolExportToShareableHandle(&odd, pool, kFd, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolExportToShareableHandle(nullptr, pool, kFd, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolExportToShareableHandle(&odd, other, kFd, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolExportToShareableHandle(&odd, pool, CU_MEM_HANDLE_TYPE_FABRIC, 0),
            CUDA_ERROR_NOT_SUPPORTED);
  CUmemoryPool standard = nullptr;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&standard, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolExportToShareableHandle(&odd, standard, kFd, 0), CUDA_ERROR_INVALID_VALUE);
  for (uint64_t wrong : wrong_handles())
    EXPECT_EQ(cuMemPoolExportToShareableHandle(&odd, reinterpret_cast<CUmemoryPool>(wrong), kFd, 0),
              CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(odd, -1);

  EXPECT_EQ(cuMemPoolImportFromShareableHandle(nullptr, shareable(fd), kFd, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolImportFromShareableHandle(&made, shareable(fd), kFd, 1),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolImportFromShareableHandle(&made, shareable(fd), CU_MEM_HANDLE_TYPE_FABRIC, 0),
            CUDA_ERROR_NOT_SUPPORTED);
  // A file of the right size and nothing in it, a pipe, what an allocation's descriptor is.
  const int empty = memfd_create("empty", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(empty, lseek(fd, 0, SEEK_END)), 0);
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = kFd;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle allocation = 0, wrong_way = 0;
  int of_allocation = -1;
  ASSERT_EQ(cuMemCreate(&allocation, kSlab, &prop, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemExportToShareableHandle(&of_allocation, allocation, kFd, 0), CUDA_SUCCESS);
  for (int wrong : {-1, 9999, empty, pipes[0], of_allocation})
    EXPECT_EQ(cuMemPoolImportFromShareableHandle(&made, shareable(wrong), kFd, 0),
              CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemImportFromShareableHandle(&wrong_way, shareable(fd), kFd),
            CUDA_ERROR_INVALID_VALUE);
  for (int opened : {empty, pipes[0], pipes[1], of_allocation, fd}) close(opened);
  ASSERT_EQ(cuMemRelease(allocation), CUDA_SUCCESS);
  // A pool of a GPU that this process does not have.
  wire::DeviceRecord elsewhere = client::Session::get()->devices()[0]->record;
  elsewhere.uuid[3] ^= 1, elsewhere.physical_uuid[3] ^= 1;
  const int distant = PoolRoster::create(elsewhere)->descriptor();
  EXPECT_EQ(cuMemPoolImportFromShareableHandle(&made, shareable(distant), kFd, 0),
            CUDA_ERROR_INVALID_DEVICE);
  close(distant);
  EXPECT_EQ(made, nullptr);

  EXPECT_EQ(cuMemPoolExportPointer(nullptr, own), CUDA_ERROR_INVALID_VALUE);
  for (CUdeviceptr wrong : {own + 512, world().memory, CUdeviceptr{0}, CUdeviceptr{4096}})
    EXPECT_EQ(cuMemPoolExportPointer(&data, wrong), CUDA_ERROR_INVALID_VALUE);
  const CUmemoryPool plain = create(CU_MEM_HANDLE_TYPE_NONE);
  CUdeviceptr p = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&p, 64, plain, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolExportPointer(&data, p), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolExportToShareableHandle(&odd, plain, kFd, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemFreeAsync(p, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolDestroy(plain), CUDA_SUCCESS);
  broker().refusal = "the server is not there";
  EXPECT_EQ(cuMemPoolExportPointer(&data, own), CUDA_ERROR_OPERATING_SYSTEM);
  broker().refusal.clear();

  data = exported(own);
  EXPECT_EQ(cuMemPoolImportPointer(nullptr, other, &data), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolImportPointer(&p, other, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolImportPointer(&p, pool, &data), CUDA_ERROR_INVALID_VALUE) << "not imported";
  EXPECT_EQ(cuMemAllocFromPoolAsync(&p, 64, other, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceSetMemPool(0, other), CUDA_ERROR_INVALID_VALUE);
  // CUDA IPC's handles are not these.
  CUipcMemHandle ipc{};
  EXPECT_EQ(cuIpcGetMemHandle(&ipc, own), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr imported = 0;
  ASSERT_EQ(open(other, data, &imported), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcGetMemHandle(&ipc, imported), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuIpcCloseMemHandle(imported), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeAsync(imported + 512, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeAsync(imported, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolDestroy(other), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(own, stream), CUDA_SUCCESS);
}

TEST_F(SharedPools, PeersReachWhatTheImportedPoolIsOpenedTo) {
  Other process;
  const CUmemoryPool other = import_pool(process.roster->descriptor());
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {1}};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUmemAccess_flags flags{};
  EXPECT_EQ(cuMemPoolGetAccess(&flags, other, &access.location), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  CUdeviceptr early = 0, late = 0;
  std::set<std::pair<CUdeviceptr, int>> opened;
  const ScopedAnswer watch(SLUICE_ON(cuMemSetAccess),
                           [&](CUdeviceptr at, size_t, const CUmemAccessDesc* all, size_t count) {
                             for (size_t i = 0; i < count; ++i)
                               opened.insert({at, all[i].location.id});
                             return CUDA_SUCCESS;
                           });
  ASSERT_EQ(open(other, sealed(process.ticket(1)), &early), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolSetAccess(other, &access, 1), CUDA_SUCCESS);
  ASSERT_EQ(open(other, sealed(process.ticket(2)), &late), CUDA_SUCCESS);
  EXPECT_TRUE(opened.contains({early - 4096, 11}));
  EXPECT_TRUE(opened.contains({late - 4096, 11}));
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  ASSERT_EQ(cuMemPoolSetAccess(other, &access, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(early, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(late, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolDestroy(other), CUDA_SUCCESS);
}

}  // namespace
}  // namespace sluice::test
