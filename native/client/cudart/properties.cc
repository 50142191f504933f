// SPDX-License-Identifier: Apache-2.0
// cudaGetDeviceProperties, put together from the driver's attributes, and cudaChooseDevice.
#include <cstddef>
#include <cstring>

#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace {

struct IntegerField {
  size_t offset;
  CUdevice_attribute attribute;
};

#define FIELD(member, attribute) {offsetof(cudaDeviceProp, member), CU_DEVICE_ATTRIBUTE_##attribute}

constexpr IntegerField kIntegerFields[] = {
    FIELD(regsPerBlock, MAX_REGISTERS_PER_BLOCK),
    FIELD(warpSize, WARP_SIZE),
    FIELD(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK),
    FIELD(maxThreadsDim[0], MAX_BLOCK_DIM_X),
    FIELD(maxThreadsDim[1], MAX_BLOCK_DIM_Y),
    FIELD(maxThreadsDim[2], MAX_BLOCK_DIM_Z),
    FIELD(maxGridSize[0], MAX_GRID_DIM_X),
    FIELD(maxGridSize[1], MAX_GRID_DIM_Y),
    FIELD(maxGridSize[2], MAX_GRID_DIM_Z),
    FIELD(major, COMPUTE_CAPABILITY_MAJOR),
    FIELD(minor, COMPUTE_CAPABILITY_MINOR),
    FIELD(multiProcessorCount, MULTIPROCESSOR_COUNT),
    FIELD(integrated, INTEGRATED),
    FIELD(canMapHostMemory, CAN_MAP_HOST_MEMORY),
    FIELD(maxTexture1D, MAXIMUM_TEXTURE1D_WIDTH),
    FIELD(maxTexture1DMipmap, MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH),
    FIELD(maxTexture2D[0], MAXIMUM_TEXTURE2D_WIDTH),
    FIELD(maxTexture2D[1], MAXIMUM_TEXTURE2D_HEIGHT),
    FIELD(maxTexture2DMipmap[0], MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH),
    FIELD(maxTexture2DMipmap[1], MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT),
    FIELD(maxTexture2DLinear[0], MAXIMUM_TEXTURE2D_LINEAR_WIDTH),
    FIELD(maxTexture2DLinear[1], MAXIMUM_TEXTURE2D_LINEAR_HEIGHT),
    FIELD(maxTexture2DLinear[2], MAXIMUM_TEXTURE2D_LINEAR_PITCH),
    FIELD(maxTexture2DGather[0], MAXIMUM_TEXTURE2D_GATHER_WIDTH),
    FIELD(maxTexture2DGather[1], MAXIMUM_TEXTURE2D_GATHER_HEIGHT),
    FIELD(maxTexture3D[0], MAXIMUM_TEXTURE3D_WIDTH),
    FIELD(maxTexture3D[1], MAXIMUM_TEXTURE3D_HEIGHT),
    FIELD(maxTexture3D[2], MAXIMUM_TEXTURE3D_DEPTH),
    FIELD(maxTexture3DAlt[0], MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE),
    FIELD(maxTexture3DAlt[1], MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE),
    FIELD(maxTexture3DAlt[2], MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE),
    FIELD(maxTextureCubemap, MAXIMUM_TEXTURECUBEMAP_WIDTH),
    FIELD(maxTexture1DLayered[0], MAXIMUM_TEXTURE1D_LAYERED_WIDTH),
    FIELD(maxTexture1DLayered[1], MAXIMUM_TEXTURE1D_LAYERED_LAYERS),
    FIELD(maxTexture2DLayered[0], MAXIMUM_TEXTURE2D_LAYERED_WIDTH),
    FIELD(maxTexture2DLayered[1], MAXIMUM_TEXTURE2D_LAYERED_HEIGHT),
    FIELD(maxTexture2DLayered[2], MAXIMUM_TEXTURE2D_LAYERED_LAYERS),
    FIELD(maxTextureCubemapLayered[0], MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH),
    FIELD(maxTextureCubemapLayered[1], MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS),
    FIELD(maxSurface1D, MAXIMUM_SURFACE1D_WIDTH),
    FIELD(maxSurface2D[0], MAXIMUM_SURFACE2D_WIDTH),
    FIELD(maxSurface2D[1], MAXIMUM_SURFACE2D_HEIGHT),
    FIELD(maxSurface3D[0], MAXIMUM_SURFACE3D_WIDTH),
    FIELD(maxSurface3D[1], MAXIMUM_SURFACE3D_HEIGHT),
    FIELD(maxSurface3D[2], MAXIMUM_SURFACE3D_DEPTH),
    FIELD(maxSurface1DLayered[0], MAXIMUM_SURFACE1D_LAYERED_WIDTH),
    FIELD(maxSurface1DLayered[1], MAXIMUM_SURFACE1D_LAYERED_LAYERS),
    FIELD(maxSurface2DLayered[0], MAXIMUM_SURFACE2D_LAYERED_WIDTH),
    FIELD(maxSurface2DLayered[1], MAXIMUM_SURFACE2D_LAYERED_HEIGHT),
    FIELD(maxSurface2DLayered[2], MAXIMUM_SURFACE2D_LAYERED_LAYERS),
    FIELD(maxSurfaceCubemap, MAXIMUM_SURFACECUBEMAP_WIDTH),
    FIELD(maxSurfaceCubemapLayered[0], MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH),
    FIELD(maxSurfaceCubemapLayered[1], MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS),
    FIELD(concurrentKernels, CONCURRENT_KERNELS),
    FIELD(ECCEnabled, ECC_ENABLED),
    FIELD(pciBusID, PCI_BUS_ID),
    FIELD(pciDeviceID, PCI_DEVICE_ID),
    FIELD(pciDomainID, PCI_DOMAIN_ID),
    FIELD(tccDriver, TCC_DRIVER),
    FIELD(asyncEngineCount, ASYNC_ENGINE_COUNT),
    FIELD(unifiedAddressing, UNIFIED_ADDRESSING),
    FIELD(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH),
    FIELD(l2CacheSize, L2_CACHE_SIZE),
    FIELD(persistingL2CacheMaxSize, MAX_PERSISTING_L2_CACHE_SIZE),
    FIELD(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR),
    FIELD(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED),
    FIELD(globalL1CacheSupported, GLOBAL_L1_CACHE_SUPPORTED),
    FIELD(localL1CacheSupported, LOCAL_L1_CACHE_SUPPORTED),
    FIELD(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR),
    FIELD(managedMemory, MANAGED_MEMORY),
    FIELD(isMultiGpuBoard, MULTI_GPU_BOARD),
    FIELD(multiGpuBoardGroupID, MULTI_GPU_BOARD_GROUP_ID),
    FIELD(hostNativeAtomicSupported, HOST_NATIVE_ATOMIC_SUPPORTED),
    FIELD(pageableMemoryAccess, PAGEABLE_MEMORY_ACCESS),
    FIELD(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS),
    FIELD(computePreemptionSupported, COMPUTE_PREEMPTION_SUPPORTED),
    FIELD(canUseHostPointerForRegisteredMem, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM),
    FIELD(cooperativeLaunch, COOPERATIVE_LAUNCH),
    FIELD(pageableMemoryAccessUsesHostPageTables, PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES),
    FIELD(directManagedMemAccessFromHost, DIRECT_MANAGED_MEM_ACCESS_FROM_HOST),
    FIELD(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR),
    FIELD(accessPolicyMaxWindowSize, MAX_ACCESS_POLICY_WINDOW_SIZE),
    FIELD(hostRegisterSupported, HOST_REGISTER_SUPPORTED),
    FIELD(sparseCudaArraySupported, SPARSE_CUDA_ARRAY_SUPPORTED),
    FIELD(hostRegisterReadOnlySupported, READ_ONLY_HOST_REGISTER_SUPPORTED),
    FIELD(timelineSemaphoreInteropSupported, TIMELINE_SEMAPHORE_INTEROP_SUPPORTED),
    FIELD(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED),
    FIELD(gpuDirectRDMASupported, GPU_DIRECT_RDMA_SUPPORTED),
    FIELD(gpuDirectRDMAFlushWritesOptions, GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS),
    FIELD(gpuDirectRDMAWritesOrdering, GPU_DIRECT_RDMA_WRITES_ORDERING),
    FIELD(memoryPoolSupportedHandleTypes, MEMPOOL_SUPPORTED_HANDLE_TYPES),
    FIELD(deferredMappingCudaArraySupported, DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED),
    FIELD(ipcEventSupported, IPC_EVENT_SUPPORTED),
    FIELD(clusterLaunch, CLUSTER_LAUNCH),
    FIELD(unifiedFunctionPointers, UNIFIED_FUNCTION_POINTERS),
    FIELD(deviceNumaConfig, NUMA_CONFIG),
    FIELD(deviceNumaId, NUMA_ID),
    FIELD(mpsEnabled, MPS_ENABLED),
    FIELD(hostNumaId, HOST_NUMA_ID),
    FIELD(gpuPciDeviceID, GPU_PCI_DEVICE_ID),
    FIELD(gpuPciSubsystemID, GPU_PCI_SUBSYSTEM_ID),
    FIELD(hostNumaMultinodeIpcSupported, HOST_NUMA_MULTINODE_IPC_SUPPORTED),
};

