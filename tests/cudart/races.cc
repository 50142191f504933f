// SPDX-License-Identifier: Apache-2.0
// Threads that register libraries, launch from them, change devices, reset one and unregister, all
// at once. Built with ThreadSanitizer, together with the runtime's sources and FakeDriver.
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "abi/cuda_runtime.h"

namespace {

struct Wrapper {
  int magic;
  int version;
  const void* data;
  void* prelinked;
};

std::atomic<int> failures{0};

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("not so: %s\n", what);
  ++failures;
}

void register_launch_unregister(int index) {
  static char stubs[8][400];
  const dim3 one = {1, 1, 1};
  for (int round = 0; round < 30; ++round) {
    Wrapper wrapper = {0x466243b1, 1, "image", nullptr};
    void** handle = __cudaRegisterFatBinary(&wrapper);
    for (char& stub : stubs[index]) {
      __cudaRegisterFunction(handle, &stub, nullptr, "kernel", -1, nullptr, nullptr, nullptr,
                             nullptr, nullptr);
    }
    __cudaRegisterFatBinaryEnd(handle);
    expect(cudaSetDevice(index % 2) == cudaSuccess, "a device is set");
    for (char& stub : stubs[index]) {
      expect(cudaLaunchKernel(&stub, one, one, nullptr, 0, nullptr) == cudaSuccess,
             "a registered kernel is launched");
    }
    __cudaUnregisterFatBinary(handle);
    expect(cudaLaunchKernel(&stubs[index][0], one, one, nullptr, 0, nullptr) ==
               cudaErrorInvalidResourceHandle,
           "an unregistered one is not");
    expect(cudaGetLastError() == cudaErrorInvalidResourceHandle, "an error is the thread's own");
    if (index == 0 && round % 10 == 0) {
      expect(cudaDeviceReset() == cudaSuccess, "a device is reset");
    }
  }
}

}  // namespace

int main() {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back(register_launch_unregister, i);
  for (std::thread& thread : threads) thread.join();
  return failures == 0 ? 0 : 1;
}
