// SPDX-License-Identifier: Apache-2.0
// A program that profiles itself by CUPTI's Activity and Callback API, against NVIDIA's headers. It
// prints what it was told, a line of JSON for each record, and what it did itself to compare with.
// Arguments: "ticks" gives CUPTI a clock of its own.
#include <cupti.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "require.h"

#if CUDART_VERSION >= 13000
using Kernel = CUpti_ActivityKernel10;
#else
using Kernel = CUpti_ActivityKernel9;
#endif

__global__ void scale(float* values, int count, float by) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] *= by;
}

namespace {

constexpr size_t kBuffer = 64 << 10;
int buffers_out = 0;

unsigned long long real_ns() {
  timespec at{};
  clock_gettime(CLOCK_REALTIME, &at);
  return at.tv_sec * 1000000000ull + at.tv_nsec;
}

uint64_t ticks() { return (real_ns() - 1000000000000000000ull) * 3; }

void CUPTIAPI requested(uint8_t** buffer, size_t* size, size_t* most) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBuffer));
  *size = kBuffer;
  *most = 0;
  ++buffers_out;
}

void show(CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto* k = reinterpret_cast<Kernel*>(record);
      std::printf(
          "{\"kind\": \"kernel\", \"name\": \"%s\", \"grid\": %d, \"block\": %d, \"shared\": %d, "
          "\"stream\": %u, "
          "\"device\": %u, \"context\": %u, \"correlation\": %u, \"start\": %llu, \"end\": %llu}\n",
          k->name, k->gridX, k->blockX, k->dynamicSharedMemory, k->streamId, k->deviceId,
          k->contextId, k->correlationId, static_cast<unsigned long long>(k->start),
          static_cast<unsigned long long>(k->end));
      return;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto* c = reinterpret_cast<CUpti_ActivityMemcpy6*>(record);
      std::printf(
          "{\"kind\": \"copy\", \"copy\": %d, \"from\": %d, \"to\": %d, \"bytes\": %llu, "
          "\"stream\": %u, "
          "\"correlation\": %u, \"start\": %llu, \"end\": %llu}\n",
          c->copyKind, c->srcKind, c->dstKind, static_cast<unsigned long long>(c->bytes),
          c->streamId, c->correlationId, static_cast<unsigned long long>(c->start),
          static_cast<unsigned long long>(c->end));
      return;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto* f = reinterpret_cast<CUpti_ActivityMemset4*>(record);
      std::printf(
          "{\"kind\": \"fill\", \"value\": %u, \"bytes\": %llu, \"correlation\": %u, \"start\": "
          "%llu, "
          "\"end\": %llu}\n",
          f->value, static_cast<unsigned long long>(f->bytes), f->correlationId,
          static_cast<unsigned long long>(f->start), static_cast<unsigned long long>(f->end));
      return;
    }
    case CUPTI_ACTIVITY_KIND_DRIVER:
    case CUPTI_ACTIVITY_KIND_RUNTIME: {
      const auto* a = reinterpret_cast<CUpti_ActivityAPI*>(record);
      const char* name = nullptr;
      const bool driver = record->kind == CUPTI_ACTIVITY_KIND_DRIVER;
      REQUIRE(cuptiGetCallbackName(
          driver ? CUPTI_CB_DOMAIN_DRIVER_API : CUPTI_CB_DOMAIN_RUNTIME_API, a->cbid, &name));
      std::printf(
          "{\"kind\": \"%s\", \"name\": \"%s\", \"correlation\": %u, \"result\": %u, \"start\": "
          "%llu, "
          "\"end\": %llu}\n",
          driver ? "driver" : "runtime", name, a->correlationId, a->returnValue,
          static_cast<unsigned long long>(a->start), static_cast<unsigned long long>(a->end));
      return;
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto* x = reinterpret_cast<CUpti_ActivityExternalCorrelation*>(record);
      std::printf("{\"kind\": \"external\", \"of\": %d, \"id\": %llu, \"correlation\": %u}\n",
                  x->externalKind, static_cast<unsigned long long>(x->externalId),
                  x->correlationId);
      return;
    }
    default:
      std::printf("{\"kind\": \"other\", \"number\": %d}\n", record->kind);
  }
}

void CUPTIAPI completed(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  --buffers_out;
  CUpti_Activity* record = nullptr;
  CUptiResult e;
  while ((e = cuptiActivityGetNextRecord(buffer, valid, &record)) == CUPTI_SUCCESS) show(record);
  if (e != CUPTI_ERROR_MAX_LIMIT_REACHED) std::exit(3);
  std::free(buffer);
}

int entered = 0, left = 0, wrong_calls = 0;
uint64_t last_data = 0;

