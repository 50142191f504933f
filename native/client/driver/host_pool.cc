// SPDX-License-Identifier: Apache-2.0
#include "client/driver/host_pool.h"

#include <unistd.h>

#include <string>

#include "client/core/session.h"
#include "client/objects/pool.h"

namespace sluice::client {

namespace {

// The machine's, which the program runs on. One that tells of none has the first.
bool has_node(int node) {
  static const std::string kNodes = "/sys/devices/system/node/node";
  if (node == 0) return true;
  return node > 0 && access((kNodes + std::to_string(node)).c_str(), F_OK) == 0;
}

// Memory is taken as the system gives it: a node is looked at, and part of what the pool is called.
CUresult node_of(const CUmemLocation& location, int* node) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_HOST:
      *node = HostPools::kAnyNode;
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      *node = location.id;
      return has_node(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:  // pools of the thread's node of the moment are none
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult as_handle(uint64_t id, CUmemoryPool* pool) {
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *pool = reinterpret_cast<CUmemoryPool>(id);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult create_host_pool(Session* s, const CUmemPoolProps& properties, CUmemoryPool* pool) {
  int node;
  if (const CUresult e = node_of(properties.location, &node); e != CUDA_SUCCESS) return e;
  if (properties.win32SecurityAttributes) return CUDA_ERROR_INVALID_VALUE;
  // Pinned memory is this process's own.
  if (properties.handleTypes != CU_MEM_HANDLE_TYPE_NONE)
    return node == HostPools::kAnyNode ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
  uint64_t id;
  PoolHandle* const made = s->pools.create(&id);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  made->pool = s->host_pools.all().create(whole_limit(properties.maxSize));
  made->node = node;
  return as_handle(id, pool);
}

CUresult standard_host_pool(Session* s, const CUmemLocation& location, CUmemoryPool* pool) {
  int node;
  if (const CUresult e = node_of(location, &node); e != CUDA_SUCCESS) return e;
  return pool ? as_handle(s->host_pools.standard(node), pool) : CUDA_ERROR_INVALID_VALUE;
}

CUresult current_host_pool(Session* s, const CUmemLocation& location, CUmemoryPool* pool) {
  int node;
  if (const CUresult e = node_of(location, &node); e != CUDA_SUCCESS) return e;
  return pool ? as_handle(s->host_pools.current(node), pool) : CUDA_ERROR_INVALID_VALUE;
}

CUresult choose_host_pool(Session* s, const CUmemLocation& location, CUmemoryPool pool) {
  int node;
  if (const CUresult e = node_of(location, &node); e != CUDA_SUCCESS) return e;
  const PoolHandle* const chosen = s->pools.find(pool);
  if (!chosen || chosen->device || chosen->node != node) return CUDA_ERROR_INVALID_VALUE;
  s->host_pools.choose(node, reinterpret_cast<uint64_t>(pool));
  return CUDA_SUCCESS;
}

}  // namespace sluice::client
