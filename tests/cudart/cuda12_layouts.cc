// SPDX-License-Identifier: Apache-2.0
// What CUDA 12's structures have in them, compiled against NVIDIA's header of CUDA 12
// (test_cuda12.py). Each structure that the runtime writes lies between guards, so that one byte
// too many is seen, and what was put in by one function is what another hands out. Ends with 0, or
// the line that failed.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

// The name without a version, which the header of CUDA 12 does not let a program say.
extern "C" cudaError_t before_cuda_12(void* properties,
                                      int device) __asm__("cudaGetDeviceProperties");

namespace {

constexpr unsigned char kGuard = 0xa5;

template <typename T>
struct Guarded {
  unsigned char before[64];
  T value;
  unsigned char after[256];

  Guarded() { std::memset(static_cast<void*>(this), kGuard, sizeof *this); }
  bool whole() const {
    for (const unsigned char byte : before)
      if (byte != kGuard) return false;
    for (const unsigned char byte : after)
      if (byte != kGuard) return false;
    return true;
  }
};

void require(bool right, const char* what, int line) {
  if (right) return;
  std::printf("line %d: %s\n", line, what);
  std::exit(1);
}
#define REQUIRE(what) require((what), #what, __LINE__)
#define WORKS(call) require((call) == cudaSuccess, #call, __LINE__)

int attribute(cudaDeviceAttr which) {
  int value = -1;
  WORKS(cudaDeviceGetAttribute(&value, which, 0));
  return value;
}

void properties() {
  Guarded<cudaDeviceProp> all;
  WORKS(cudaGetDeviceProperties(&all.value, 0));
  REQUIRE(all.whole());
  const cudaDeviceProp& p = all.value;
  REQUIRE(p.name[0] != 0 && std::strlen(p.name) < 256);
  REQUIRE(p.totalGlobalMem > 0 && p.warpSize == attribute(cudaDevAttrWarpSize));
  REQUIRE(p.clockRate == attribute(cudaDevAttrClockRate));
  REQUIRE(p.memoryClockRate == attribute(cudaDevAttrMemoryClockRate));
  REQUIRE(p.computeMode == attribute(cudaDevAttrComputeMode));
  REQUIRE(p.kernelExecTimeoutEnabled == attribute(cudaDevAttrKernelExecTimeout));
  REQUIRE(p.deviceOverlap == attribute(cudaDevAttrGpuOverlap));
  REQUIRE(p.singleToDoublePrecisionPerfRatio ==
          attribute(cudaDevAttrSingleToDoublePrecisionPerfRatio));
  REQUIRE(p.maxTexture1DLinear == attribute(cudaDevAttrMaxTexture1DLinearWidth));
  REQUIRE(p.cooperativeMultiDeviceLaunch == attribute(cudaDevAttrCooperativeMultiDeviceLaunch));
  REQUIRE(p.multiProcessorCount == attribute(cudaDevAttrMultiProcessorCount));
  REQUIRE(p.sharedMemPerBlockOptin ==
          static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)));
  REQUIRE(p.clusterLaunch == attribute(cudaDevAttrClusterLaunch));
  for (const int reserved : p.reserved) REQUIRE(reserved == 0);

  Guarded<cudaDeviceProp> first;
  WORKS(before_cuda_12(&first.value, 0));
  constexpr size_t kOld = offsetof(cudaDeviceProp, hostRegisterSupported);
  REQUIRE(std::memcmp(&first.value, &p, kOld) == 0);
  const auto* rest = reinterpret_cast<const unsigned char*>(&first.value);
  for (size_t i = kOld; i < sizeof first.value; ++i) REQUIRE(rest[i] == kGuard);

  int chosen = -1;
  WORKS(cudaChooseDevice(&chosen, &p));
  REQUIRE(chosen == 0);
  REQUIRE(cudaGetDeviceProperties(nullptr, 0) == cudaErrorInvalidValue);
  REQUIRE(cudaGetDeviceProperties(&all.value, 99) == cudaErrorInvalidDevice);
  cudaGetLastError();
}

void pointers(void* device, void* host) {
  Guarded<cudaPointerAttributes> of;
  WORKS(cudaPointerGetAttributes(&of.value, device));
  REQUIRE(of.whole());
  REQUIRE(of.value.type == cudaMemoryTypeDevice && of.value.device == 0);
  REQUIRE(of.value.devicePointer == device && of.value.hostPointer == nullptr);
  WORKS(cudaPointerGetAttributes(&of.value, host));
  REQUIRE(of.whole() && of.value.type == cudaMemoryTypeHost && of.value.hostPointer == host);
  int local = 0;
  WORKS(cudaPointerGetAttributes(&of.value, &local));
  REQUIRE(of.whole() && of.value.type == cudaMemoryTypeUnregistered);
  REQUIRE(cudaPointerGetAttributes(nullptr, device) == cudaErrorInvalidValue);
  cudaGetLastError();
}

