// SPDX-License-Identifier: Apache-2.0
// Half of a GPU's multiprocessors as a green context: a kernel in its stream, in its null stream,
// events of whole contexts, and what ends with it. And all kernels of a library by enumeration.
#include <cuda.h>

#include <cstring>

#include "check.h"

namespace {

void require(CUresult result, const char* what, int line) {
  if (result == CUDA_SUCCESS) return;
  const char* text = "";
  cuGetErrorString(result, &text);
  std::fflush(stdout);
  std::fprintf(stderr, "line %d: %s: %s (%d)\n", line, what, text, static_cast<int>(result));
  std::exit(1);
}
#define REQUIRE_DRIVER(call) require((call), #call, __LINE__)

}  // namespace

__global__ void add(int* value, int amount) { atomicAdd(value, amount); }

int main() {
  bool right = true;
  int *device = nullptr, host = 0;
  REQUIRE(cudaMalloc(&device, sizeof(int)));
  REQUIRE(cudaMemset(device, 0, sizeof(int)));
  REQUIRE(cudaDeviceSynchronize());
  CUcontext primary;
  REQUIRE_DRIVER(cuCtxGetCurrent(&primary));

  CUdevResource whole = {}, half = {}, rest = {}, again = {};
  REQUIRE_DRIVER(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
  int count = 0;
  REQUIRE(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
  right &= fact("the resource is the whole GPU", static_cast<int>(whole.sm.smCount) == count);
  unsigned groups = 0;
  REQUIRE_DRIVER(
      cuDevSmResourceSplitByCount(nullptr, &groups, &whole, nullptr, 0, whole.sm.smCount / 2));
  std::printf("halves: %u\n", groups);
  groups = 1;
  REQUIRE_DRIVER(
      cuDevSmResourceSplitByCount(&half, &groups, &whole, &rest, 0, whole.sm.smCount / 2));
  right &= fact("a half and a rest are the whole",
                groups == 1 && half.sm.smCount + rest.sm.smCount == whole.sm.smCount);
  CUdevResourceDesc description;
  CUgreenCtx green;
  REQUIRE_DRIVER(cuDevResourceGenerateDesc(&description, &half, 1));
  REQUIRE_DRIVER(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  REQUIRE_DRIVER(cuGreenCtxGetDevResource(green, &again, CU_DEV_RESOURCE_TYPE_SM));
  right &= fact("the context has that half", again.sm.smCount == half.sm.smCount);

  CUstream stream;
  REQUIRE_DRIVER(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  add<<<64, 32, 0, stream>>>(device, 1);
  REQUIRE(cudaGetLastError());
  CUevent event;
  REQUIRE_DRIVER(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  REQUIRE_DRIVER(cuGreenCtxRecordEvent(green, event));
  REQUIRE_DRIVER(cuEventSynchronize(event));
  REQUIRE(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
  std::printf("in its stream: %d\n", host);
  right &= host == 64 * 32;

  CUcontext context, of_stream;
  CUgreenCtx of_green;
  REQUIRE_DRIVER(cuCtxFromGreenCtx(&context, green));
  REQUIRE_DRIVER(cuStreamGetCtx_v2(stream, &of_stream, &of_green));
  right &= fact("the stream knows its contexts", of_stream == primary && of_green == green);
  REQUIRE_DRIVER(cuCtxPushCurrent(context));
  add<<<1, 32>>>(device, 1);
  REQUIRE(cudaGetLastError());
  REQUIRE_DRIVER(cuStreamSynchronize(nullptr));
  REQUIRE_DRIVER(cuCtxPopCurrent(nullptr));
  REQUIRE(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
  std::printf("and in its null stream: %d\n", host);
  right &= host == 65 * 32;

  REQUIRE_DRIVER(cuCtxRecordEvent(primary, event));
  REQUIRE_DRIVER(cuGreenCtxWaitEvent(green, event));
  add<<<1, 32, 0, stream>>>(device, 1);
  REQUIRE(cudaDeviceSynchronize());
  REQUIRE(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
  std::printf("behind an event of the whole context: %d\n", host);
  right &= host == 66 * 32;

  REQUIRE_DRIVER(cuStreamDestroy(stream));
  REQUIRE_DRIVER(cuGreenCtxDestroy(green));
  right &= fact("the device goes on", cudaDeviceSynchronize() == cudaSuccess);

  CUkernel kernel;
  CUlibrary library;
  REQUIRE(cudaGetKernel(reinterpret_cast<cudaKernel_t*>(&kernel), reinterpret_cast<void*>(add)));
  REQUIRE_DRIVER(cuKernelGetLibrary(&library, kernel));
  unsigned kernels = 0;
  CUkernel all[4] = {};
  REQUIRE_DRIVER(cuLibraryGetKernelCount(&kernels, library));
  REQUIRE_DRIVER(cuLibraryEnumerateKernels(all, 4, library));
  const char* name = "";
  REQUIRE_DRIVER(cuKernelGetName(&name, all[0]));
  std::printf("%u kernel: %s\n", kernels, name);
  right &= kernels == 1;
  REQUIRE_DRIVER(cuEventDestroy(event));
  REQUIRE(cudaFree(device));
  return right ? 0 : 1;
}
