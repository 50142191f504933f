// SPDX-License-Identifier: Apache-2.0
// Memory pools, stream-ordered allocation from them, and advice about memory that is shared between
// host and device. All are the driver's, under other names.
#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace {

template <typename Call>
cudaError_t on_device(int ordinal, Call call) {
  CUdevice device = 0;
  if (const cudaError_t error = device_handle(ordinal, &device); error != cudaSuccess) {
    return record(error);
  }
  return record(to_runtime(call(device)));
}

CUmemLocation native_location(cudaMemLocation location) {
  static_assert(sizeof(CUmemLocation) == sizeof(cudaMemLocation));
  CUmemLocation native = {};
  native.type = static_cast<CUmemLocationType>(location.type);
  native.id = location.id;
  return native;
}

}  // namespace

extern "C" {

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* memPool, int device) {
  return on_device(
      device, [&](CUdevice handle) { return driver(cuDeviceGetDefaultMemPool, memPool, handle); });
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* memPool, int device) {
  return on_device(device,
                   [&](CUdevice handle) { return driver(cuDeviceGetMemPool, memPool, handle); });
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t memPool) {
  return on_device(device,
                   [&](CUdevice handle) { return driver(cuDeviceSetMemPool, handle, memPool); });
}

cudaError_t cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attr,
                                           void* value) {
  return on_device(device, [&](CUdevice handle) {
    return driver(cuDeviceGetGraphMemAttribute, handle, static_cast<CUgraphMem_attribute>(attr),
                  value);
  });
}

cudaError_t cudaDeviceSetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attr,
                                           void* value) {
  return on_device(device, [&](CUdevice handle) {
    return driver(cuDeviceSetGraphMemAttribute, handle, static_cast<CUgraphMem_attribute>(attr),
                  value);
  });
}

cudaError_t cudaDeviceGraphMemTrim(int device) {
  return on_device(device, [&](CUdevice handle) { return driver(cuDeviceGraphMemTrim, handle); });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* memPool, const struct cudaMemPoolProps* poolProps) {
  return forward(cuMemPoolCreate, memPool, same<const CUmemPoolProps>(poolProps));
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t memPool) { return forward(cuMemPoolDestroy, memPool); }

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t memPool, size_t minBytesToKeep) {
  return forward(cuMemPoolTrimTo, memPool, minBytesToKeep);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t memPool, enum cudaMemPoolAttr attr, void* value) {
  return forward(cuMemPoolSetAttribute, memPool, static_cast<CUmemPool_attribute>(attr), value);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t memPool, enum cudaMemPoolAttr attr, void* value) {
  return forward(cuMemPoolGetAttribute, memPool, static_cast<CUmemPool_attribute>(attr), value);
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t memPool, const struct cudaMemAccessDesc* descList,
                                 size_t count) {
  return forward(cuMemPoolSetAccess, memPool, same<const CUmemAccessDesc>(descList), count);
}

cudaError_t cudaMemPoolGetAccess(enum cudaMemAccessFlags* flags, cudaMemPool_t memPool,
                                 struct cudaMemLocation* location) {
  return forward(cuMemPoolGetAccess, same<CUmemAccess_flags>(flags), memPool,
                 same<CUmemLocation>(location));
}

cudaError_t cudaMemGetDefaultMemPool(cudaMemPool_t* memPool, struct cudaMemLocation* location,
                                     enum cudaMemAllocationType type) {
  return forward(cuMemGetDefaultMemPool, memPool, same<CUmemLocation>(location),
                 static_cast<CUmemAllocationType>(type));
}

cudaError_t cudaMemGetMemPool(cudaMemPool_t* memPool, struct cudaMemLocation* location,
                              enum cudaMemAllocationType type) {
  return forward(cuMemGetMemPool, memPool, same<CUmemLocation>(location),
                 static_cast<CUmemAllocationType>(type));
}

cudaError_t cudaMemSetMemPool(struct cudaMemLocation* location, enum cudaMemAllocationType type,
                              cudaMemPool_t memPool) {
  return forward(cuMemSetMemPool, same<CUmemLocation>(location),
                 static_cast<CUmemAllocationType>(type), memPool);
}

cudaError_t cudaMallocFromPoolAsync(void** ptr, size_t size, cudaMemPool_t memPool,
                                    cudaStream_t stream) {
  return forward(cuMemAllocFromPoolAsync, address_slot(ptr), size, memPool, stream);
}

cudaError_t cudaMemPoolExportToShareableHandle(void* shareableHandle, cudaMemPool_t memPool,
                                               enum cudaMemAllocationHandleType handleType,
                                               unsigned int flags) {
  return forward(cuMemPoolExportToShareableHandle, shareableHandle, memPool,
                 static_cast<CUmemAllocationHandleType>(handleType),
                 static_cast<unsigned long long>(flags));
}

cudaError_t cudaMemPoolImportFromShareableHandle(cudaMemPool_t* memPool, void* shareableHandle,
                                                 enum cudaMemAllocationHandleType handleType,
                                                 unsigned int flags) {
  return forward(cuMemPoolImportFromShareableHandle, memPool, shareableHandle,
                 static_cast<CUmemAllocationHandleType>(handleType),
                 static_cast<unsigned long long>(flags));
}

cudaError_t cudaMemPoolExportPointer(struct cudaMemPoolPtrExportData* exportData, void* ptr) {
  return forward(cuMemPoolExportPointer, same<CUmemPoolPtrExportData>(exportData),
                 device_address(ptr));
}

cudaError_t cudaMemPoolImportPointer(void** ptr, cudaMemPool_t memPool,
                                     struct cudaMemPoolPtrExportData* exportData) {
  return forward(cuMemPoolImportPointer, address_slot(ptr), memPool,
                 same<CUmemPoolPtrExportData>(exportData));
}

cudaError_t cudaMemPrefetchAsync(const void* devPtr, size_t count, struct cudaMemLocation location,
                                 unsigned int flags, cudaStream_t stream) {
  return forward(cuMemPrefetchAsync_v2, device_address(devPtr), count, native_location(location),
                 flags, stream);
}

cudaError_t cudaMemAdvise(const void* devPtr, size_t count, enum cudaMemoryAdvise advice,
                          struct cudaMemLocation location) {
  return forward(cuMemAdvise_v2, device_address(devPtr), count, static_cast<CUmem_advise>(advice),
                 native_location(location));
}

cudaError_t cudaMemRangeGetAttribute(void* data, size_t dataSize,
                                     enum cudaMemRangeAttribute attribute, const void* devPtr,
                                     size_t count) {
  return forward(cuMemRangeGetAttribute, data, dataSize,
                 static_cast<CUmem_range_attribute>(attribute), device_address(devPtr), count);
}

cudaError_t cudaMemRangeGetAttributes(void** data, size_t* dataSizes,
                                      enum cudaMemRangeAttribute* attributes, size_t numAttributes,
                                      const void* devPtr, size_t count) {
  return forward(cuMemRangeGetAttributes, data, dataSizes, same<CUmem_range_attribute>(attributes),
                 numAttributes, device_address(devPtr), count);
}

}  // extern "C"
