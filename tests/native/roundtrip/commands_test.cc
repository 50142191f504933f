// SPDX-License-Identifier: Apache-2.0
// The commands that are written by hand, without the copies: what the application passed is what
// the driver receives, bit for bit.
#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {
namespace {

constexpr int kTries = 50;

class Commands : public RoundTrip {
 protected:
  static bool within_a_minute(const std::function<bool()>& done) {
    for (int i = 0; i < 60'000 && !done(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return done();
  }
  std::string random_text(size_t n) {
    std::string text(n, 'x');
    for (char& c : text) c = static_cast<char>('!' + next() % 90);
    return text;
  }
};

TEST_F(Commands, Ping) {
  EXPECT_EQ(client::Session::get()->exchange(wire::kPing, uint64_t{0}), CUDA_SUCCESS);
  EXPECT_TRUE(recording().calls.empty());
}

TEST_F(Commands, MemoryMapAndUnmap) {
  for (int device = 0; device < 2; ++device) {
    ASSERT_EQ(cuCtxSetCurrent(world().contexts[device]), CUDA_SUCCESS);
    for (int i = 0; i < 20; ++i) {
      recording().clear();
      const size_t bytes = (2 << 20) + next() % (20 << 20);
      const size_t mapped = (bytes + (2 << 20) - 1) >> 21 << 21;
      CUmemAccessDesc access{};
      CUmemAllocationProp prop{};
      auto& create = SLUICE_ON(cuMemCreate);
      const auto make = create;
      ScopedAnswer a(create, [&](CUmemGenericAllocationHandle* h, size_t n,
                                 const CUmemAllocationProp* p, unsigned long long f) {
        prop = *p;
        return make(h, n, p, f);
      });
      ScopedAnswer b(SLUICE_ON(cuMemSetAccess),
                     [&](CUdeviceptr, size_t, const CUmemAccessDesc* d, size_t) {
                       access = *d;
                       return CUDA_SUCCESS;
                     });
      CUdeviceptr p = 0;
      ASSERT_EQ(cuMemAlloc_v2(&p, bytes), CUDA_SUCCESS);
      EXPECT_EQ(recording().only("cuMemCreate").at<size_t>(1), mapped);
      EXPECT_EQ(prop.location.id, 10 + device);
      EXPECT_EQ(prop.type, CU_MEM_ALLOCATION_TYPE_PINNED);
      EXPECT_EQ(recording().only("cuMemMap").at<CUdeviceptr>(0), p);
      EXPECT_EQ(recording().only("cuMemMap").at<size_t>(1), mapped);
      EXPECT_EQ(recording().only("cuMemSetAccess").at<CUdeviceptr>(0), p);
      EXPECT_EQ(recording().only("cuMemSetAccess").at<size_t>(1), mapped);
      EXPECT_EQ(access.location.id, 10 + device);
      EXPECT_EQ(access.flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
      recording().clear();
      ASSERT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
      EXPECT_EQ(recording().only("cuMemUnmap").at<CUdeviceptr>(0), p);
      EXPECT_EQ(recording().only("cuMemUnmap").at<size_t>(1), mapped);
      EXPECT_EQ(recording().calls_of("cuMemRelease").size(), 1u);
    }
  }
}

TEST_F(Commands, ArenaRegister) {
  // Pages become known to the driver once, before their first use.
  const auto arena = world().channel->arena();
  std::map<uint64_t, uint64_t> known;
  ScopedAnswer a(SLUICE_ON(cuMemHostRegister_v2), [&](void* at, size_t n, unsigned flags) {
    EXPECT_EQ(flags, unsigned{CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP});
    EXPECT_TRUE(known.emplace(reinterpret_cast<uint64_t>(at), n).second);
    return CUDA_SUCCESS;
  });
  std::vector<void*> all;
  for (;;) {
    void* p = nullptr;
    ASSERT_EQ(cuMemHostAlloc(&p, 3 << 20, 0), CUDA_SUCCESS);
    all.push_back(p);
    const uint64_t at = reinterpret_cast<uint64_t>(p) - reinterpret_cast<uint64_t>(arena.data());
    if (at >= arena.size()) break;  // the arena is used up
    const bool covered = std::any_of(known.begin(), known.end(), [&](const auto& k) {
      const uint64_t in = reinterpret_cast<uint64_t>(p) - k.first;
      return in < k.second;
    });
    EXPECT_TRUE(covered) << "pinned memory that the driver does not know";
  }
  EXPECT_EQ(known.size(), 2u);
  for (void* p : all) EXPECT_EQ(cuMemFreeHost(p), CUDA_SUCCESS);
}

TEST_F(Commands, DeviceIdle) {
  for (int device = 0; device < 2; ++device) {
    ASSERT_EQ(cuCtxSetCurrent(world().contexts[device]), CUDA_SUCCESS);
    recording().clear();
    std::vector<CUcontext> currents;
    ScopedAnswer a(SLUICE_ON(cuCtxSetCurrent), [&](CUcontext c) {
      currents.push_back(c);
      return CUDA_SUCCESS;
    });
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(recording().calls_of("cuCtxSynchronize").size(), 1u);
    const CUresult refusal = CUDA_ERROR_LAUNCH_FAILED;
    ScopedAnswer b(SLUICE_ON(cuCtxSynchronize), [&] { return refusal; });
    EXPECT_EQ(cuCtxSynchronize(), refusal);
    if (device == 1) {
      ASSERT_FALSE(currents.empty());
      EXPECT_EQ(currents.back(), worker_session().vgpus[1]->gpu->context);
    }
  }
}

TEST_F(Commands, StreamCreateAndDestroy) {
  for (int i = 0; i < kTries; ++i) {
    recording().clear();
    const unsigned flags = next() % 2;
    const int priority = -static_cast<int>(next() % 8);  // the driver's range is 0 to -5
    CUstream stream = nullptr;
    ASSERT_EQ(cuStreamCreateWithPriority(&stream, flags, priority), CUDA_SUCCESS);
    const Call& made = recording().only("cuStreamCreateWithPriority");
    EXPECT_EQ(made.at<unsigned>(1), flags);
    EXPECT_EQ(made.at<int>(2), std::max(priority, -5));
    const CUstream theirs = driver_of(stream);
    ASSERT_EQ(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    EXPECT_EQ(recording().only("cuStreamDestroy_v2").at<CUstream>(0), theirs);
    EXPECT_EQ(cuStreamDestroy_v2(stream), CUDA_ERROR_INVALID_HANDLE);
  }
}

TEST_F(Commands, StreamSynchronizeAndQuery) {
  for (CUstream stream : {CUstream{nullptr}, world().stream}) {
    for (CUresult answer : {CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE}) {
      ASSERT_EQ(cuMemcpyDtoDAsync_v2(world().memory, world().memory + 64, 16, stream),
                CUDA_SUCCESS);
      ScopedAnswer a(SLUICE_ON(cuStreamSynchronize), [&](CUstream) { return answer; });
      ASSERT_EQ(cuMemcpyDtoDAsync_v2(world().memory, world().memory + 64, 16, stream),
                CUDA_SUCCESS);  // so that there is work
      recording().clear();
      EXPECT_EQ(cuStreamSynchronize(stream), answer);
      EXPECT_EQ(recording().only("cuStreamSynchronize").at<CUstream>(0), driver_of(stream));
      if (answer != CUDA_SUCCESS) continue;
      recording().clear();
      EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
      EXPECT_TRUE(recording().calls.empty()) << "there was nothing left to wait for";
    }
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    // A fill cannot be noticed by the host.
    ASSERT_EQ(cuMemsetD8Async(world().memory, 1, 16, stream), CUDA_SUCCESS);
    recording().clear();
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS);
    EXPECT_TRUE(recording().calls_of("cuStreamSynchronize").empty());
    EXPECT_TRUE(recording().calls_of("cuStreamQuery").empty());
    for (CUresult answer : {CUDA_ERROR_NOT_READY, CUDA_SUCCESS}) {
      ASSERT_EQ(cuMemcpyDtoDAsync_v2(world().memory, world().memory + 64, 16, stream),
                CUDA_SUCCESS);  // so that there is work
      ScopedAnswer a(SLUICE_ON(cuStreamQuery), [&](CUstream) { return answer; });
      recording().clear();
      EXPECT_EQ(cuStreamQuery(stream), answer);
      EXPECT_EQ(recording().only("cuStreamQuery").at<CUstream>(0), driver_of(stream));
    }
  }
}

TEST_F(Commands, StreamWaitEvent) {
  CUevent event = nullptr;
  ASSERT_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
  recording().clear();
  ASSERT_EQ(cuStreamWaitEvent(world().stream, event, 0), CUDA_SUCCESS);
  EXPECT_TRUE(recording().calls_of("cuStreamWaitEvent").empty()) << "it was never recorded";
  ASSERT_EQ(cuEventRecord(event, nullptr), CUDA_SUCCESS);
  recording().clear();
  ASSERT_EQ(cuStreamWaitEvent(world().stream, event, 0), CUDA_SUCCESS);
  const Call& got = recording().only("cuStreamWaitEvent");
  EXPECT_EQ(got.at<CUstream>(0), driver_of(world().stream));
  EXPECT_EQ(got.at<CUevent>(1), driver_of(event));
  EXPECT_EQ(got.at<unsigned>(2), 0u);
  // The flag is for streams that capture.
  EXPECT_EQ(cuStreamWaitEvent(world().stream, event, CU_EVENT_WAIT_EXTERNAL),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuEventDestroy_v2(event), CUDA_SUCCESS);
}

TEST_F(Commands, EventCreateAndDestroy) {
  for (unsigned flags : {0u, 1u, 2u, 3u}) {
    recording().clear();
    CUevent event = nullptr;
    ASSERT_EQ(cuEventCreate(&event, flags), CUDA_SUCCESS);
    EXPECT_EQ(recording().only("cuEventCreate").at<unsigned>(1), flags);
    const CUevent theirs = driver_of(event);
    ASSERT_EQ(cuEventDestroy_v2(event), CUDA_SUCCESS);
    EXPECT_EQ(recording().only("cuEventDestroy_v2").at<CUevent>(0), theirs);
    EXPECT_EQ(cuEventDestroy_v2(event), CUDA_ERROR_INVALID_HANDLE);
  }
}

TEST_F(Commands, EventRecordQueryAndSynchronize) {
  for (int i = 0; i < kTries; ++i) {
    recording().clear();
    const CUstream stream = random_stream();
    ASSERT_EQ(cuEventRecord(world().event, stream), CUDA_SUCCESS);
    const Call& got = recording().only("cuEventRecordWithFlags");
    EXPECT_EQ(got.at<CUevent>(0), driver_of(world().event));
    EXPECT_EQ(got.at<CUstream>(1), driver_of(stream));
    // The mark that spares the round trip is on the same stream, and seen by all who wait for it.
    EXPECT_EQ(recording().only("cuStreamWriteValue64_v2").at<CUstream>(0), driver_of(stream));
    EXPECT_STREQ(recording().calls.back().name, "cuEventRecordWithFlags");
    seen().clear();
    EXPECT_EQ(cuEventQuery(world().event), CUDA_SUCCESS);
    EXPECT_EQ(cuEventSynchronize(world().event), CUDA_SUCCESS);
    EXPECT_TRUE(seen().empty()) << "the page had the answer";
  }
  recording().clear();
  EXPECT_EQ(cuEventRecordWithFlags(world().event, world().stream, CU_EVENT_RECORD_EXTERNAL),
            CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_TRUE(recording().calls.empty()) << "the flag is for streams that capture";
  // Before its mark is written the event is not ready.
  ScopedAnswer late(SLUICE_ON(cuStreamWriteValue64_v2),
                    [](CUstream, CUdeviceptr, cuuint64_t, unsigned) { return CUDA_SUCCESS; });
  ASSERT_EQ(cuEventRecord(world().event, world().stream), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(world().event), CUDA_ERROR_NOT_READY);
}

// What a client asks where no page is shared; the frames are the same everywhere.
TEST_F(Commands, EventQueryAndSynchronizeOverTheWire) {
  client::Session* s = client::Session::get();
  for (CUresult answer : {CUDA_SUCCESS, CUDA_ERROR_NOT_READY, CUDA_ERROR_INVALID_HANDLE}) {
    ScopedAnswer a(SLUICE_ON(cuEventQuery), [&](CUevent) { return answer; });
    ScopedAnswer b(SLUICE_ON(cuEventSynchronize), [&](CUevent) { return answer; });
    recording().clear();
    EXPECT_EQ(s->exchange(wire::kEventQuery, wire::EventId{id(world().event)}), answer);
    EXPECT_EQ(s->exchange(wire::kEventSynchronize, wire::EventId{id(world().event)}), answer);
    EXPECT_EQ(recording().only("cuEventQuery").at<CUevent>(0), driver_of(world().event));
    EXPECT_EQ(recording().only("cuEventSynchronize").at<CUevent>(0), driver_of(world().event));
  }
}

TEST_F(Commands, EventElapsed) {
  CUevent start = nullptr, end = nullptr;
  ASSERT_EQ(cuEventCreate(&start, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&end, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(start, world().stream), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(end, world().stream), CUDA_SUCCESS);
  for (int i = 0; i < kTries; ++i) {
    recording().clear();
    const float made_up = random<float>();
    ScopedAnswer a(SLUICE_ON(cuEventElapsedTime_v2),
                   [&](float* ms, CUevent, CUevent) { return *ms = made_up, CUDA_SUCCESS; });
    float got = 0;
    ASSERT_EQ(cuEventElapsedTime_v2(&got, start, end), CUDA_SUCCESS);
    EXPECT_EQ(got, made_up);
    EXPECT_EQ(recording().only("cuEventElapsedTime_v2").at<CUevent>(1), driver_of(start));
    EXPECT_EQ(recording().only("cuEventElapsedTime_v2").at<CUevent>(2), driver_of(end));
  }
  // Whose marks are there, as these have, are done a moment later for the driver, too.
  int waited = 0;
  {
    ScopedAnswer a(SLUICE_ON(cuEventSynchronize), [&](CUevent) { return ++waited, CUDA_SUCCESS; });
    ScopedAnswer b(SLUICE_ON(cuEventElapsedTime_v2), [&](float* ms, CUevent, CUevent) {
      return waited < 2 ? CUDA_ERROR_NOT_READY : (*ms = 3, CUDA_SUCCESS);
    });
    float got = 0;
    EXPECT_EQ(cuEventElapsedTime_v2(&got, start, end), CUDA_SUCCESS);
    EXPECT_EQ(got, 3);
  }
  ScopedAnswer a(SLUICE_ON(cuEventElapsedTime_v2),
                 [](float*, CUevent, CUevent) { return CUDA_ERROR_NOT_READY; });
  float untouched = 7;
  EXPECT_EQ(cuEventElapsedTime_v2(&untouched, start, end), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(untouched, 7);
  cuEventDestroy_v2(start);
  cuEventDestroy_v2(end);
}

TEST_F(Commands, Mark) {
  for (int i = 0; i < kTries; ++i) {
    recording().clear();
    const CUstream stream = random_stream();
    const wire::Mark m{stream == world().stream ? id(stream) : 0,
                       8000 + static_cast<uint32_t>(next() % 100), 0, next()};
    ASSERT_EQ(client::Session::get()->post(wire::kMark, m, {}, nullptr, 1), CUDA_SUCCESS);
    const Call& got = recording().only("cuStreamWriteValue64_v2");
    EXPECT_EQ(got.at<CUstream>(0), driver_of(stream));
    EXPECT_EQ(got.at<cuuint64_t>(2), m.value);
    EXPECT_EQ(world().channel->marks()[m.mark].load(), m.value);
  }
}

TEST_F(Commands, NothingIsCapturing) {
  for (CUstream stream : {CUstream{nullptr}, CU_STREAM_PER_THREAD, world().stream}) {
    auto status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    EXPECT_EQ(
        cuStreamGetCaptureInfo_v3(stream, &status, nullptr, nullptr, nullptr, nullptr, nullptr),
        CUDA_SUCCESS);
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
    EXPECT_EQ(
        cuStreamGetCaptureInfo_v3(stream, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr),
        CUDA_ERROR_INVALID_VALUE);
  }
  auto status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  EXPECT_EQ(cuStreamGetCaptureInfo_v2(reinterpret_cast<CUstream>(id(this)), &status, nullptr,
                                      nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(Commands, HostFunction) {
  for (int i = 0; i < 20; ++i) {
    recording().clear();
    const CUstream stream = random_stream();
    std::atomic<void*> given{nullptr};
    static std::atomic<void*>* where = nullptr;
    where = &given;
    ASSERT_EQ(
        cuLaunchHostFunc(stream, [](void* data) { where->store(data); }, &given), CUDA_SUCCESS);
    EXPECT_TRUE(within_a_minute([&] { return given.load() == &given; }));
    const Call& ready = recording().only("cuStreamWriteValue64_v2");
    const Call& wait = recording().only("cuStreamWaitValue64_v2");
    EXPECT_EQ(ready.at<CUstream>(0), driver_of(stream));
    EXPECT_EQ(wait.at<CUstream>(0), driver_of(stream));
    EXPECT_EQ(wait.at<cuuint64_t>(2), ready.at<cuuint64_t>(2));
    EXPECT_EQ(wait.at<unsigned>(3), unsigned{CU_STREAM_WAIT_VALUE_GEQ});
    EXPECT_NE(wait.at<CUdeviceptr>(1), ready.at<CUdeviceptr>(1));
    // What the stream waits for is written once the function has run.
    const auto* done = reinterpret_cast<std::atomic<uint64_t>*>(wait.at<CUdeviceptr>(1));
    EXPECT_TRUE(within_a_minute([&] { return done->load() >= wait.at<cuuint64_t>(2); }));
  }
}

TEST_F(Commands, StreamCallback) {
  struct Got {
    std::atomic<bool> called{false};
    CUstream stream = nullptr;
    CUresult status = CUDA_ERROR_UNKNOWN;
  } got;
  const auto callback = [](CUstream stream, CUresult status, void* data) {
    auto* g = static_cast<Got*>(data);
    g->stream = stream;
    g->status = status;
    g->called = true;
  };
  ASSERT_EQ(cuStreamAddCallback(world().stream, callback, &got, 0), CUDA_SUCCESS);
  ASSERT_TRUE(within_a_minute([&] { return got.called.load(); }));
  EXPECT_EQ(got.stream, world().stream);
  EXPECT_EQ(got.status, CUDA_SUCCESS);
}

}  // namespace
}  // namespace sluice::test
