// SPDX-License-Identifier: Apache-2.0
// One process, two devices: each thread's current device, memory and streams of each, pointers that
// say whose they are, copies between the two with and without peer access, kernels on the other's
// memory, and what is refused.
#include <cuda.h>

#include <thread>
#include <vector>

#include "check.h"

static __global__ void scale(const int* from, int* to, int count, int factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[i] * factor;
}

static const char* name(cudaError_t error) {
  cudaGetLastError();
  return cudaGetErrorName(error);
}

int main() {
  constexpr int kCount = 5000, kBlock = 128, kGrid = (kCount + kBlock - 1) / kBlock;
  constexpr size_t kBytes = kCount * sizeof(int);
  int count = 0;
  REQUIRE(cudaGetDeviceCount(&count));
  if (count < 2) {
    std::printf("# there is one device only\n");
    return 77;
  }

  // Devices of a thread.
  int device = -1;
  REQUIRE(cudaGetDevice(&device));
  std::printf("a thread begins on device %d\n", device);
  REQUIRE(cudaSetDevice(1));
  int seen = -1;
  std::thread([&] { REQUIRE(cudaGetDevice(&seen)); }).join();
  std::printf("another one, too: %d\n", seen);
  REQUIRE(cudaGetDevice(&device));
  std::printf("this one is on %d now\n", device);
  std::printf("device %d: %s\n", count, name(cudaSetDevice(count)));
  CUcontext contexts[2] = {}, current = nullptr;
  for (int i = 0; i < 2; ++i) cuDevicePrimaryCtxRetain(&contexts[i], i);
  cuCtxGetCurrent(&current);
  fact("its context is the primary one", current == contexts[1] && contexts[0] != contexts[1]);
  cuCtxPushCurrent(contexts[0]);
  REQUIRE(cudaGetDevice(&device));
  std::printf("a pushed context is device %d's\n", device);
  cuCtxPopCurrent(&current);
  REQUIRE(cudaGetDevice(&device));
  std::printf("popped: %d\n", device);

  // Memory and work of each.
  int* data[2];
  cudaStream_t streams[2];
  std::vector<int> host(kCount), back(kCount);
  for (int i = 0; i < kCount; ++i) host[i] = i;
  for (int i = 0; i < 2; ++i) {
    REQUIRE(cudaSetDevice(i));
    REQUIRE(cudaMalloc(&data[i], kBytes));
    REQUIRE(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    REQUIRE(cudaMemcpyAsync(data[i], host.data(), kBytes, cudaMemcpyHostToDevice, streams[i]));
    scale<<<kGrid, kBlock, 0, streams[i]>>>(data[i], data[i], kCount, 2 + i);
    REQUIRE(cudaGetLastError());
    cudaPointerAttributes attributes;
    REQUIRE(cudaPointerGetAttributes(&attributes, data[i]));
    std::printf("memory of device %d: type %d device %d\n", i, static_cast<int>(attributes.type),
                attributes.device);
  }
  for (int i = 0; i < 2; ++i) {
    REQUIRE(cudaSetDevice(i));
    REQUIRE(cudaMemcpyAsync(back.data(), data[i], kBytes, cudaMemcpyDeviceToHost, streams[i]));
    REQUIRE(cudaStreamSynchronize(streams[i]));
    std::printf("on device %d: %d\n", i, back[kCount - 1]);
  }
  REQUIRE(cudaSetDevice(0));
  scale<<<kGrid, kBlock, 0, streams[1]>>>(data[1], data[1], kCount, 1);
  std::printf("a launch into the other device's stream: %s\n", name(cudaGetLastError()));
  size_t free_before = 0, free_after = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free_before, &total));
  REQUIRE(cudaSetDevice(1));
  void* large = nullptr;
  REQUIRE(cudaMalloc(&large, 64 << 20));
  REQUIRE(cudaSetDevice(0));
  REQUIRE(cudaMemGetInfo(&free_after, &total));
  fact("device 0 has as much memory as before", free_before == free_after);
  REQUIRE(cudaFree(large));  // of device 1, from device 0

  // Events of one, waited for by the other.
  cudaEvent_t done;
  REQUIRE(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  std::printf("record in the other device's stream: %s\n", name(cudaEventRecord(done, streams[1])));
  scale<<<kGrid, kBlock, 0, streams[0]>>>(data[0], data[0], kCount, 10);
  REQUIRE(cudaEventRecord(done, streams[0]));
  REQUIRE(cudaSetDevice(1));
  REQUIRE(cudaStreamWaitEvent(streams[1], done, 0));

  // Copies that need no peer access.
  REQUIRE(cudaMemcpyPeerAsync(data[1], 1, data[0], 0, kBytes, streams[1]));
  scale<<<kGrid, kBlock, 0, streams[1]>>>(data[1], data[1], kCount, 3);
  REQUIRE(cudaMemcpyAsync(back.data(), data[1], kBytes, cudaMemcpyDefault, streams[1]));
  REQUIRE(cudaStreamSynchronize(streams[1]));
  std::printf("copied to device 1 behind the event: %d\n", back[kCount - 1]);
  REQUIRE(cudaMemcpy(data[0], data[1], kBytes, cudaMemcpyDeviceToDevice));
  REQUIRE(cudaMemcpy(back.data(), data[0], kBytes, cudaMemcpyDeviceToHost));
  std::printf("and back: %d\n", back[kCount - 1]);
  scale<<<kGrid, kBlock, 0, streams[1]>>>(data[1], data[1], kCount, 0);
  REQUIRE(cudaMemsetAsync(data[0], 1, 400, streams[1]));  // device 0's memory by device 1's stream
  REQUIRE(cudaMemcpyAsync(back.data(), data[0], kBytes, cudaMemcpyDefault, streams[1]));
  REQUIRE(cudaStreamSynchronize(streams[1]));
  std::printf("filled from there: %x, then %d\n", back[99], back[100]);
  cudaMemcpy3DPeerParms box = {};
  box.srcPtr = make_cudaPitchedPtr(data[0], 100 * sizeof(int), 100, 50);
  box.dstPtr = make_cudaPitchedPtr(data[1], 100 * sizeof(int), 100, 50);
  box.srcDevice = 0;
  box.dstDevice = 1;
  box.extent = make_cudaExtent(10 * sizeof(int), 5, 2);
  box.srcPos = make_cudaPos(0, 0, 0);
  box.dstPos = make_cudaPos(50 * sizeof(int), 20, 0);
  REQUIRE(cudaMemset(data[1], 0, kBytes));
  box.srcPtr.ysize = box.dstPtr.ysize = 25;
  REQUIRE(cudaMemcpy3DPeer(&box));
  REQUIRE(cudaMemcpy(back.data(), data[1], kBytes, cudaMemcpyDeviceToHost));
  int copied = 0;
  for (int value : back) copied += value != 0;
  std::printf("a box: %d elements, %d and %d\n", copied, back[20 * 100 + 51], back[45 * 100 + 50]);

  // Peer access.
  int can[3] = {};
  REQUIRE(cudaDeviceCanAccessPeer(&can[0], 0, 1));
  REQUIRE(cudaDeviceCanAccessPeer(&can[1], 1, 0));
  REQUIRE(cudaDeviceCanAccessPeer(&can[2], 0, 0));
  std::printf("peers: %d %d, of itself %d\n", can[0], can[1], can[2]);
  int supported = 0;
  REQUIRE(cudaDeviceGetP2PAttribute(&supported, cudaDevP2PAttrAccessSupported, 0, 1));
  std::printf("access is supported: %d\n", supported);
  std::printf("an attribute of a device and itself: %s\n",
              name(cudaDeviceGetP2PAttribute(&supported, cudaDevP2PAttrAccessSupported, 0, 0)));
  if (!can[0] || !can[1]) return 77;
  REQUIRE(cudaSetDevice(0));
  std::printf("disable before enable: %s\n", name(cudaDeviceDisablePeerAccess(1)));
  std::printf("enable with flags: %s\n", name(cudaDeviceEnablePeerAccess(1, 1)));
  std::printf("enable of itself: %s\n", name(cudaDeviceEnablePeerAccess(0, 0)));
  std::printf("enable of nobody: %s\n", name(cudaDeviceEnablePeerAccess(count, 0)));
  std::printf("enable: %s\n", name(cudaDeviceEnablePeerAccess(1, 0)));
  std::printf("enable again: %s\n", name(cudaDeviceEnablePeerAccess(1, 0)));
  REQUIRE(cudaSetDevice(1));
  int* later = nullptr;
  REQUIRE(cudaMalloc(&later, kBytes));
  REQUIRE(cudaMemcpy(data[1], host.data(), kBytes, cudaMemcpyHostToDevice));
  REQUIRE(cudaDeviceSynchronize());
  REQUIRE(cudaSetDevice(0));
  scale<<<kGrid, kBlock, 0, streams[0]>>>(data[1], later, kCount, 7);  // both of device 1
  REQUIRE(cudaMemcpyAsync(back.data(), later, kBytes, cudaMemcpyDefault, streams[0]));
  REQUIRE(cudaStreamSynchronize(streams[0]));
  std::printf("a kernel of device 0 on device 1's memory: %d\n", back[kCount - 1]);
  scale<<<kGrid, kBlock, 0, streams[0]>>>(data[1], later, kCount, 9);
  REQUIRE(cudaFree(data[1]));  // while that kernel may run
  REQUIRE(cudaMemcpy(back.data(), later, kBytes, cudaMemcpyDeviceToHost));
  std::printf("freed behind it: %d\n", back[kCount - 1]);
  REQUIRE(cudaDeviceDisablePeerAccess(1));
  std::printf("disabled, and again: %s\n", name(cudaDeviceDisablePeerAccess(1)));
  REQUIRE(cudaMemcpy(data[0], later, kBytes, cudaMemcpyDefault));
  REQUIRE(cudaMemcpy(back.data(), data[0], kBytes, cudaMemcpyDeviceToHost));
  std::printf("a copy goes on without it: %d\n", back[kCount - 1]);
  REQUIRE(cudaFree(later));
  REQUIRE(cudaFree(data[0]));
  for (int i = 0; i < 2; ++i) {
    REQUIRE(cudaSetDevice(i));
    REQUIRE(cudaStreamDestroy(streams[i]));
    REQUIRE(cudaDeviceSynchronize());
  }
  std::printf("done\n");
  return 0;
}
