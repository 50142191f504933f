// SPDX-License-Identifier: Apache-2.0
// What CUDA answers where programs seldom look: empty sizes, null pointers, wrong handles, what
// counts as the last error, a thread's device. The answers were recorded on an H200 (expected/).
#include <thread>

#include "check.h"

__device__ int number;
__global__ void store(int* place, int value) { *place = value + number; }
__global__ void __launch_bounds__(64) bounded(int* place) { *place = 1; }
__global__ void spin(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

static void not_a_kernel() {}

static void show(const char* what, cudaError_t error) {
  const cudaError_t last = cudaGetLastError();
  std::printf("%s: %s, last %s\n", what, cudaGetErrorName(error), cudaGetErrorName(last));
}

static void empty_sizes() {
  void* pointer = reinterpret_cast<void*>(1);
  show("allocate nothing", cudaMalloc(&pointer, 0));
  fact("gives null", pointer == nullptr);
  show("free null", cudaFree(nullptr));
  pointer = reinterpret_cast<void*>(1);
  show("allocate no pinned memory", cudaMallocHost(&pointer, 0));
  fact("gives null", pointer == nullptr);
  show("free no pinned memory", cudaFreeHost(nullptr));
  show("allocate into null", cudaMalloc(static_cast<void**>(nullptr), 4));
  size_t pitch = 7;
  show("allocate no rows", cudaMallocPitch(&pointer, &pitch, 16, 0));
  std::printf("pitch %zu\n", pitch);
  show("copy nothing", cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyHostToDevice));
  show("fill nothing", cudaMemset(nullptr, 0, 0));
}

static void wrong_arguments() {
  int on_stack = 0, count = 0;
  int* device = nullptr;
  REQUIRE(cudaMalloc(&device, 64));
  show("copy from null", cudaMemcpy(device, nullptr, 4, cudaMemcpyHostToDevice));
  show("copy to null", cudaMemcpy(nullptr, device, 4, cudaMemcpyDeviceToHost));
  show("free the stack", cudaFree(&on_stack));
  show("free pinned memory that is not", cudaFreeHost(&on_stack));
  show("free the middle", cudaFree(device + 4));
  show("fill null", cudaMemset(nullptr, 0, 4));
  show("count into null", cudaGetDeviceCount(nullptr));
  show("negative device", cudaSetDevice(-1));
  show("unknown attribute", cudaDeviceGetAttribute(&count, static_cast<cudaDeviceAttr>(9999), 0));
  show("event with unknown flags", [] {
    cudaEvent_t event;
    return cudaEventCreateWithFlags(&event, 0x100);
  }());
  show("stream with unknown flags", [] {
    cudaStream_t stream;
    return cudaStreamCreateWithFlags(&stream, 0x100);
  }());
  show("destroy the default stream", cudaStreamDestroy(nullptr));
  show("destroy no event", cudaEventDestroy(nullptr));
  show("record no event", cudaEventRecord(nullptr, nullptr));
  cudaEvent_t never;
  REQUIRE(cudaEventCreate(&never));
  show("query an event never recorded", cudaEventQuery(never));
  show("wait for it", cudaEventSynchronize(never));
  float elapsed = 0;
  show("time since it", cudaEventElapsedTime(&elapsed, never, never));
  show("destroy it", cudaEventDestroy(never));
  show("register the stack twice", [&] {
    static char page[8192];
    cudaHostRegister(page, sizeof(page), 0);
    const cudaError_t error = cudaHostRegister(page, sizeof(page), 0);
    cudaHostUnregister(page);
    return error;
  }());
  show("unregister what is not", cudaHostUnregister(&on_stack));
  void* pointer = nullptr;
  show("device pointer of the stack", cudaHostGetDevicePointer(&pointer, &on_stack, 0));
  show("attributes of null", [] {
    cudaPointerAttributes attributes;
    return cudaPointerGetAttributes(&attributes, nullptr);
  }());
  cudaPointerAttributes attributes = {};
  show("attributes of the stack", cudaPointerGetAttributes(&attributes, &on_stack));
  std::printf("type %d, device %d\n", attributes.type, attributes.device);
  fact("device pointer is null", attributes.devicePointer == nullptr);
  fact("host pointer is the pointer", attributes.hostPointer == &on_stack);
  show("attributes of device memory", cudaPointerGetAttributes(&attributes, device + 3));
  std::printf("type %d, device %d\n", attributes.type, attributes.device);
  fact("device pointer is the pointer", attributes.devicePointer == device + 3);
  fact("host pointer is null", attributes.hostPointer == nullptr);
  REQUIRE(cudaFree(device));
}

