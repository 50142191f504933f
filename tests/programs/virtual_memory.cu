// SPDX-License-Identifier: Apache-2.0
// The virtual memory API as a growing allocator uses it: one large reservation, handles of two
// sizes mapped behind one another, a kernel across their borders, a hole, remapping, and what is
// refused.
#include <cuda.h>

#include <vector>

#include "check_driver.h"

__global__ void fill(unsigned* data, size_t stride, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i * stride] = 1000u + i;
}

int main() {
  REQUIRE(cudaFree(nullptr));
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = 0;
  size_t unit = 0, free_before = 0, total = 0;
  REQUIRE_DRIVER(cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  bool right = fact("the granularity is 2 MiB", unit == 2 << 20);
  REQUIRE(cudaMemGetInfo(&free_before, &total));

  // More addresses than any device has memory.
  const size_t space = size_t{256} << 30;
  CUdeviceptr base = 0, second = 0;
  REQUIRE_DRIVER(cuMemAddressReserve(&base, space, 0, 0, 0));
  REQUIRE_DRIVER(cuMemAddressReserve(&second, space, size_t{1} << 30, 0, 0));
  right &= fact("the second one is aligned", second % (size_t{1} << 30) == 0);

  const size_t sizes[] = {unit, unit, 10 * unit, unit};
  CUmemGenericAllocationHandle handles[4] = {};
  CUmemAccessDesc access = {};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  size_t end = 0;
  for (int i = 0; i < 4; ++i) {
    REQUIRE_DRIVER(cuMemCreate(&handles[i], sizes[i], &prop, 0));
    REQUIRE_DRIVER(cuMemMap(base + end, sizes[i], 0, handles[i], 0));
    REQUIRE_DRIVER(cuMemSetAccess(base + end, sizes[i], &access, 1));
    end += sizes[i];
  }
  unsigned long long flags = 0;
  REQUIRE_DRIVER(cuMemGetAccess(&flags, &prop.location, base + end - 1));
  right &= fact("it may be read and written", flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

  const int count = 1000;
  const size_t stride = end / sizeof(unsigned) / count;
  fill<<<(count + 127) / 128, 128>>>(reinterpret_cast<unsigned*>(base), stride, count);
  REQUIRE(cudaGetLastError());
  std::vector<unsigned> host(end / sizeof(unsigned));
  REQUIRE_DRIVER(cuMemcpyDtoH(host.data(), base, end));  // across all four
  int wrong = 0;
  for (int i = 0; i < count; ++i) wrong += host[i * stride] != 1000u + i;
  std::printf("elements %d, wrong %d\n", count, wrong);
  right &= wrong == 0;

  // Twice the same memory, by its address.
  CUmemGenericAllocationHandle again = 0;
  REQUIRE_DRIVER(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(base + 5)));
  REQUIRE_DRIVER(cuMemMap(second, unit, 0, again, 0));
  REQUIRE_DRIVER(cuMemSetAccess(second, unit, &access, 1));
  unsigned value = 0;
  REQUIRE_DRIVER(cuMemcpyDtoH(&value, second, sizeof value));
  right &= fact("an alias shows the same", value == 1000u);
  CUmemAllocationProp back = {};
  REQUIRE_DRIVER(cuMemGetAllocationPropertiesFromHandle(&back, again));
  right &= fact("the device is known", back.location.id == 0 && back.type == prop.type);

  // A hole, and another handle in it.
  REQUIRE(cudaDeviceSynchronize());
  REQUIRE_DRIVER(cuMemUnmap(base + unit, unit));
  REQUIRE_DRIVER(cuMemRelease(handles[1]));
  REQUIRE_DRIVER(cuMemCreate(&handles[1], unit, &prop, 0));
  REQUIRE_DRIVER(cuMemMap(base + unit, unit, 0, handles[1], 0));
  REQUIRE_DRIVER(cuMemSetAccess(base, end, &access, 1));
  REQUIRE_DRIVER(cuMemsetD32(base + unit, 7, unit / 4));
  REQUIRE_DRIVER(cuMemcpyDtoH(&value, base + 2 * unit - 4, sizeof value));
  right &= fact("the hole is filled", value == 7);

  right &= fact("a taken address is refused",
                cuMemMap(base + 2 * unit, unit, 0, again, 0) == CUDA_ERROR_INVALID_VALUE);
  right &= fact("an odd address is refused",
                cuMemMap(base + end + 4096, unit, 0, again, 0) == CUDA_ERROR_INVALID_VALUE);
  right &= fact("half a mapping is not unmapped",
                cuMemUnmap(base + 2 * unit, unit) == CUDA_ERROR_INVALID_VALUE);
  right &= fact("a size that is no multiple is refused",
                cuMemCreate(&handles[1], unit + 4096, &prop, 0) == CUDA_ERROR_INVALID_VALUE);
  CUmemGenericAllocationHandle none = 0;
  right &=
      fact("more than there is, is refused",
           cuMemCreate(&none, (total / unit + 1) * unit, &prop, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  right &= fact("a mapped reservation is not freed",
                cuMemAddressFree(base, space) == CUDA_ERROR_INVALID_VALUE);

  REQUIRE(cudaDeviceSynchronize());
  REQUIRE_DRIVER(cuMemUnmap(base, end));
  REQUIRE_DRIVER(cuMemUnmap(second, unit));
  for (CUmemGenericAllocationHandle handle : handles) REQUIRE_DRIVER(cuMemRelease(handle));
  REQUIRE_DRIVER(cuMemRelease(again));
  REQUIRE_DRIVER(cuMemAddressFree(base, space));
  REQUIRE_DRIVER(cuMemAddressFree(second, space));
  size_t free_after = 0;
  REQUIRE(cudaMemGetInfo(&free_after, &total));
  // Natively the driver may still have been freeing what a process before this one had.
  right &= fact("all memory came back", free_after >= free_before);
  return right ? 0 : 1;
}
