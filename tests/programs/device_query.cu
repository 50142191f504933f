// SPDX-License-Identifier: Apache-2.0
// Asks for everything that a program usually wants to know about a device, and checks that the
// answers agree with each other, however they are asked for.
#include <cstring>

#include "check.h"

static bool attribute_is(cudaDeviceAttr attribute, int expected) {
  int value = -1;
  REQUIRE(cudaDeviceGetAttribute(&value, attribute, 0));
  return value == expected;
}

int main() {
  int count = 0, driver = 0, runtime = 0, current = -1;
  REQUIRE(cudaGetDeviceCount(&count));
  REQUIRE(cudaDriverGetVersion(&driver));
  REQUIRE(cudaRuntimeGetVersion(&runtime));
  REQUIRE(cudaGetDevice(&current));
  cudaDeviceProp prop;
  REQUIRE(cudaGetDeviceProperties(&prop, 0));
  size_t free_bytes = 0, total_bytes = 0;
  REQUIRE(cudaMemGetInfo(&free_bytes, &total_bytes));
  char bus_id[32] = "";
  REQUIRE(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), 0));
  int by_bus_id = -1;
  REQUIRE(cudaDeviceGetByPCIBusId(&by_bus_id, bus_id));
  int least = -1, greatest = -1;
  REQUIRE(cudaDeviceGetStreamPriorityRange(&least, &greatest));

  std::printf("# devices %d, driver %d.%d\n", count, driver / 1000, driver % 1000 / 10);
  std::printf("# name %s\n", prop.name);
  std::printf("# compute capability %d.%d\n", prop.major, prop.minor);
  std::printf("# global memory %zu MiB, free %zu MiB\n", prop.totalGlobalMem >> 20,
              free_bytes >> 20);
  std::printf("# multiprocessors %d, threads each %d\n", prop.multiProcessorCount,
              prop.maxThreadsPerMultiProcessor);
  std::printf("# shared memory per block %zu, registers per block %d\n", prop.sharedMemPerBlock,
              prop.regsPerBlock);
  std::printf("# bus id %s, stream priorities %d to %d\n", bus_id, least, greatest);

  std::printf("runtime %d.%d, current device %d\n", runtime / 1000, runtime % 1000 / 10, current);
  std::printf("warp size %d, threads per block %d\n", prop.warpSize, prop.maxThreadsPerBlock);
  bool right = true;
  right &= fact("driver is no older than the runtime", driver >= runtime);
  right &= fact("has a name", std::strlen(prop.name) > 0);
  right &= fact("properties and attributes agree",
                attribute_is(cudaDevAttrComputeCapabilityMajor, prop.major) &&
                    attribute_is(cudaDevAttrComputeCapabilityMinor, prop.minor) &&
                    attribute_is(cudaDevAttrMultiProcessorCount, prop.multiProcessorCount) &&
                    attribute_is(cudaDevAttrMaxThreadsPerBlock, prop.maxThreadsPerBlock) &&
                    attribute_is(cudaDevAttrWarpSize, prop.warpSize));
  right &= fact("free memory is at most the total", free_bytes <= total_bytes && free_bytes > 0);
  right &= fact("total memory is the device's", total_bytes == prop.totalGlobalMem);
  right &= fact("found again by its bus id", by_bus_id == 0);
  right &= fact("addresses are unified", prop.unifiedAddressing == 1);
  right &=
      fact("a missing device is refused",
           cudaGetDeviceProperties(&prop, count) == cudaErrorInvalidDevice &&
               cudaSetDevice(-1) == cudaErrorInvalidDevice &&
               cudaGetLastError() == cudaErrorInvalidDevice && cudaGetLastError() == cudaSuccess);
  const char* limit = std::getenv("SLUICE_GMEM");
  if (limit != nullptr) {
    const size_t slice = std::strtoull(limit, nullptr, 10) << 20;
    right &= fact("# total memory is the slice of SLUICE_GMEM", total_bytes == slice);
  }
  return right ? 0 : 1;
}
