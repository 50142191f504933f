// SPDX-License-Identifier: Apache-2.0
#include "worker/device_attributes.h"

namespace sluice::worker {

void tell_the_truth(int32_t* attributes, SharedWithClient shared) {
  static constexpr CUdevice_attribute kAbsent[] = {
      // Memory that moves by itself, or that the GPU takes from the program's pages.
      CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
      CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
      CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
      CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
      CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
      CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS,
      // Registered memory is staged: its device pointer is none.
      CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
      // Allocations of the virtual memory API and pools in host memory; of clients that have such
      // pools they are the client's own.
      CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED,
      // Other devices that read and write this one's memory.
      CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS,
      CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
      CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES,
      CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED,
      // Arrays whose memory comes in tiles, or later.
      CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED,
      // Graphics, and semaphores of other interfaces.
      CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_D3D12_CIG_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_VULKAN_CIG_SUPPORTED,
      // The decompression engine, and cooperative launches across devices.
      CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK,
      CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_MAXIMUM_LENGTH,
      CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH,
      // The device's memory is no NUMA node of the program's machine.
      CU_DEVICE_ATTRIBUTE_NUMA_CONFIG,
  };
  for (const CUdevice_attribute a : kAbsent) attributes[a] = 0;
  attributes[CU_DEVICE_ATTRIBUTE_NUMA_ID] = -1;
  attributes[CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED] = 1;
  attributes[CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1;  // the client's own
  if (!shared.host_memory) {
    attributes[CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] = 0;
    attributes[CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED] = 0;
    attributes[CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED] = 0;
  }
  // The node's numbering means something on the node only.
  if (!shared.host) attributes[CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID] = -1;
}

}  // namespace sluice::worker
