// SPDX-License-Identifier: Apache-2.0
// One process, two devices that share nothing, such as vGPUs of two nodes: code and its variables
// on both, streams that wait for the other device's events, copies of all kinds between the two,
// fills of the other's memory, a thread for each. What is printed holds for any two devices; what
// depends on whether they are peers is behind "# ".
#include <cuda.h>

#include <thread>
#include <vector>

#include "check.h"

static __device__ int g_addend;

static __global__ void work(int* data, int count, int factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = data[i] * factor + g_addend;
}

static const char* name(cudaError_t error) {
  cudaGetLastError();
  return cudaGetErrorName(error);
}

constexpr int kCount = 5000, kBlock = 128, kGrid = (kCount + kBlock - 1) / kBlock;
constexpr size_t kBytes = kCount * sizeof(int);

struct Side {
  int* data;
  cudaStream_t stream;
  cudaEvent_t done;
};

static int last_of(const int* device) {
  int value = 0;
  REQUIRE(cudaMemcpy(&value, device + kCount - 1, sizeof value, cudaMemcpyDefault));
  return value;
}

// Code, variables, memory and streams of each.
static void begin(Side* sides) {
  std::vector<int> host(kCount);
  for (int i = 0; i < kCount; ++i) host[i] = i;
  for (int d = 0; d < 2; ++d) {
    REQUIRE(cudaSetDevice(d));
    const int addend = 10 + d;
    REQUIRE(cudaMemcpyToSymbol(g_addend, &addend, sizeof addend));
    REQUIRE(cudaMalloc(&sides[d].data, kBytes));
    REQUIRE(cudaStreamCreateWithFlags(&sides[d].stream, cudaStreamNonBlocking));
    REQUIRE(cudaEventCreate(&sides[d].done));
    REQUIRE(cudaMemcpyAsync(sides[d].data, host.data(), kBytes, cudaMemcpyHostToDevice,
                            sides[d].stream));
    work<<<kGrid, kBlock, 0, sides[d].stream>>>(sides[d].data, kCount, 2 + d);
    REQUIRE(cudaGetLastError());
    REQUIRE(cudaEventRecord(sides[d].done, sides[d].stream));
  }
  for (int d = 0; d < 2; ++d) {
    REQUIRE(cudaEventSynchronize(sides[d].done));  // device 1 is current
    cudaPointerAttributes attributes;
    REQUIRE(cudaPointerGetAttributes(&attributes, sides[d].data));
    std::printf("on device %d: %d, memory of device %d\n", d, last_of(sides[d].data),
                attributes.device);
  }
}

// Device 1 waits for device 0 and goes on with what that made, and the other way.
static void take_turns(Side* sides) {
  for (int round = 0; round < 4; ++round) {
    const int from = round % 2, to = 1 - from;
    REQUIRE(cudaSetDevice(from));
    for (int i = 0; i < 20; ++i)
      work<<<kGrid, kBlock, 0, sides[from].stream>>>(sides[from].data, kCount, 1);
    REQUIRE(cudaEventRecord(sides[from].done, sides[from].stream));
    REQUIRE(cudaSetDevice(to));
    REQUIRE(cudaStreamWaitEvent(sides[to].stream, sides[from].done, 0));
    REQUIRE(
        cudaMemcpyPeerAsync(sides[to].data, to, sides[from].data, from, kBytes, sides[to].stream));
    work<<<kGrid, kBlock, 0, sides[to].stream>>>(sides[to].data, kCount, 1);
    REQUIRE(cudaGetLastError());
  }
  REQUIRE(cudaStreamSynchronize(sides[0].stream));
  std::printf("after four turns: %d\n", last_of(sides[0].data));
}

// Large, by the stream of either side, and a box.
static void copy(Side* sides) {
  constexpr size_t kLarge = (40 << 20) + 12;
  char* large[2];
  std::vector<char> host(kLarge), back(kLarge);
  uint32_t state = 7;
  for (char& c : host) c = static_cast<char>(next_number(state));
  for (int d = 0; d < 2; ++d) {
    REQUIRE(cudaSetDevice(d));
    REQUIRE(cudaMalloc(&large[d], kLarge));
  }
  REQUIRE(cudaMemcpy(large[0], host.data(), kLarge, cudaMemcpyDefault));  // device 1 is current
  REQUIRE(cudaMemcpyPeer(large[1], 1, large[0], 0, kLarge));
  REQUIRE(cudaMemset(large[0], 0, kLarge));
  REQUIRE(cudaSetDevice(0));
  REQUIRE(cudaMemcpyAsync(large[0], large[1], kLarge, cudaMemcpyDefault, sides[0].stream));
  REQUIRE(cudaMemcpyAsync(back.data(), large[0], kLarge, cudaMemcpyDefault, sides[0].stream));
  REQUIRE(cudaStreamSynchronize(sides[0].stream));
  fact("a large copy there and back is whole", back == host);
  cudaMemcpy3DPeerParms box = {};
  box.srcPtr = make_cudaPitchedPtr(large[0], 100, 100, 50);
  box.dstPtr = make_cudaPitchedPtr(large[1], 100, 100, 50);
  box.srcDevice = 0;
  box.dstDevice = 1;
  box.extent = make_cudaExtent(40, 5, 2);
  box.dstPos = make_cudaPos(50, 20, 0);
  REQUIRE(cudaMemset(large[1], 0, 100 * 50 * 2));  // device 1's, by device 0's stream
  REQUIRE(cudaMemcpy3DPeer(&box));
  REQUIRE(cudaMemcpy(back.data(), large[1], 100 * 50 * 2, cudaMemcpyDeviceToHost));
  bool right = true;
  for (int z = 0; z < 2; ++z)
    for (int y = 0; y < 50; ++y)
      for (int x = 0; x < 100; ++x) {
        const bool in = x >= 50 && x < 90 && y >= 20 && y < 25;
        const char want = in ? host[(z * 50 + y - 20) * 100 + x - 50] : 0;
        right = right && back[(z * 50 + y) * 100 + x] == want;
      }
  fact("so is a box", right);
  for (int d = 0; d < 2; ++d) REQUIRE(cudaFree(large[d]));
}