void CUPTIAPI called(void* data, CUpti_CallbackDomain domain, CUpti_CallbackId, const void* told) {
  const auto* info = static_cast<const CUpti_CallbackData*>(told);
  if (data != &entered || domain != CUPTI_CB_DOMAIN_RUNTIME_API) ++wrong_calls;
  if (info->callbackSite == CUPTI_API_ENTER) {
    ++entered;
    *info->correlationData = last_data = 40 + entered;
    const auto* p = static_cast<const cudaMemset_v3020_params*>(info->functionParams);
    if (std::strcmp(info->functionName, "cudaMemset") != 0 || p->value != 7 || p->count != 4096)
      ++wrong_calls;
  } else {
    ++left;
    if (*info->correlationData != last_data ||
        *static_cast<cudaError_t*>(info->functionReturnValue))
      ++wrong_calls;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool own_clock = argc > 1 && std::strcmp(argv[1], "ticks") == 0;
  const int kCount = 1000;
  const size_t kLarge = 9 << 20;
  std::vector<char> large(kLarge, 1);
  float *values = nullptr, *pinned = nullptr;
  char* device_large = nullptr;
  cudaStream_t stream;
  REQUIRE(cudaMalloc(&values, kCount * sizeof(float)));
  REQUIRE(cudaMalloc(&device_large, kLarge));
  REQUIRE(cudaMallocHost(&pinned, kCount * sizeof(float)));
  REQUIRE(cudaStreamCreate(&stream));
  // Before anybody profiles: never seen.
  scale<<<1, 32, 0, stream>>>(values, 32, 1);
  REQUIRE(cudaDeviceSynchronize());

  if (own_clock) REQUIRE(cuptiActivityRegisterTimestampCallback(ticks));
  REQUIRE(cuptiActivityRegisterCallbacks(requested, completed));
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
        CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER,
        CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_OVERHEAD})
    REQUIRE(cuptiActivityEnable(kind));
  uint64_t began = 0, ended = 0;
  REQUIRE(cuptiGetTimestamp(&began));

  REQUIRE(cudaMemset(values, 0, kCount * sizeof(float)));
  REQUIRE(cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0,
                                                 1234567890123));
  for (int i = 0; i < 3; ++i) scale<<<4, 256, 16 * i, stream>>>(values, kCount, 2);
  uint64_t popped = 0;
  REQUIRE(cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &popped));
  REQUIRE(cudaMemcpy(device_large, large.data(), kLarge, cudaMemcpyHostToDevice));
  REQUIRE(cudaMemcpyAsync(pinned, values, kCount * sizeof(float), cudaMemcpyDeviceToHost, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  REQUIRE(cudaMemcpy(large.data(), device_large, kLarge, cudaMemcpyDeviceToHost));
  REQUIRE(cuCtxSynchronize());
  REQUIRE(cuptiGetTimestamp(&ended));
  uint32_t stream_id = 0, device_id = 77;
  REQUIRE(cuptiGetStreamId(nullptr, stream, &stream_id));
  REQUIRE(cuptiGetDeviceId(nullptr, &device_id));
  // As PyTorch's profiler: where it was asked for no buffer, there is nothing to flush.
  if (buffers_out > 0) REQUIRE(cuptiActivityFlushAll(0));
  size_t dropped = 99;
  REQUIRE(cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped));

  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
        CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER,
        CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION})
    REQUIRE(cuptiActivityDisable(kind));
  // After: not seen, but by the callback.
  CUpti_SubscriberHandle subscriber, second;
  REQUIRE(cuptiSubscribe(&subscriber, called, &entered));
  const int again = cuptiSubscribe(&second, called, nullptr);
  REQUIRE(cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API,
                              CUPTI_RUNTIME_TRACE_CBID_cudaMemset_v3020));
  REQUIRE(cudaMemset(device_large, 7, 4096));
  scale<<<4, 256, 0, stream>>>(values, kCount, 2);
  REQUIRE(cudaDeviceSynchronize());
  REQUIRE(cuptiUnsubscribe(subscriber));
  REQUIRE(cudaMemset(device_large, 7, 4096));
  if (buffers_out > 0) REQUIRE(cuptiActivityFlushAll(0));
  const int counters = cuptiEnableKernelReplayMode(nullptr);
  std::printf(
      "{\"kind\": \"told\", \"began\": %llu, \"ended\": %llu, \"popped\": %llu, \"stream\": %u, "
      "\"device\": %u, "
      "\"dropped\": %zu, \"buffers\": %d, \"entered\": %d, \"left\": %d, \"wrong\": %d, \"again\": "
      "%d, "
      "\"counters\": %d, \"large\": %zu, \"first\": %g}\n",
      static_cast<unsigned long long>(began), static_cast<unsigned long long>(ended),
      static_cast<unsigned long long>(popped), stream_id, device_id, dropped, buffers_out, entered,
      left, wrong_calls, again, counters, kLarge, static_cast<double>(pinned[0]));
  return 0;
}