static void pitched() {
  char host[64] = {};
  char* device = nullptr;
  REQUIRE(cudaMalloc(&device, 4096));
  show("row wider than its pitch",
       cudaMemcpy2D(device, 8, host, 16, 16, 1, cudaMemcpyHostToDevice));
  show("two of them", cudaMemcpy2D(device, 8, host, 16, 16, 2, cudaMemcpyHostToDevice));
  show("source rows too", cudaMemcpy2D(device, 16, host, 8, 16, 2, cudaMemcpyHostToDevice));
  show("on a stream",
       cudaMemcpy2DAsync(device, 8, host, 16, 16, 2, cudaMemcpyHostToDevice, nullptr));
  show("fill wider than the pitch", cudaMemset2D(device, 8, 0, 16, 2));
  show("one such row", cudaMemset2D(device, 8, 0, 16, 1));
  show("no rows", cudaMemcpy2D(device, 8, host, 16, 16, 0, cudaMemcpyHostToDevice));
  show("unknown direction", cudaMemcpy2D(device, 8, host, 8, 8, 2, static_cast<cudaMemcpyKind>(9)));
  cudaMemcpy3DParms parameters = {};
  show("empty box", cudaMemcpy3D(&parameters));
  parameters.extent = make_cudaExtent(4, 4, 4);
  show("box from nowhere", cudaMemcpy3D(&parameters));
  show("symbol to host, beyond", cudaMemcpyFromSymbol(host, number, 8));
  show("symbol in the wrong direction",
       cudaMemcpyFromSymbol(host, number, 4, 0, cudaMemcpyHostToDevice));
  show("host to host", cudaMemcpy(host, host + 32, 16, cudaMemcpyHostToHost));
  show("wrong direction said", cudaMemcpy(host, host + 32, 16, cudaMemcpyHostToDevice));
  REQUIRE(cudaFree(device));
}

static void kernels() {
  int* device = nullptr;
  REQUIRE(cudaMalloc(&device, 64));
  void* args[] = {&device};
  show("launch what is no kernel",
       cudaLaunchKernel(reinterpret_cast<const void*>(not_a_kernel), 1, 1, args, 0, nullptr));
  show("launch null", cudaLaunchKernel(static_cast<const void*>(nullptr), 1, 1, args, 0, nullptr));
  bounded<<<1, 65>>>(device);
  show("more threads than the kernel's bound", cudaPeekAtLastError());
  const void* stub = reinterpret_cast<const void*>(store);
  int value = 0;
  void* store_args[] = {&device, &value};
  const dim3 shapes[][2] = {{dim3(0), dim3(1)},
                            {dim3(1), dim3(0)},
                            {dim3(1), dim3(2000)},
                            {dim3(1, 100000), dim3(1)},
                            {dim3(1), dim3(1, 1, 65)}};
  for (const auto& shape : shapes) {
    std::printf("grid %u %u, block %u %u %u\n", shape[0].x, shape[0].y, shape[1].x, shape[1].y,
                shape[1].z);
    store<<<shape[0], shape[1]>>>(device, 1);
    show("by <<<>>>", cudaPeekAtLastError());
    show("by stub", cudaLaunchKernel(stub, shape[0], shape[1], store_args, 0, nullptr));
    cudaLaunchConfig_t config = {};
    config.gridDim = shape[0];
    config.blockDim = shape[1];
    show("by configuration", cudaLaunchKernelExC(&config, stub, store_args));
    show("cooperatively",
         cudaLaunchCooperativeKernel(stub, shape[0], shape[1], store_args, 0, nullptr));
  }
  show("shared memory beyond the block's, by stub",
       cudaLaunchKernel(stub, 1, 1, store_args, 1 << 20, nullptr));
  cudaFuncAttributes attributes;
  show("attributes", cudaFuncGetAttributes(&attributes, bounded));
  std::printf("most threads %d, shared %zu\n", attributes.maxThreadsPerBlock,
              attributes.sharedSizeBytes);
  show("attributes of no kernel",
       cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(not_a_kernel)));
  const char* name = nullptr;
  show("name", cudaFuncGetName(&name, reinterpret_cast<const void*>(bounded)));
  std::printf("name %s\n", name != nullptr ? name : "none");
  size_t offset = 99, size = 99;
  show("second parameter",
       cudaFuncGetParamInfo(reinterpret_cast<const void*>(store), 1, &offset, &size));
  std::printf("at %zu of %zu bytes\n", offset, size);
  show("third parameter",
       cudaFuncGetParamInfo(reinterpret_cast<const void*>(store), 2, &offset, &size));
  int blocks = 0;
  show("occupancy", cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, bounded, 64, 0));
  fact("is positive", blocks > 0);
  show("room for dynamic shared memory", [&] {
    return cudaFuncSetAttribute(reinterpret_cast<const void*>(bounded),
                                cudaFuncAttributeMaxDynamicSharedMemorySize, 16384);
  }());
  show("too much of it",
       cudaFuncSetAttribute(reinterpret_cast<const void*>(bounded),
                            cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 30));
  cudaLaunchConfig_t config = {};
  config.gridDim = 1;
  config.blockDim = 1;
  show("launch with a configuration", cudaLaunchKernelEx(&config, bounded, device));
  cudaKernel_t kernel = nullptr;
  show("kernel of a stub", cudaGetKernel(&kernel, reinterpret_cast<const void*>(bounded)));
  show("launch it by its handle",
       cudaLaunchKernel(reinterpret_cast<const void*>(kernel), 1, 1, args, 0, nullptr));
  show("kernel of what is none",
       cudaGetKernel(&kernel, reinterpret_cast<const void*>(not_a_kernel)));
  void* address = nullptr;
  show("address of no variable", cudaGetSymbolAddress(&address, &config));
  show("address of a kernel", cudaGetSymbolAddress(&address, reinterpret_cast<const void*>(store)));
  show("synchronize", cudaDeviceSynchronize());
  REQUIRE(cudaFree(device));
}

