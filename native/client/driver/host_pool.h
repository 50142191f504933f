// SPDX-License-Identifier: Apache-2.0
// Memory pools whose location is the host (core/host_pools.h): which pools a location means, and
// what CUDA's documentation says of arguments. For driver/pool.cc.
#pragma once

#include "abi/cuda_driver.h"

namespace sluice::client {

class Session;

CUresult create_host_pool(Session* s, const CUmemPoolProps& properties, CUmemoryPool* pool);
// By what cuMemGetDefaultMemPool, cuMemGetMemPool and cuMemSetMemPool are told.
CUresult standard_host_pool(Session* s, const CUmemLocation& location, CUmemoryPool* pool);
CUresult current_host_pool(Session* s, const CUmemLocation& location, CUmemoryPool* pool);
CUresult choose_host_pool(Session* s, const CUmemLocation& location, CUmemoryPool pool);

}  // namespace sluice::client