// Each in a thread of its own, with memory of its pool and a graph.
static void at_once() {
  int results[2] = {};
  std::vector<std::thread> threads;
  for (int d = 0; d < 2; ++d)
    threads.emplace_back([d, &results] {
      REQUIRE(cudaSetDevice(d));
      cudaStream_t stream;
      REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      int* data;
      REQUIRE(cudaMallocAsync(&data, kBytes, stream));
      REQUIRE(cudaMemsetAsync(data, 0, kBytes, stream));
      cudaGraph_t graph;
      cudaGraphExec_t exec;
      REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      for (int i = 0; i < 5; ++i) work<<<kGrid, kBlock, 0, stream>>>(data, kCount, 1);
      REQUIRE(cudaStreamEndCapture(stream, &graph));
      REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
      for (int i = 0; i < 10; ++i) REQUIRE(cudaGraphLaunch(exec, stream));
      REQUIRE(cudaMemcpyAsync(&results[d], data, sizeof(int), cudaMemcpyDefault, stream));
      REQUIRE(cudaFreeAsync(data, stream));
      REQUIRE(cudaDeviceSynchronize());
      REQUIRE(cudaGraphExecDestroy(exec));
      REQUIRE(cudaGraphDestroy(graph));
    });
  for (std::thread& thread : threads) thread.join();
  std::printf("at once: %d and %d\n", results[0], results[1]);
}

// What the two may have of each other.
static void between(Side* sides) {
  int there = -1, back = -1;
  REQUIRE(cudaDeviceCanAccessPeer(&there, 0, 1));
  REQUIRE(cudaDeviceCanAccessPeer(&back, 1, 0));
  std::printf("# peers: %d %d\n", there, back);
  REQUIRE(cudaSetDevice(0));
  // A copy in the default stream waits for both devices, whatever their work lies on.
  int* spare;
  REQUIRE(cudaMalloc(&spare, kBytes));
  REQUIRE(cudaMemset(spare, 0, kBytes));
  REQUIRE(cudaDeviceSynchronize());
  for (int i = 0; i < 100; ++i) work<<<kGrid, kBlock, 0, sides[0].stream>>>(spare, kCount, 1);
  REQUIRE(cudaSetDevice(1));
  REQUIRE(cudaMemcpyPeer(sides[1].data, 1, spare, 0, kBytes));
  std::printf("# a copy behind all work: %d\n", last_of(sides[1].data));
  REQUIRE(cudaSetDevice(0));
  // A graph is of one node.
  cudaGraph_t whole;
  cudaGraphNode_t node;
  REQUIRE(cudaGraphCreate(&whole, 0));
  cudaMemsetParams fill = {};
  fill.dst = sides[1].data;
  fill.elementSize = 4;
  fill.width = 10;
  fill.height = 1;
  std::printf("# a graph that fills the other's memory: %s\n",
              name(cudaGraphAddMemsetNode(&node, whole, nullptr, 0, &fill)));
  REQUIRE(cudaGraphDestroy(whole));
  REQUIRE(cudaFree(spare));
  if (!there) std::printf("# peer access: %s\n", name(cudaDeviceEnablePeerAccess(1, 0)));
  cudaIpcMemHandle_t handle;
  std::printf("# IPC: %s\n", name(cudaIpcGetMemHandle(&handle, sides[0].data)));
  REQUIRE(cudaStreamBeginCapture(sides[0].stream, cudaStreamCaptureModeRelaxed));
  std::printf("# a capture that waits: %s\n",
              name(cudaStreamWaitEvent(sides[0].stream, sides[1].done, 0)));
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(sides[0].stream, &graph);
  cudaGetLastError();
  work<<<kGrid, kBlock, 0, sides[0].stream>>>(sides[0].data, kCount, 0);
  REQUIRE(cudaStreamSynchronize(sides[0].stream));
  std::printf("device 0 goes on: %d\n", last_of(sides[0].data));
}

int main() {
  int count = 0;
  REQUIRE(cudaGetDeviceCount(&count));
  if (count < 2) {
    std::printf("# there is one device only\n");
    return 77;
  }
  Side sides[2];
  begin(sides);
  take_turns(sides);
  copy(sides);
  at_once();
  between(sides);
  for (Side& side : sides) REQUIRE(cudaFree(side.data));
  return 0;
}
