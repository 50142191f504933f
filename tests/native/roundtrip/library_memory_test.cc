// SPDX-License-Identifier: Apache-2.0
// One memory, two takers: what libraries take on the node is gone from the client's, and the other
// way round; a client that counts otherwise gets no further.
#include "tests/native/roundtrip/loopback_session.h"
#include "worker/library/charge.h"

namespace sluice::test {
namespace {

using worker::give_for_library;
using worker::Metered;
using worker::take_for_library;

class LibraryMemory : public RoundTrip {
 protected:
  worker::Vgpu& vgpu() { return *worker_session().vgpus[0]; }
  bool take(uint64_t bytes) {
    return take_for_library(worker_session(), vgpu(), Metered::kDevice, bytes);
  }
  void give(uint64_t bytes) { give_for_library(worker_session(), vgpu(), Metered::kDevice, bytes); }
  static uint64_t available() {
    size_t free_bytes = 0, total = 0;
    EXPECT_EQ(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    return free_bytes;
  }
};

TEST_F(LibraryMemory, WhatOneTakesTheOtherLacks) {
  const uint64_t before = available();
  ASSERT_TRUE(take(10 * kMiB));
  EXPECT_EQ(available(), before - 10 * kMiB);
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAlloc_v2(&p, before - 8 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemAlloc_v2(&p, before - 10 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(available(), 0u);
  EXPECT_FALSE(take(512));
  EXPECT_EQ(vgpu().memory.taken(worker::MemoryUse::kLibrary), 10 * kMiB);
  EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
  EXPECT_TRUE(take(512));
  give(512);
  give(10 * kMiB);
  EXPECT_EQ(available(), before);
  EXPECT_EQ(vgpu().memory.taken(worker::MemoryUse::kLibrary), 0u);
}

// The client's half of the word is a number that somebody wrote.
TEST_F(LibraryMemory, AClientThatWritesIntoTheWordGainsNothing) {
  auto& word = *world().channel->rig.endpoint().memory_used(0);
  const uint64_t before = word.load(), room = vgpu().memory.room();
  word = 0;
  EXPECT_FALSE(take(room + kMiB)) << "the session's own accounts hold";
  EXPECT_TRUE(take(room));
  const wire::MemoryMap m{0, 0, vgpu().window_begin + vgpu().window_bytes - 8 * kMiB, 2 * kMiB};
  const wire::FrameHeader header{sizeof header + sizeof m, wire::kMemoryMap, wire::kNoLane, 0, 0};
  Answer answer;
  EXPECT_TRUE(world().channel->rig.dispatch(header, std::as_bytes(std::span(&m, 1)), &answer));
  EXPECT_EQ(answer.status, static_cast<uint32_t>(CUDA_ERROR_OUT_OF_MEMORY));
  give(room);
  word = ~0ull;
  EXPECT_FALSE(take(1)) << "and may well do itself harm";
  word = before;
  EXPECT_TRUE(take(1));
  give(1);
}

// The driver keeps a stream's memory for the next one: the most at a time is what is paid.
TEST_F(LibraryMemory, StreamsBeyondAContextsFirstArePaidOnce) {
  const uint64_t before = available();
  std::vector<CUstream> streams(worker::kStreamsOfContext + 3);
  const auto make_all = [&] {
    for (CUstream& stream : streams)
      ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  };
  const auto end_all = [&] {
    for (CUstream stream : streams) ASSERT_EQ(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  };
  const uint64_t already = vgpu().memory.streams();
  for (int round = 0; round < 2; ++round) {
    make_all();
    EXPECT_EQ(available(), before - (already + 3) * worker::kStreamBytes);
    end_all();
    EXPECT_EQ(vgpu().memory.streams(), already);
  }
  // One that libraries make comes out of the same.
  EXPECT_TRUE(worker::take_stream(worker_session(), vgpu()));
  EXPECT_EQ(available(), before - (already + 3) * worker::kStreamBytes);
  worker::give_stream(vgpu());
  // Where nothing is left there is no further stream, and the session lives on.
  ASSERT_TRUE(take(available()));
  make_all();
  CUstream one_more = nullptr;
  EXPECT_EQ(cuStreamCreate(&one_more, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(one_more, nullptr);
  end_all();
  give(vgpu().memory.taken(worker::MemoryUse::kLibrary) - (already + 3) * worker::kStreamBytes);
}

TEST_F(LibraryMemory, HostMemoryAndCodeHaveLimitsOfTheirOwn) {
  auto& s = worker_session();
  const uint64_t before = available();
  const uint64_t most = std::max<uint64_t>(256 * kMiB, vgpu().memory.bytes());
  EXPECT_TRUE(take_for_library(s, vgpu(), Metered::kHost, most));
  EXPECT_FALSE(take_for_library(s, vgpu(), Metered::kHost, 1));
  give_for_library(s, vgpu(), Metered::kHost, most);
  const uint64_t code = vgpu().memory.taken(worker::MemoryUse::kCode);
  EXPECT_TRUE(take_for_library(s, vgpu(), Metered::kCode, vgpu().memory.bytes() - code));
  EXPECT_FALSE(take_for_library(s, vgpu(), Metered::kCode, 1));
  give_for_library(s, vgpu(), Metered::kCode, vgpu().memory.bytes() - code);
  EXPECT_EQ(vgpu().memory.taken(worker::MemoryUse::kCode), code);
  EXPECT_EQ(available(), before);
}

}  // namespace
}  // namespace sluice::test
