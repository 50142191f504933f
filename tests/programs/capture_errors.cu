// SPDX-License-Identifier: Apache-2.0
// What CUDA answers to calls that a stream capture forbids, and what becomes of the capture: by
// mode, from another thread, across streams, and for events that were recorded in a capture.
#include <functional>
#include <thread>

#include "check.h"

__global__ void add(int* value, int amount) { *value += amount; }

static int* device_value;
static cudaStream_t stream, side, blocking;
static cudaEvent_t event, earlier;

static void line(const char* what, cudaError_t error) {
  std::printf("%s: %s\n", what, cudaGetErrorName(error));
  cudaGetLastError();
}

static cudaError_t launch(cudaStream_t on) {
  add<<<1, 1, 0, on>>>(device_value, 1);
  return cudaGetLastError();
}

static const char* name_of(cudaStreamCaptureStatus status) {
  return status == cudaStreamCaptureStatusNone     ? "none"
         : status == cudaStreamCaptureStatusActive ? "active"
                                                   : "invalidated";
}

// One call in a capture of one kernel: what it answers, and what the end of the capture does.
static void during(cudaStream_t on, cudaStreamCaptureMode mode, const char* what,
                   const std::function<cudaError_t()>& call) {
  REQUIRE(cudaStreamBeginCapture(on, mode));
  REQUIRE(launch(on));
  const cudaError_t error = call();
  cudaGetLastError();
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  REQUIRE(cudaStreamIsCapturing(on, &status));
  cudaGraph_t graph = nullptr;
  const cudaError_t end = cudaStreamEndCapture(on, &graph);
  std::printf("%s: %s, %s, end %s, %s\n", what, cudaGetErrorName(error), name_of(status),
              cudaGetErrorName(end), graph ? "a graph" : "no graph");
  cudaGetLastError();
  if (graph) REQUIRE(cudaGraphDestroy(graph));
}

static cudaError_t allocate() {
  void* p = nullptr;
  const cudaError_t error = cudaMalloc(&p, 1 << 20);
  if (p) cudaFree(p);
  return error;
}

static cudaError_t elsewhere(cudaStreamCaptureMode mode, const std::function<cudaError_t()>& call) {
  cudaError_t error = cudaErrorUnknown;
  std::thread([&] {
    REQUIRE(cudaSetDevice(0));
    REQUIRE(cudaThreadExchangeStreamCaptureMode(&mode));
    error = call();
  }).join();
  return error;
}

