// SPDX-License-Identifier: Apache-2.0
// Kernel launches: the hot path. A configuration that CUDA would refuse at once is refused here,
// from the cached attributes; everything else is one command.
#include "client/driver/launch.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "client/core/enter.h"
#include "client/driver/attribute.h"
#include "client/driver/lent_memory.h"
#include "client/driver/module.h"
#include "client/objects/device.h"
#include "client/objects/stream.h"

namespace sluice::client {

namespace {

int attribute(const Function& f, CUfunction_attribute a) { return f.record.attributes[a]; }

}  // namespace

CUresult check_launch(const Device& d, const Function& f, const uint32_t grid[3],
                      const uint32_t block[3], uint32_t shared) {
  const int32_t* limit = d.record.attributes;
  for (int i = 0; i < 3; ++i) {
    if (grid[i] == 0 || block[i] == 0 ||
        grid[i] > static_cast<uint32_t>(limit[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i]) ||
        block[i] > static_cast<uint32_t>(limit[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i]))
      return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t threads = uint64_t{block[0]} * block[1] * block[2];
  if (threads > static_cast<uint64_t>(limit[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK]))
    return CUDA_ERROR_INVALID_VALUE;
  if (threads > static_cast<uint64_t>(attribute(f, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK))) {
    // The kernel's own bound is an invalid value on CUDA 13 (tests/programs/corner_cases), too few
    // registers are a lack of resources.
    const uint64_t registers =
        threads * static_cast<uint64_t>(attribute(f, CU_FUNC_ATTRIBUTE_NUM_REGS));
    return registers > static_cast<uint64_t>(limit[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK])
               ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
               : CUDA_ERROR_INVALID_VALUE;
  }
  // A value set by cuFuncSetAttribute, or what every kernel may have.
  const auto dynamic = static_cast<uint64_t>(
      std::max(0, attribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)));
  if (shared > dynamic) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult want_local_memory(Session* s, Device& d, const Function& f) {
  const auto wanted =
      static_cast<uint64_t>(std::max(0, attribute(f, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)));
  uint64_t had = d.thread_bytes.load(std::memory_order_relaxed);
  if (wanted <= had) return CUDA_SUCCESS;
  if (wanted > wire::kMaxThreadBytes) return CUDA_ERROR_INVALID_VALUE;
  const wire::LocalMemory m{d.place.index, 0, wanted};
  CUresult e = s->ask(d, wire::kLocalMemory, m);
  if (e == CUDA_ERROR_OUT_OF_MEMORY && d.make_room(true)) e = s->ask(d, wire::kLocalMemory, m);
  if (e != CUDA_SUCCESS) return e;
  while (had < wanted && !d.thread_bytes.compare_exchange_weak(had, wanted)) {
  }
  return CUDA_SUCCESS;
}

CUresult gather_params(const Function& f, void** params, void** extra, std::byte* to,
                       uint32_t* bytes) {
  if (params && extra) return CUDA_ERROR_INVALID_VALUE;
  *bytes = 0;
  if (extra) {
    const void* buffer = nullptr;
    size_t size = 0;
    for (int i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
      if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
        buffer = extra[i + 1];
      else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
        size = *static_cast<size_t*>(extra[i + 1]);
      else
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (size > kMaxParamBytes || (size && !buffer)) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(to, buffer, size);
    *bytes = static_cast<uint32_t>(size);
    return CUDA_SUCCESS;
  }
  if (f.params.empty()) return CUDA_SUCCESS;
  if (!params || f.record.param_bytes > kMaxParamBytes) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < f.params.size(); ++i)
    std::memcpy(to + f.params[i].offset, params[i], f.params[i].size);
  *bytes = f.record.param_bytes;
  return CUDA_SUCCESS;
}

}  // namespace sluice::client

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

constexpr size_t kMaxAttributes = 64;

CUresult launch(CUfunction function, const uint32_t grid[3], const uint32_t block[3],
                uint32_t shared, CUstream stream_handle, void** params, void** extra,
                const CUlaunchAttribute* attributes, unsigned attribute_count) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  const Function* f = find_function(s, function);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult e = stream_for_work(s, d, stream_handle, &stream); e != CUDA_SUCCESS) return e;
  if (stream->device != (f->device ? f->device : d)) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult e = check_launch(*d, *f, grid, block, shared); e != CUDA_SUCCESS) return e;
  if (attribute_count > kMaxAttributes) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = want_local_memory(s, *stream->device, *f); e != CUDA_SUCCESS) return e;

  alignas(16) std::byte tail[kMaxParamBytes + kMaxAttributes * sizeof(wire::LaunchAttribute) + 8];
  wire::Launch l{};
  if (const CUresult e = gather_params(*f, params, extra, tail, &l.param_bytes); e != CUDA_SUCCESS)
    return e;
  size_t bytes = l.param_bytes;
  std::optional<LentMemory> lent;
  if (!stream->capture && names_unreachable(s, {tail, bytes})) {
    lent.emplace(s, stream);
    if (const CUresult e = lent->lend({tail, bytes}); e != CUDA_SUCCESS) return e;
  }
  for (unsigned i = 0; i < attribute_count; ++i) {
    wire::LaunchAttribute a{};
    if (const CUresult e =
            pack_attribute(s, *d, AttributeOf::kLaunch, attributes[i].id, attributes[i].value, &a);
        e != CUDA_SUCCESS)
      return e;
    std::memcpy(tail + bytes, &a, sizeof a);
    bytes += sizeof a;
  }
  l.function = reinterpret_cast<uint64_t>(function);
  l.stream = stream->wire_id;
  std::memcpy(l.grid, grid, sizeof l.grid);
  std::memcpy(l.block, block, sizeof l.block);
  l.shared_bytes = shared;
  l.attribute_count = attribute_count;
  const CUresult e =
      s->post(wire::kLaunch, &l, sizeof l, {tail, bytes}, stream, stream->device->context());
  return lent && e == CUDA_SUCCESS ? lent->take_back() : e;
}

}  // namespace

extern "C" {

CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                        unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                        CUstream stream, void** params, void** extra) {
  const uint32_t grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  return launch(f, grid, block, shared, stream, params, extra, nullptr, 0);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** params, void** extra) {
  if (!c) return CUDA_ERROR_INVALID_VALUE;
  const uint32_t grid[3] = {c->gridDimX, c->gridDimY, c->gridDimZ};
  const uint32_t block[3] = {c->blockDimX, c->blockDimY, c->blockDimZ};
  return launch(f, grid, block, c->sharedMemBytes, c->hStream, params, extra, c->attrs,
                c->numAttrs);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                                   unsigned int bx, unsigned int by, unsigned int bz,
                                   unsigned int shared, CUstream stream, void** params) {
  CUlaunchAttribute cooperative{};
  cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  cooperative.value.cooperative = 1;
  const uint32_t grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  return launch(f, grid, block, shared, stream, params, nullptr, &cooperative, 1);
}

}  // extern "C"