static void last_errors() {
  cudaEvent_t event;
  REQUIRE(cudaEventCreate(&event));
  spin<<<1, 1>>>(200000000);  // a tenth of a second: a loaded machine stops a program for a while
  REQUIRE(cudaEventRecord(event));
  show("query a busy stream", cudaStreamQuery(nullptr));
  show("query its event", cudaEventQuery(event));
  REQUIRE(cudaDeviceSynchronize());
  show("query it idle", cudaStreamQuery(nullptr));
  REQUIRE(cudaEventDestroy(event));
  cudaSetDevice(-1);
  cudaMalloc(static_cast<void**>(nullptr), 4);
  cudaFree(nullptr);
  show("a success after two errors", cudaSuccess);
  cudaSetDevice(-1);
  std::thread([] { show("another thread's", cudaSuccess); }).join();
  show("this thread's", cudaSuccess);
  int device = -1;
  show("device", cudaGetDevice(&device));
  std::thread([&] { cudaGetDevice(&device); }).join();
  std::printf("a new thread is on device %d\n", device);
  show("no error has this name", static_cast<cudaError_t>(12345));
  std::printf("text: %s\n", cudaGetErrorString(static_cast<cudaError_t>(12345)));
}

static void entry_points() {
  void* function = reinterpret_cast<void*>(1);
  cudaDriverEntryPointQueryResult found;
  show("entry point",
       cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 12000, cudaEnableDefault, &found));
  std::printf("status %d, found %d\n", found, function != nullptr);
  show("none of this name", cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &function, 12000,
                                                             cudaEnableDefault, &found));
  std::printf("status %d, found %d\n", found, function != nullptr);
  unsigned flags = 0;
  show("device flags", cudaGetDeviceFlags(&flags));
  std::printf("flags %u\n", flags);
  show("unknown device flags", cudaSetDeviceFlags(0x10000));
}

static void resets() {
  int* device = nullptr;
  REQUIRE(cudaMalloc(&device, 4));
  show("reset", cudaDeviceReset());
  show("allocate after it", cudaMalloc(&device, 4));
  store<<<1, 1>>>(device, 5);
  show("launch after it", cudaPeekAtLastError());
  int value = 0;
  show("copy after it", cudaMemcpy(&value, device, 4, cudaMemcpyDeviceToHost));
  std::printf("value %d\n", value);
  store<<<1, 1>>>(reinterpret_cast<int*>(0x10), 1);
  show("after an illegal access", cudaDeviceSynchronize());
  show("peek", cudaPeekAtLastError());
  show("nothing", cudaSuccess);
  show("nothing again", cudaSuccess);
}

int main() {
  empty_sizes();
  wrong_arguments();
  pitched();
  kernels();
  last_errors();
  entry_points();
  resets();
  return 0;
}