int main() {
  constexpr auto kGlobal = cudaStreamCaptureModeGlobal;
  constexpr auto kThreadLocal = cudaStreamCaptureModeThreadLocal;
  constexpr auto kRelaxed = cudaStreamCaptureModeRelaxed;
  REQUIRE(cudaMalloc(&device_value, sizeof(int)));
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  REQUIRE(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  REQUIRE(cudaStreamCreate(&blocking));
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  REQUIRE(cudaEventCreateWithFlags(&earlier, cudaEventDisableTiming));
  REQUIRE(launch(side));
  REQUIRE(cudaEventRecord(earlier, side));
  REQUIRE(cudaDeviceSynchronize());
  void* pinned = nullptr;
  char pageable[64] = "";
  REQUIRE(cudaMallocHost(&pinned, 4096));
  static char page[8192];

  // Calls that might not be safe.
  during(stream, kGlobal, "global, allocation", allocate);
  during(stream, kThreadLocal, "thread-local, allocation", allocate);
  during(stream, kRelaxed, "relaxed, allocation", allocate);
  during(stream, kGlobal, "global, allocation elsewhere",
         [] { return elsewhere(kGlobal, allocate); });
  during(stream, kGlobal, "global, allocation elsewhere, thread-local there",
         [] { return elsewhere(kThreadLocal, allocate); });
  during(stream, kGlobal, "global, allocation elsewhere, relaxed there",
         [] { return elsewhere(kRelaxed, allocate); });
  during(stream, kThreadLocal, "thread-local, allocation elsewhere",
         [] { return elsewhere(kGlobal, allocate); });
  cudaStreamCaptureMode mode = kRelaxed;
  REQUIRE(cudaThreadExchangeStreamCaptureMode(&mode));
  during(stream, kGlobal, "global, allocation by a relaxed thread", allocate);
  REQUIRE(cudaThreadExchangeStreamCaptureMode(&mode));
  during(stream, kGlobal, "global, event query", [] { return cudaEventQuery(earlier); });
  during(stream, kGlobal, "global, event synchronize",
         [] { return cudaEventSynchronize(earlier); });
  during(stream, kGlobal, "global, other stream's query", [] { return cudaStreamQuery(side); });
  during(stream, kGlobal, "global, other stream's synchronize",
         [] { return cudaStreamSynchronize(side); });
  during(stream, kGlobal, "global, host registration",
         [] { return cudaHostRegister(page, sizeof page, cudaHostRegisterDefault); });
  during(stream, kGlobal, "global, pinned allocation", [] {
    void* p = nullptr;
    return cudaMallocHost(&p, 4096);
  });
  during(stream, kRelaxed, "relaxed, event query", [] { return cudaEventQuery(earlier); });
  during(stream, kRelaxed, "relaxed, other stream's synchronize",
         [] { return cudaStreamSynchronize(side); });

  // Calls that no mode allows.
  during(stream, kRelaxed, "relaxed, own query", [] { return cudaStreamQuery(stream); });
  during(stream, kRelaxed, "relaxed, own synchronize",
         [] { return cudaStreamSynchronize(stream); });
  during(stream, kRelaxed, "relaxed, device synchronize", [] { return cudaDeviceSynchronize(); });
  during(stream, kGlobal, "begin again",
         [] { return cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal); });

  // The legacy stream.
  line("capture of the legacy stream", cudaStreamBeginCapture(nullptr, kGlobal));
  during(stream, kGlobal, "legacy launch beside a stream that does not block",
         [] { return launch(nullptr); });
  during(blocking, kGlobal, "legacy launch beside a blocking stream",
         [] { return launch(nullptr); });
  during(blocking, kRelaxed, "legacy status beside a blocking stream", [] {
    cudaStreamCaptureStatus status;
    return cudaStreamIsCapturing(cudaStreamLegacy, &status);
  });
  during(blocking, kRelaxed, "synchronous copy beside a blocking stream",
         [&] { return cudaMemcpy(device_value, pageable, 4, cudaMemcpyHostToDevice); });

  // Events.
  during(stream, kGlobal, "wait for an event from before the capture",
         [] { return cudaStreamWaitEvent(stream, earlier, 0); });
  during(stream, kGlobal, "the same as an external wait",
         [] { return cudaStreamWaitEvent(stream, earlier, cudaEventWaitExternal); });
  during(stream, kRelaxed, "query of an event recorded in the capture", [] {
    REQUIRE(cudaEventRecord(event, stream));
    return cudaEventQuery(event);
  });
  line("query of that event after it", cudaEventQuery(event));
  line("wait for that event after it", cudaStreamWaitEvent(side, event, 0));
  line("external record outside of captures",
       cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal));
  REQUIRE(cudaEventRecord(event, stream));
  line("synchronize with it once it is recorded anew", cudaEventSynchronize(event));

  // Several streams.
  during(stream, kGlobal, "a stream that joins and leaves work behind", [] {
    REQUIRE(cudaEventRecord(event, stream));
    REQUIRE(cudaStreamWaitEvent(side, event, 0));
    return launch(side);
  });
  during(stream, kGlobal, "end by a stream that joined", [] {
    REQUIRE(cudaEventRecord(event, stream));
    REQUIRE(cudaStreamWaitEvent(side, event, 0));
    cudaGraph_t graph = nullptr;
    return cudaStreamEndCapture(side, &graph);
  });
  during(stream, kGlobal, "end by another thread", [] {
    return elsewhere(kGlobal, [] {
      cudaGraph_t graph = nullptr;
      return cudaStreamEndCapture(stream, &graph);
    });
  });
  REQUIRE(cudaStreamBeginCapture(side, kRelaxed));
  during(stream, kRelaxed, "two captures that would merge", [] {
    REQUIRE(cudaEventRecord(event, stream));
    return cudaStreamWaitEvent(side, event, 0);
  });
  cudaGraph_t graph = nullptr;
  line("end of the other", cudaStreamEndCapture(side, &graph));
  line("end without a capture", cudaStreamEndCapture(stream, &graph));
  during(stream, kGlobal, "a launch after something forbidden", [] {
    allocate();
    return launch(stream);
  });
  line("the device afterwards", cudaDeviceSynchronize());
  return 0;
}