void textures(void* device) {
  cudaTextureDesc how = {};
  how.readMode = cudaReadModeElementType;
  Guarded<cudaResourceDesc> in;
  std::memset(static_cast<void*>(&in.value), 0, sizeof in.value);
  in.value.resType = cudaResourceTypeLinear;
  in.value.res.linear.devPtr = device;
  in.value.res.linear.desc = cudaCreateChannelDesc(32, 0, 0, 0, cudaChannelFormatKindFloat);
  in.value.res.linear.sizeInBytes = 4096;
  cudaTextureObject_t texture = 0;
  WORKS(cudaCreateTextureObject(&texture, &in.value, &how, nullptr));
  Guarded<cudaResourceDesc> out;
  WORKS(cudaGetTextureObjectResourceDesc(&out.value, texture));
  REQUIRE(out.whole() && out.value.resType == cudaResourceTypeLinear);
  REQUIRE(out.value.res.linear.devPtr == device && out.value.res.linear.sizeInBytes == 4096);
  REQUIRE(out.value.res.linear.desc.x == 32 &&
          out.value.res.linear.desc.f == cudaChannelFormatKindFloat);

  const auto array = reinterpret_cast<cudaArray_t>(0x7700);
  std::memset(static_cast<void*>(&in.value), 0, sizeof in.value);
  in.value.resType = cudaResourceTypeArray;
  in.value.res.array.array = array;
  cudaSurfaceObject_t surface = 0;
  WORKS(cudaCreateSurfaceObject(&surface, &in.value));
  Guarded<cudaResourceDesc> drawn;
  WORKS(cudaGetSurfaceObjectResourceDesc(&drawn.value, surface));
  REQUIRE(drawn.whole() && drawn.value.resType == cudaResourceTypeArray);
  REQUIRE(drawn.value.res.array.array == array);

  Guarded<cudaResourceViewDesc> view;
  std::memset(static_cast<void*>(&view.value), 0, sizeof view.value);
  view.value.format = cudaResViewFormatFloat1;
  view.value.width = 64;
  view.value.height = 32;
  WORKS(cudaCreateTextureObject(&texture, &in.value, &how, &view.value));
  Guarded<cudaResourceViewDesc> seen;
  WORKS(cudaGetTextureObjectResourceViewDesc(&seen.value, texture));
  REQUIRE(seen.whole() && seen.value.format == cudaResViewFormatFloat1);
  REQUIRE(seen.value.width == 64 && seen.value.height == 32 && seen.value.depth == 0);
}

void captures(void* device) {
  cudaStream_t stream = nullptr;
  WORKS(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  WORKS(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  WORKS(cudaMemsetAsync(device, 1, 64, stream));
  WORKS(cudaMemsetAsync(device, 2, 64, stream));
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0, same = 0;
  cudaGraph_t graph = nullptr, again = nullptr;
  const cudaGraphNode_t* last = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t count = 0;
  WORKS(cudaStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &last, &count));
  REQUIRE(status == cudaStreamCaptureStatusActive && id != 0 && graph && count == 1 && *last);
  WORKS(cudaStreamGetCaptureInfo_v3(stream, &status, &same, &again, &last, &edges, &count));
  REQUIRE(same == id && again == graph && count == 1);
  cudaGraphNode_t node = *last, before = nullptr;
  WORKS(cudaGraphNodeGetDependencies(node, nullptr, &count));
  REQUIRE(count == 1);
  WORKS(cudaGraphNodeGetDependencies(node, &before, &count));
  cudaGraphEdgeData edge = {};
  WORKS(cudaGraphNodeGetDependentNodes_v2(before, &node, &edge, &count));
  REQUIRE(count == 1 && node == *last && edge.type == cudaGraphDependencyTypeDefault);
  WORKS(cudaStreamUpdateCaptureDependencies(stream, &before, 1, cudaStreamSetCaptureDependencies));
  WORKS(cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, &last, &count));
  REQUIRE(count == 1 && *last == before);
  WORKS(cudaStreamEndCapture(stream, &graph));
  cudaGraphNode_t from = nullptr, to = nullptr;
  count = 1;
  WORKS(cudaGraphGetEdges(graph, &from, &to, &count));
  REQUIRE(count == 1 && from == before && to == node);
  WORKS(cudaGraphRemoveDependencies(graph, &from, &to, 1));
  WORKS(cudaGraphGetEdges(graph, nullptr, nullptr, &count));
  REQUIRE(count == 0);
  WORKS(cudaGraphAddDependencies(graph, &from, &to, 1));
  WORKS(cudaGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &count));
  REQUIRE(count == 1);
  WORKS(cudaGraphDestroy(graph));
  WORKS(cudaStreamDestroy(stream));
}

void old_names() {
  double value = 0.5;
  WORKS(cudaSetDoubleForDevice(&value));
  WORKS(cudaSetDoubleForHost(&value));
  REQUIRE(value == 0.5);
  size_t stack = 0, same = 0;
  WORKS(cudaThreadGetLimit(&stack, cudaLimitStackSize));
  WORKS(cudaDeviceGetLimit(&same, cudaLimitStackSize));
  REQUIRE(stack == same);
  WORKS(cudaThreadSynchronize());
  int version = 0;
  WORKS(cudaRuntimeGetVersion(&version));
  REQUIRE(version == CUDART_VERSION);
  REQUIRE(cudaLaunchCooperativeKernelMultiDevice(nullptr, 0, 0) == cudaErrorNotSupported);
  cudaGetLastError();
  WORKS(cudaThreadExit());
}

}  // namespace

int main(int count, char**) {
  void* device = nullptr;
  void* host = nullptr;
  if (count > 1) {  // on a driver that only keeps what it is given
    textures(reinterpret_cast<void*>(0x5500));
    std::puts("right");
    return 0;
  }
  properties();
  WORKS(cudaMalloc(&device, 4096));
  WORKS(cudaMallocHost(&host, 4096));
  pointers(device, host);
  captures(device);
  WORKS(cudaFreeHost(host));
  WORKS(cudaFree(device));
  old_names();
  std::puts("right");
  return 0;
}
