// SPDX-License-Identifier: Apache-2.0
// A session's memory on its way to host memory and back, on the software GPU: what it keeps of that
// for the next time, and that every byte is where it was, whatever fails in the middle.
#include "worker/memory_moves.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "wire/address_windows.h"
#include "worker/gpus.h"
#include "worker/library/laid.h"
#include "worker/memory.h"

namespace sluice::test {
namespace {

using worker::Driver;
using worker::HostArea;
using worker::MemoryMoves;

constexpr uint64_t kMib = 1 << 20, kSlab = 2 * kMib, kVgpu = 512 * kMib;

// What the driver knows of host memory, and calls of it that are to fail.
struct Known {
  int registered = 0, imported = 0;
  int copies_left = 1 << 30, creations_left = 1 << 30, imports_left = 1 << 30;
} known;
Driver real;  // NOLINT(cert-err58-cpp): function pointers

class Moves : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string error;
    static const auto loaded = Driver::load(SLUICE_SOFTGPU, &error);
    ASSERT_TRUE(loaded) << error;
    real = *loaded;
    ASSERT_TRUE(worker::open_gpus(real, "", &gpus(), &error)) << error;
  }

  void SetUp() override {
    const char* given = std::getenv("SLUICE_TEST_SEED");
    seed_ = given ? static_cast<unsigned>(std::strtoul(given, nullptr, 0)) : std::random_device{}();
    random_.seed(seed_);
    known = {};
    driver_ = real;
    driver_.cuMemHostRegister_v2 = [](void* at, size_t bytes, unsigned flags) {
      const CUresult e = real.cuMemHostRegister_v2(at, bytes, flags);
      known.registered += e == CUDA_SUCCESS;
      return e;
    };
    driver_.cuMemHostUnregister = [](void* at) {
      --known.registered;
      return real.cuMemHostUnregister(at);
    };
    driver_.cuMemImportFromShareableHandle = [](CUmemGenericAllocationHandle* handle, void* from,
                                                CUmemAllocationHandleType type) {
      if (known.imports_left-- <= 0) return CUDA_ERROR_NOT_SUPPORTED;
      const CUresult e = real.cuMemImportFromShareableHandle(handle, from, type);
      if (e == CUDA_SUCCESS) imported().insert(*handle);
      return e;
    };
    driver_.cuMemRelease = [](CUmemGenericAllocationHandle handle) {
      imported().erase(handle);
      return real.cuMemRelease(handle);
    };
    driver_.cuMemcpyDtoHAsync_v2 = [](void* to, CUdeviceptr from, size_t n, CUstream stream) {
      if (known.copies_left-- <= 0) return CUDA_ERROR_INVALID_VALUE;
      return real.cuMemcpyDtoHAsync_v2(to, from, n, stream);
    };
    driver_.cuMemCreate = [](CUmemGenericAllocationHandle* handle, size_t bytes,
                             const CUmemAllocationProp* prop, unsigned long long flags) {
      const bool is_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
      if (is_device && known.creations_left-- <= 0) return CUDA_ERROR_OUT_OF_MEMORY;
      return real.cuMemCreate(handle, bytes, prop, flags);
    };
    session_ = std::make_unique<worker::Session>(driver_, nullptr, worker::SessionPlan{});
    auto v = std::make_unique<worker::Vgpu>();
    v->gpu = &gpus()[0];
    v->memory = worker::VgpuMemory(kVgpu, kVgpu);
    ASSERT_EQ(real.cuMemAddressReserve(&window_, 2 * kVgpu, 0, 0, 0), CUDA_SUCCESS);
    v->window_begin = window_;
    v->window_bytes = 2 * kVgpu;
    session_->vgpus.push_back(std::move(v));
    session_->use(0);
    moves_ = std::make_unique<MemoryMoves>(*session_);
    descriptors_ = descriptors();
  }

  void TearDown() override {
    moves_.reset();
    EXPECT_EQ(known.registered, 0);
    EXPECT_TRUE(imported().empty());
    while (!slabs_.empty()) drop(slabs_.begin()->first);
    EXPECT_EQ(descriptors(), descriptors_);  // memory of the software GPU has some, too
    real.cuMemAddressFree(window_, 2 * kVgpu);
    if (HasFailure()) std::fprintf(stderr, "again with: SLUICE_TEST_SEED=%u\n", seed_);
  }