constexpr IntegerField kSizeFields[] = {
    FIELD(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK),
    FIELD(memPitch, MAX_PITCH),
    FIELD(totalConstMem, TOTAL_CONSTANT_MEMORY),
    FIELD(textureAlignment, TEXTURE_ALIGNMENT),
    FIELD(texturePitchAlignment, TEXTURE_PITCH_ALIGNMENT),
    FIELD(surfaceAlignment, SURFACE_ALIGNMENT),
    FIELD(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
    FIELD(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
    FIELD(reservedSharedMemPerBlock, RESERVED_SHARED_MEMORY_PER_BLOCK),
};

#undef FIELD

// An attribute that an older driver does not know stays 0.
int attribute(CUdevice_attribute which, CUdevice device) {
  int value = 0;
  return driver(cuDeviceGetAttribute, &value, which, device) == CUDA_SUCCESS ? value : 0;
}

CUresult fill_properties(CUdevice device, cudaDeviceProp* prop) {
  auto* base = reinterpret_cast<char*>(prop);
  std::memset(base, 0, sizeof(*prop));
  CUresult result = driver(cuDeviceGetName, prop->name, int{sizeof(prop->name)}, device);
  if (result != CUDA_SUCCESS) return result;
  result = driver(cuDeviceTotalMem_v2, &prop->totalGlobalMem, device);
  if (result != CUDA_SUCCESS) return result;
  static_assert(sizeof(prop->uuid) == sizeof(CUuuid));
  driver(cuDeviceGetUuid_v2, reinterpret_cast<CUuuid*>(&prop->uuid), device);
  for (const IntegerField& field : kIntegerFields) {
    const int value = attribute(field.attribute, device);
    std::memcpy(base + field.offset, &value, sizeof(value));
  }
  for (const IntegerField& field : kSizeFields) {
    const auto value =
        static_cast<size_t>(static_cast<unsigned>(attribute(field.attribute, device)));
    std::memcpy(base + field.offset, &value, sizeof(value));
  }
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* prop, int device) {
  if (prop == nullptr) return record(cudaErrorInvalidValue);
  CUdevice handle = 0;
  if (const cudaError_t error = device_handle(device, &handle); error != cudaSuccess) {
    return record(error);
  }
  return record(to_runtime(fill_properties(handle, prop)));
}

// The device that meets most of what is asked for; the first among equals.
cudaError_t cudaChooseDevice(int* device, const struct cudaDeviceProp* prop) {
  if (device == nullptr || prop == nullptr) return record(cudaErrorInvalidValue);
  int count = 0;
  if (const cudaError_t error = device_count(&count); error != cudaSuccess) return record(error);
  int best_score = -1;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp have;
    CUdevice handle = 0;
    if (const cudaError_t error = device_handle(i, &handle); error != cudaSuccess) {
      return record(error);
    }
    const CUresult result = fill_properties(handle, &have);
    if (result != CUDA_SUCCESS) return record(to_runtime(result));
    const int score = (have.major >= prop->major) + (have.minor >= prop->minor) +
                      (have.totalGlobalMem >= prop->totalGlobalMem) +
                      (have.sharedMemPerBlock >= prop->sharedMemPerBlock) +
                      (have.maxThreadsPerBlock >= prop->maxThreadsPerBlock) +
                      (have.regsPerBlock >= prop->regsPerBlock) +
                      (have.multiProcessorCount >= prop->multiProcessorCount);
    if (score > best_score) {
      best_score = score;
      *device = i;
    }
  }
  return cudaSuccess;
}

}  // extern "C"
