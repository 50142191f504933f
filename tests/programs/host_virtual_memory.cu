// SPDX-License-Identifier: Apache-2.0
// Host memory of the virtual memory API as XGBoost has it: a buffer at one address for the program
// and its kernels that grows by handles of host memory, mapped anew behind one another.
#include <cuda.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "check_driver.h"

__global__ void add(unsigned* data, int count, unsigned addend) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] += addend;
}

static CUmemAllocationProp prop = {};
static CUmemAccessDesc access[2] = {};

// All handles behind one another in a reservation of their own.
struct Buffer {
  CUdeviceptr at = 0;
  size_t bytes = 0, unit = 0;
  std::vector<CUmemGenericAllocationHandle> handles;

  unsigned* data() const { return reinterpret_cast<unsigned*>(at); }
  int count() const { return static_cast<int>(bytes / sizeof(unsigned)); }

  void grow() {
    if (at != 0) REQUIRE_DRIVER(cuMemUnmap(at, bytes));
    if (at != 0) REQUIRE_DRIVER(cuMemAddressFree(at, bytes));
    handles.emplace_back();
    REQUIRE_DRIVER(cuMemCreate(&handles.back(), unit, &prop, 0));
    bytes = handles.size() * unit;
    REQUIRE_DRIVER(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    for (size_t i = 0; i < handles.size(); ++i) {
      REQUIRE_DRIVER(cuMemMap(at + i * unit, unit, 0, handles[i], 0));
      REQUIRE_DRIVER(cuMemSetAccess(at + i * unit, unit, access, 2));
    }
  }

  bool is(unsigned addend) const {
    for (int i = 0; i < count(); ++i)
      if (data()[i] != static_cast<unsigned>(i) + addend) return false;
    return true;
  }
};

int main() {
  REQUIRE(cudaFree(nullptr));
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  prop.location.id = 0;
  access[0].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access[1].location = prop.location;
  access[0].flags = access[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  size_t free_before = 0, free_after = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free_before, &total));

  Buffer buffer;
  REQUIRE_DRIVER(
      cuMemGetAllocationGranularity(&buffer.unit, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  buffer.grow();
  unsigned long long flags = 0;
  REQUIRE_DRIVER(cuMemGetAccess(&flags, &prop.location, buffer.at));
  bool right = fact("the host may read and write", flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUmemAllocationProp back = {};
  REQUIRE_DRIVER(cuMemGetAllocationPropertiesFromHandle(&back, buffer.handles[0]));
  right &= fact("it is the host's", back.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA);

  std::iota(buffer.data(), buffer.data() + buffer.count(), 0u);
  add<<<(buffer.count() + 255) / 256, 256>>>(buffer.data(), buffer.count(), 5);
  REQUIRE(cudaDeviceSynchronize());
  right &= fact("a kernel has added to what the host wrote", buffer.is(5));

  const int before = buffer.count();
  buffer.data()[1] = 77;  // not seen by the device before it moves
  buffer.grow();
  right &= fact("what was there is there", buffer.data()[1] == 77 && buffer.data()[0] == 5 &&
                                               buffer.data()[before - 1] == before - 1u + 5);

  // Copies over the border of two handles, with each kind.
  unsigned* device = nullptr;
  REQUIRE(cudaMalloc(&device, buffer.bytes));
  std::iota(buffer.data(), buffer.data() + buffer.count(), 3u);
  REQUIRE(cudaMemcpy(device, buffer.data(), buffer.bytes, cudaMemcpyHostToDevice));
  add<<<(buffer.count() + 255) / 256, 256>>>(device, buffer.count(), 4);
  REQUIRE(cudaMemcpyAsync(buffer.data(), device, buffer.bytes, cudaMemcpyDeviceToHost, nullptr));
  REQUIRE(cudaStreamSynchronize(nullptr));
  right &= fact("copied there and back", buffer.is(7));
  std::memset(buffer.data() + before - 8, 0, 16 * sizeof(unsigned));
  REQUIRE(cudaMemcpy(device, buffer.data(), buffer.bytes, cudaMemcpyDefault));
  std::vector<unsigned> host(buffer.count());
  REQUIRE(cudaMemcpy(host.data(), device, buffer.bytes, cudaMemcpyDefault));
  bool border = true;
  for (int i = -8; i < 8; ++i) border &= host[before + i] == 0;
  right &=
      fact("a copy has both sides of the border",
           border && host[before - 9] == before - 9u + 7 && host[before + 8] == before + 8u + 7);

  CUmemAccessDesc none = access[1];
  none.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  std::memcpy(buffer.data(), host.data(), buffer.bytes);
  REQUIRE_DRIVER(cuMemSetAccess(buffer.at, buffer.bytes, &none, 1));
  REQUIRE_DRIVER(cuMemGetAccess(&flags, &prop.location, buffer.at));
  right &= fact("the host's access can be taken", flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
  REQUIRE_DRIVER(cuMemSetAccess(buffer.at, buffer.bytes, &access[1], 1));
  right &= fact("and given again", std::memcmp(buffer.data(), host.data(), buffer.bytes) == 0);

  REQUIRE(cudaDeviceSynchronize());
  REQUIRE_DRIVER(cuMemUnmap(buffer.at, buffer.bytes));
  for (CUmemGenericAllocationHandle handle : buffer.handles) REQUIRE_DRIVER(cuMemRelease(handle));
  REQUIRE_DRIVER(cuMemAddressFree(buffer.at, buffer.bytes));
  REQUIRE(cudaFree(device));
  REQUIRE(cudaMemGetInfo(&free_after, &total));
  right &= fact("all memory came back", free_after >= free_before);
  return right ? 0 : 1;
}
