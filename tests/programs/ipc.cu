// SPDX-License-Identifier: Apache-2.0
// CUDA IPC between two processes: the parent's memory opened by a child, small and large, the same
// handle twice, an event recorded by one and waited for by the other, and what is refused. The
// program starts itself again, as a child of fork has no CUDA.
#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "check.h"

static __global__ void add(int* data, int count, int value) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] += value;
}

// Long enough that whoever does not wait comes too early.
static __global__ void work(int* data, int rounds) {
  int value = *data;
  for (int i = 0; i < rounds; ++i) value = value * 3 + 1;
  *data = value;
}

static const char* name(cudaError_t error) {
  cudaGetLastError();
  return cudaGetErrorName(error);
}

struct Handles {
  cudaIpcMemHandle_t small, neighbour, large;
  cudaIpcEventHandle_t ready, done;
};

constexpr int kSmall = 1000, kLarge = 3 << 20;

static int run(int* data, int count, int value) {
  add<<<(count + 127) / 128, 128>>>(data, count, value);
  REQUIRE(cudaGetLastError());
  return 0;
}

static int read_at(const int* data, int index) {
  int value = 0;
  REQUIRE(cudaMemcpy(&value, data + index, sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

constexpr int kRounds = 10;

// What the other process has copied, and waited for, is there when it says so.
static bool follow(const int* data, int in, int out) {
  bool right = true;
  char byte = 0;
  for (int round = 1; round <= kRounds; ++round) {
    if (read(in, &byte, 1) != 1) return false;
    right &= read_at(data, kLarge - 1) == round;
    if (write(out, &byte, 1) != 1) return false;
  }
  return right && read(in, &byte, 1) == 1;
}

static bool lead(int* data, int out, int in) {
  char byte = 0;
  for (int round = 1; round <= kRounds; ++round) {
    const std::vector<int> host(kLarge, round);
    REQUIRE(cudaMemcpyAsync(data, host.data(), kLarge * sizeof(int), cudaMemcpyHostToDevice));
    if (round % 2)
      REQUIRE(cudaStreamSynchronize(nullptr));
    else
      REQUIRE(cudaMemcpy(data, host.data(), kLarge * sizeof(int), cudaMemcpyHostToDevice));
    if (write(out, &byte, 1) != 1 || read(in, &byte, 1) != 1) return false;
  }
  REQUIRE(cudaMemset(data, 0, kLarge * sizeof(int)));
  REQUIRE(cudaDeviceSynchronize());
  return write(out, &byte, 1) == 1;
}

static int child(int in, int out) {
  Handles handles;
  if (read(in, &handles, sizeof handles) != sizeof handles) return 2;
  int *small = nullptr, *again = nullptr, *neighbour = nullptr, *large = nullptr;
  cudaEvent_t ready, done;
  REQUIRE(cudaIpcOpenEventHandle(&ready, handles.ready));
  REQUIRE(cudaIpcOpenEventHandle(&done, handles.done));
  REQUIRE(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&small), handles.small,
                               cudaIpcMemLazyEnablePeerAccess));
  REQUIRE(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&again), handles.small,
                               cudaIpcMemLazyEnablePeerAccess));
  REQUIRE(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&neighbour), handles.neighbour,
                               cudaIpcMemLazyEnablePeerAccess));
  REQUIRE(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&large), handles.large,
                               cudaIpcMemLazyEnablePeerAccess));
  fact("child: the same handle is the same address", small == again);
  cudaPointerAttributes attributes;
  REQUIRE(cudaPointerGetAttributes(&attributes, large));
  std::printf("child: memory of type %d on device %d\n", static_cast<int>(attributes.type),
              attributes.device);
  REQUIRE(cudaStreamWaitEvent(nullptr, ready, 0));
  std::printf("child: behind the parent's event: %d\n", read_at(small, 5));
  fact("child: what the parent copied is there", follow(large, in, out));
  run(small, kSmall, 1);
  run(neighbour, kSmall, 2);
  run(large, kLarge, 3);
  REQUIRE(cudaIpcCloseMemHandle(again));  // opened twice, closed once
  run(small, kSmall, 10);
  REQUIRE(cudaEventRecord(done, nullptr));
  REQUIRE(cudaEventSynchronize(done));
  std::printf("child: its event is done: %s\n", name(cudaEventQuery(done)));
  REQUIRE(cudaIpcCloseMemHandle(small));
  REQUIRE(cudaIpcCloseMemHandle(neighbour));
  std::printf("child: closed once more: %s\n", name(cudaIpcCloseMemHandle(neighbour)));
  REQUIRE(cudaIpcCloseMemHandle(large));
  REQUIRE(cudaEventDestroy(ready));
  REQUIRE(cudaEventDestroy(done));
  std::fflush(stdout);
  return write(out, "x", 1) == 1 ? 0 : 2;
}

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "child") == 0)
    return child(std::atoi(argv[2]), std::atoi(argv[3]));

  int *small = nullptr, *neighbour = nullptr, *large = nullptr;
  REQUIRE(cudaMalloc(&small, kSmall * sizeof(int)));
  REQUIRE(cudaMalloc(&neighbour, kSmall * sizeof(int)));
  REQUIRE(cudaMalloc(&large, kLarge * sizeof(int)));
  REQUIRE(cudaMemset(neighbour, 0, kSmall * sizeof(int)));
  REQUIRE(cudaMemset(large, 0, kLarge * sizeof(int)));
  REQUIRE(cudaMemset(small, 0, kSmall * sizeof(int)));
  Handles handles;
  std::memset(&handles, 0, sizeof handles);
  cudaEvent_t ready, done, plain;
  REQUIRE(cudaEventCreateWithFlags(&ready, cudaEventInterprocess | cudaEventDisableTiming));
  REQUIRE(cudaEventCreateWithFlags(&done, cudaEventInterprocess | cudaEventDisableTiming));
  REQUIRE(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming));
  std::printf("with timing: %s\n", name(cudaEventCreateWithFlags(&plain, cudaEventInterprocess)));
  std::printf("never recorded: %s\n", name(cudaEventQuery(ready)));
  REQUIRE(cudaIpcGetEventHandle(&handles.ready, ready));
  REQUIRE(cudaIpcGetEventHandle(&handles.done, done));
  REQUIRE(cudaIpcGetMemHandle(&handles.small, small));
  REQUIRE(cudaIpcGetMemHandle(&handles.neighbour, neighbour));
  REQUIRE(cudaIpcGetMemHandle(&handles.large, large));
  cudaIpcMemHandle_t unused;
  int on_host = 0;
  std::printf("host memory: %s\n", name(cudaIpcGetMemHandle(&unused, &on_host)));
  void* own = nullptr;
  fact("its own handle is refused",
       cudaIpcOpenMemHandle(&own, handles.small, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess);
  cudaGetLastError();

  int down[2], up[2];
  if (pipe(down) != 0 || pipe(up) != 0) return 2;
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    const std::string in = std::to_string(down[0]), out = std::to_string(up[1]);
    execl("/proc/self/exe", argv[0], "child", in.c_str(), out.c_str(), nullptr);
    _exit(3);
  }
  close(down[0]);
  close(up[1]);
  work<<<1, 1>>>(large, 2000);
  REQUIRE(cudaMemset(large, 0, sizeof(int)));
  run(small, kSmall, 100);
  REQUIRE(cudaEventRecord(ready, nullptr));
  if (write(down[1], &handles, sizeof handles) != sizeof handles) return 2;
  char byte;
  if (!lead(large, down[1], up[0])) return 2;
  const bool heard = read(up[0], &byte, 1) == 1;
  REQUIRE(cudaEventSynchronize(done));
  int status = 0;
  waitpid(pid, &status, 0);
  std::printf("the child ended with %d\n", heard ? WEXITSTATUS(status) : -1);
  std::printf("parent: %d %d %d\n", read_at(small, kSmall - 1), read_at(neighbour, 0),
              read_at(large, kLarge - 1));
  REQUIRE(cudaFree(small));
  REQUIRE(cudaFree(neighbour));
  REQUIRE(cudaFree(large));
  REQUIRE(cudaEventDestroy(ready));
  REQUIRE(cudaEventDestroy(done));
  std::printf("done\n");
  return status == 0 ? 0 : 1;
}