  static std::vector<worker::Gpu>& gpus() {
    static std::vector<worker::Gpu> all;
    return all;
  }
  static std::set<CUmemGenericAllocationHandle>& imported() {
    static std::set<CUmemGenericAllocationHandle> all;
    return all;
  }
  static size_t descriptors() {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }

  // The session's memory: slabs at the lowest addresses that are free.
  void add(uint64_t bytes) {
    auto& v = *session_->vgpus[0];
    uint64_t at = window_;
    for (const auto& [begin, content] : slabs_)
      if (v.mappings.contains(begin) && begin < at + bytes) at = begin + content.size();
    const CUmemAllocationProp prop = worker::physical_memory_on(*v.gpu);
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_EQ(real.cuMemCreate(&handle, bytes, &prop, 0), CUDA_SUCCESS);
    ASSERT_EQ(real.cuMemMap(at, bytes, 0, handle, 0), CUDA_SUCCESS);
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {v.gpu->ordinal}};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    ASSERT_EQ(real.cuMemSetAccess(at, bytes, &access, 1), CUDA_SUCCESS);
    v.memory.take(worker::MemoryUse::kClient, bytes);
    v.mappings[at] = {bytes, handle, 0, false};
    slabs_[at].resize(bytes);
    fill(at);
  }
  // A library's, as it allocates in a call.
  void add_laid(uint64_t bytes) {
    const worker::LaysMemory lays(true);
    CUdeviceptr at = 0;
    auto& v = *session_->vgpus[0];
    v.memory.take(worker::MemoryUse::kLibrary, bytes);
    ASSERT_EQ(worker::lay(*session_, v, bytes, &at), CUDA_SUCCESS);
    slabs_[at].resize(bytes);
    fill(at);
  }
  void fill(uint64_t at) {
    auto& content = slabs_[at];
    for (size_t i = 0; i < content.size(); i += 4096) content[i] = static_cast<char>(random_());
    real.cuMemcpyHtoD_v2(at, content.data(), content.size());
  }
  void drop(uint64_t at) {
    auto& v = *session_->vgpus[0];
    const uint64_t bytes = slabs_[at].size();
    if (v.laid.contains(at)) {
      CUresult ended = CUDA_ERROR_UNKNOWN;
      EXPECT_TRUE(worker::lift(*session_, at, &ended));
      EXPECT_EQ(ended, CUDA_SUCCESS);
      EXPECT_FALSE(worker::lift(*session_, at, &ended));
      v.memory.give(worker::MemoryUse::kLibrary, bytes);
      slabs_.erase(at);
      return;
    }
    EXPECT_EQ(real.cuMemUnmap(at, bytes), CUDA_SUCCESS);
    EXPECT_EQ(real.cuMemRelease(v.mappings.at(at).handle), CUDA_SUCCESS);
    v.memory.give(worker::MemoryUse::kClient, bytes);
    v.mappings.erase(at);
    slabs_.erase(at);
  }
  uint64_t all() const {
    uint64_t bytes = 0;
    for (const auto& slab : slabs_) bytes += slab.second.size();
    return bytes;
  }
  bool is_right() {
    std::vector<char> found;
    for (const auto& [at, content] : slabs_) {
      found.assign(content.size(), 0);
      if (real.cuMemcpyDtoH_v2(found.data(), at, found.size()) != CUDA_SUCCESS) return false;
      if (found != content) return false;
    }
    return true;
  }

  // Host memory as a server gives it.
  static HostArea::Piece shared_piece(uint64_t bytes) {
    const int fd = memfd_create("moves", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
    return {fd, bytes, false};
  }
  static HostArea::Piece drivers_piece(uint64_t bytes) {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle made = 0;
    int fd = -1;
    EXPECT_EQ(real.cuMemCreate(&made, bytes, &prop, 0), CUDA_SUCCESS);
    EXPECT_EQ(
        real.cuMemExportToShareableHandle(&fd, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        CUDA_SUCCESS);
    EXPECT_EQ(real.cuMemRelease(made), CUDA_SUCCESS);
    return {fd, bytes, true};
  }
  // So much in all, in pieces of either kind.
  std::vector<HostArea::Piece> pieces(uint64_t bytes) {
    std::vector<HostArea::Piece> found;
    while (bytes > 0) {
      const uint64_t some = std::min(bytes, (random_() % 6 + 1) * kSlab);
      found.push_back(random_() % 2 ? shared_piece(some) : drivers_piece(some));
      bytes -= some;
    }
    return found;
  }

  bool go_out(uint64_t bytes = ~0ull) {
    const uint64_t planned =
        moves_->plan(bytes == ~0ull ? std::vector<uint64_t>{} : std::vector<uint64_t>{bytes});
    EXPECT_LE(moves_->fresh(), planned);
    return moves_->out(pieces(moves_->fresh()), &error_, &broken_);
  }
  bool come_back() {
    MemoryMoves::Missing missing;
    return moves_->back(&error_, &broken_, &missing);
  }

  Driver driver_;
  std::unique_ptr<worker::Session> session_;
  std::unique_ptr<MemoryMoves> moves_;
  CUdeviceptr window_ = 0;
  std::map<uint64_t, std::vector<char>> slabs_;
  unsigned seed_ = 0;
  std::mt19937 random_;
  std::string error_;
  bool broken_ = false;
  size_t descriptors_ = 0;
};

TEST_F(Moves, WhatIsKeptIsUsedAgainAndNothingNewIsTakenNorMapped) {
  for (int i = 0; i < 5; ++i) add(3 * kSlab);
  const size_t before = descriptors();
  moves_->look();
  ASSERT_TRUE(go_out()) << error_;
  EXPECT_EQ(moves_->kept(), 0u);
  ASSERT_TRUE(come_back()) << error_;
  moves_->keep_host();
  EXPECT_EQ(moves_->kept(), all());
  const auto opened = imported();
  for (const auto& slab : slabs_) fill(slab.first);
  moves_->look();
  EXPECT_EQ(moves_->plan({}), all());
  EXPECT_EQ(moves_->fresh(), 0u);
  known.imports_left = 0;
  ASSERT_TRUE(moves_->out({}, &error_, &broken_)) << error_;
  EXPECT_EQ(moves_->kept(), 0u);
  EXPECT_EQ(imported(), opened);
  ASSERT_TRUE(come_back()) << error_;
  EXPECT_TRUE(is_right());
  moves_->give_up_host();
  EXPECT_EQ(moves_->kept(), 0u);
  EXPECT_EQ(descriptors(), before);
}

TEST_F(Moves, WhatASessionWasGivenTooMuchIsClosed) {
  add(kSlab);
  moves_->look();
  moves_->plan({});
  ASSERT_TRUE(moves_->out({shared_piece(kSlab), drivers_piece(kSlab), shared_piece(kSlab)}, &error_,
                          &broken_));
  EXPECT_EQ(moves_->kept(), 0u);
  ASSERT_TRUE(come_back());
  moves_->keep_host();
  moves_->look();
  moves_->plan({});  // of an earlier server, which gives memory for all of it
  ASSERT_TRUE(moves_->out({drivers_piece(kSlab)}, &error_, &broken_)) << error_;
  EXPECT_EQ(moves_->kept(), 0u);
  ASSERT_TRUE(come_back());
  EXPECT_TRUE(is_right());
}

TEST_F(Moves, AnythingInAnyOrderLosesNothing) {
  uint64_t used_again = 0;
  for (int round = 0; round < 30; ++round) {
    const auto one_of = [&](uint64_t n) { return random_() % n; };
    while (slabs_.empty() || (one_of(3) && all() + 8 * kSlab <= kVgpu / 4))
      one_of(3) ? add((one_of(8) + 1) * kSlab) : add_laid((one_of(4) + 1) * kSlab);
    if (one_of(3) == 0)
      drop(std::next(slabs_.begin(), static_cast<int>(one_of(slabs_.size())))->first);
    if (slabs_.empty()) continue;
    fill(slabs_.begin()->first);
    if (one_of(6) == 0) moves_->give_up_host(one_of(2) ? one_of(12) * kSlab : ~0ull);
    moves_->look();
    for (uint64_t times = one_of(3) + 1, part = 0; times-- > 0;) {
      part = times ? std::min(all(), part + one_of(10) * kSlab) : all() - one_of(2) * kSlab;
      const uint64_t planned = moves_->plan({part});
      used_again += planned - moves_->fresh();
      if (one_of(8) == 0) {
        known.copies_left = static_cast<int>(one_of(4));
        moves_->out(pieces(moves_->fresh()), &error_, &broken_);
        known.copies_left = 1 << 30;
        ASSERT_FALSE(broken_) << error_;
        moves_->plan({part});
      }
      ASSERT_TRUE(moves_->out(pieces(moves_->fresh()), &error_, &broken_)) << error_;
      ASSERT_GE(moves_->out(0), part);
      if (one_of(4) == 0) moves_->give_up_host(one_of(2) ? one_of(12) * kSlab : ~0ull);
    }
    if (one_of(4) == 0) {
      moves_->delist_host();
      ASSERT_EQ(known.registered, 0);
      ASSERT_TRUE(imported().empty()) << "the driver restores nobody who has such memory open";
    }
    if (one_of(4) == 0) {
      known.creations_left = static_cast<int>(one_of(3));
      if (!come_back()) {
        ASSERT_FALSE(broken_) << error_;
        known.creations_left = 1 << 30;
        ASSERT_TRUE(come_back()) << error_;
      }
      known.creations_left = 1 << 30;
    } else {
      ASSERT_TRUE(come_back()) << error_;
    }
    ASSERT_TRUE(is_right()) << "round " << round;
    if (one_of(5))
      moves_->keep_host();
    else
      moves_->give_up_host();
    ASSERT_LE(moves_->kept(), kVgpu);
  }
  EXPECT_GT(used_again, 0u);
}

TEST_F(Moves, WhatLibrariesAllocateInCallsMovesAndIsNotCountedAsStaying) {
  add(2 * kSlab);
  add_laid(4 * kSlab);
  auto& v = *session_->vgpus[0];
  v.memory.take(worker::MemoryUse::kLibrary, 3 * kSlab);  // the driver's own
  std::atomic<uint64_t> taken{0}, staying{0};
  v.memory.show_on(&taken, &staying);
  EXPECT_EQ(staying, 3 * kSlab);
  moves_->look();
  EXPECT_EQ(moves_->movable(0), 6 * kSlab);
  EXPECT_EQ(moves_->staying(0), 3 * kSlab);
  ASSERT_TRUE(go_out()) << error_;
  EXPECT_EQ(moves_->out(0), 6 * kSlab);
  ASSERT_TRUE(come_back()) << error_;
  EXPECT_TRUE(is_right());
  CUdeviceptr none = 0;
  EXPECT_EQ(worker::lay(*session_, v, kSlab, &none), CUDA_ERROR_NOT_SUPPORTED) << "in no call";
  v.memory.give(worker::MemoryUse::kLibrary, 3 * kSlab);
  while (!v.laid.empty()) drop(v.laid.begin()->first);
  EXPECT_EQ(staying, 0u);
  EXPECT_EQ(taken, 2 * kSlab);
  v.memory.show_on(nullptr, nullptr);
}

TEST_F(Moves, WhileItStandsStillACommandFreesWhatALibraryHasAndALibrarysThreadWaits) {
  for (int i = 0; i < 2; ++i) add_laid(2 * kSlab);
  auto& v = *session_->vgpus[0];
  const uint64_t one = v.laid.begin()->first, other = v.laid.rbegin()->first;
  session_->cut.close();
  auto command = std::async(std::launch::async, [&] {
    worker::Cut::begun();
    drop(one);  // as one of NCCL's does, in which nothing is laid
    worker::Cut::done();
  });
  const bool is_done = command.wait_for(std::chrono::minutes(1)) == std::future_status::ready;
  if (!is_done) session_->cut.open();
  ASSERT_TRUE(is_done) << "it waits for the cut, which waits for it";
  EXPECT_FALSE(worker::lift(*session_, one, nullptr)) << "and who frees something else goes on";
  auto thread = std::async(std::launch::async, [&] { drop(other); });
  moves_->look();
  ASSERT_TRUE(go_out() && come_back()) << error_;
  EXPECT_TRUE(v.laid.size() == 1 && is_right());
  session_->cut.open();
  thread.get();
}

TEST_F(Moves, WhereTheCopiesFailWhatIsOutAndWhatIsKeptStayAsTheyWere) {
  for (int i = 0; i < 4; ++i) add(2 * kSlab);
  moves_->look();
  ASSERT_TRUE(go_out());
  ASSERT_TRUE(come_back());
  moves_->keep_host();
  moves_->look();
  ASSERT_TRUE(go_out(2 * kSlab));
  EXPECT_EQ(moves_->kept(), 6 * kSlab);
  moves_->plan({});
  known.copies_left = 0;
  EXPECT_FALSE(moves_->out({}, &error_, &broken_));
  EXPECT_FALSE(broken_);
  known.copies_left = 1 << 30;
  EXPECT_EQ(moves_->out(0), 2 * kSlab);
  EXPECT_EQ(moves_->kept(), 6 * kSlab);
  ASSERT_TRUE(come_back()) << error_;
  EXPECT_TRUE(is_right());
}

TEST_F(Moves, WhatIsGivenUpWhileItIsOutIsWhatNothingIsOutIn) {
  for (int i = 0; i < 8; ++i) add(kSlab);
  moves_->look();
  moves_->plan({});
  std::vector<HostArea::Piece> host;
  for (int i = 0; i < 8; ++i) host.push_back(i % 2 ? shared_piece(kSlab) : drivers_piece(kSlab));
  ASSERT_TRUE(moves_->out(host, &error_, &broken_));
  ASSERT_TRUE(come_back());
  moves_->keep_host();
  moves_->look();
  ASSERT_TRUE(go_out(3 * kSlab));
  EXPECT_EQ(moves_->kept(), 5 * kSlab);
  moves_->give_up_host();
  EXPECT_EQ(moves_->kept(), 0u);
  ASSERT_TRUE(go_out()) << "and the rest finds no room in what is gone";
  moves_->delist_host();
  EXPECT_TRUE(imported().empty());
  ASSERT_TRUE(come_back()) << error_;
  EXPECT_TRUE(is_right());
}

TEST_F(Moves, NoMoreIsGivenUpThanIsAskedForInWholePieces) {
  for (int i = 0; i < 8; ++i) add(kSlab);
  moves_->look();
  moves_->plan({});
  std::vector<HostArea::Piece> host;
  for (int i = 0; i < 4; ++i)
    host.push_back(i % 2 ? shared_piece(2 * kSlab) : drivers_piece(2 * kSlab));
  ASSERT_TRUE(moves_->out(host, &error_, &broken_));
  ASSERT_TRUE(come_back());
  moves_->keep_host();
  moves_->give_up_host(0);
  EXPECT_EQ(moves_->kept(), 8 * kSlab);
  moves_->give_up_host(3 * kSlab);
  EXPECT_EQ(moves_->kept(), 4 * kSlab);
  EXPECT_EQ(known.registered, 1);
  EXPECT_EQ(imported().size(), 1u);
  moves_->look();
  moves_->plan({});
  EXPECT_EQ(moves_->fresh(), 4 * kSlab);
  ASSERT_TRUE(moves_->out(pieces(4 * kSlab), &error_, &broken_));
  moves_->give_up_host(kSlab);
  EXPECT_EQ(moves_->kept(), 0u) << "everything has something out in it";
  ASSERT_TRUE(come_back());
  EXPECT_TRUE(is_right());
}

TEST_F(Moves, NoMoreIsKeptThanTheVgpusHave) {
  for (int i = 0; i < 2; ++i) add(4 * kSlab);
  moves_->look();
  ASSERT_TRUE(go_out(4 * kSlab));
  ASSERT_TRUE(go_out());
  ASSERT_TRUE(come_back());
  session_->vgpus[0]->memory = worker::VgpuMemory(7 * kSlab, 7 * kSlab);
  moves_->keep_host();
  EXPECT_EQ(moves_->kept(), 4 * kSlab);
}

TEST_F(Moves, WhatNothingOfTheLastMoveLayInIsGivenUp) {
  add(4 * kSlab);
  moves_->look();
  ASSERT_TRUE(go_out());
  ASSERT_TRUE(come_back());
  moves_->keep_host();
  drop(slabs_.begin()->first);
  add(8 * kSlab);
  moves_->look();
  moves_->plan({});
  EXPECT_EQ(moves_->fresh(), 8 * kSlab) << "a piece lies in one area";
  ASSERT_TRUE(moves_->out(pieces(8 * kSlab), &error_, &broken_));
  EXPECT_EQ(moves_->kept(), 4 * kSlab);
  ASSERT_TRUE(come_back());
  moves_->keep_host();
  EXPECT_EQ(moves_->kept(), 8 * kSlab);
  EXPECT_TRUE(is_right());
}

TEST_F(Moves, WhereTooLittleIsGivenNothingMovesAndNothingKeptIsLost) {
  add(2 * kSlab);
  moves_->look();
  ASSERT_TRUE(go_out());
  ASSERT_TRUE(come_back());
  moves_->keep_host();
  add(4 * kSlab);
  moves_->look();
  moves_->plan({});
  EXPECT_FALSE(moves_->out({shared_piece(kSlab)}, &error_, &broken_));
  EXPECT_FALSE(broken_);
  EXPECT_EQ(moves_->kept(), 2 * kSlab);
  ASSERT_TRUE(go_out()) << error_;
  ASSERT_TRUE(come_back());
  EXPECT_TRUE(is_right());
}

}  // namespace
}  // namespace sluice::test
