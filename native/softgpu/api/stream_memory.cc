// SPDX-License-Identifier: Apache-2.0
// Stream memory operations: write a value, or wait for one, in stream order.
#include <atomic>

#include "softgpu/api/api.h"
#include "softgpu/memory/allocations.h"
#include "softgpu/memory/range_map.h"

namespace sluice::softgpu {
namespace {

// Reads or writes one word if the device may; false if it may not (any more).
template <class T>
bool access(int device, uintptr_t address, T& value, bool write) {
  MemoryView view;
  view.enter(device);
  bool ok = view.accessible(address, sizeof(T), write);
  if (ok) {
    T* word = reinterpret_cast<T*>(address);
    if (write) {
      __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
    } else {
      value = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    }
  }
  view.leave();
  return ok;
}

template <class T>
bool satisfied(T held, T wanted, unsigned condition) {
  switch (condition) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return static_cast<std::make_signed_t<T>>(held - wanted) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return held == wanted;
    case CU_STREAM_WAIT_VALUE_AND:
      return (held & wanted) != 0;
    default:
      return static_cast<T>(~(held | wanted)) != 0;
  }
}

template <class T>
CUresult queue_write(Context& context, Stream& stream, CUdeviceptr address, T value) {
  if (address % sizeof(T) != 0 || !Allocations::instance().covers(address, sizeof(T))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  context.submit(stream, [&context, address, value]() mutable {
    if (!access(context.device().ordinal, address, value, true)) {
      context.poison(CUDA_ERROR_ILLEGAL_ADDRESS, "stream write to memory that is not mapped");
    }
    notify_pollers();
  });
  return CUDA_SUCCESS;
}

template <class T>
CUresult queue_wait(Context& context, Stream& stream, CUdeviceptr address, T value,
                    unsigned flags) {
  unsigned condition = flags & 3;
  if ((flags & ~(3u | CU_STREAM_WAIT_VALUE_FLUSH)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (address % sizeof(T) != 0 || !Allocations::instance().covers(address, sizeof(T))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  context.submit(stream, [&context, address, value, condition] {
    bool lost = false;
    poll_until(
        [&] {
          T held{};
          lost = !access(context.device().ordinal, address, held, false);
          return lost || satisfied(held, value, condition);
        },
        [&] { return context.error() != 0 || context.dead(); });
    if (lost) {
      context.poison(CUDA_ERROR_ILLEGAL_ADDRESS, "stream wait on memory that is not mapped");
    }
  });
  return CUDA_SUCCESS;
}

CUresult queue(Context& context, Stream& stream, const CUstreamBatchMemOpParams& op) {
  switch (op.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      return queue_wait<uint32_t>(context, stream, op.waitValue.address, op.waitValue.value,
                                  op.waitValue.flags);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return queue_wait<uint64_t>(context, stream, op.waitValue.address, op.waitValue.value64,
                                  op.waitValue.flags);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      return queue_write<uint32_t>(context, stream, op.writeValue.address, op.writeValue.value);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return queue_write<uint64_t>(context, stream, op.writeValue.address, op.writeValue.value64);
    case CU_STREAM_MEM_OP_BARRIER:
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      return CUDA_SUCCESS;  // operations of a stream are ordered anyway
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace
}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuStreamWriteValue32_v2(CUstream handle, CUdeviceptr address, cuuint32_t value,
                                 unsigned int flags) {
  return with_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    if (flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) return CUDA_ERROR_INVALID_VALUE;
    return queue_write<uint32_t>(context, stream, address, value);
  });
}

CUresult cuStreamWriteValue64_v2(CUstream handle, CUdeviceptr address, cuuint64_t value,
                                 unsigned int flags) {
  return with_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    if (flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) return CUDA_ERROR_INVALID_VALUE;
    return queue_write<uint64_t>(context, stream, address, value);
  });
}

CUresult cuStreamWaitValue32_v2(CUstream handle, CUdeviceptr address, cuuint32_t value,
                                unsigned int flags) {
  return with_stream(handle, [&](Context& context, Stream& stream) {
    return queue_wait<uint32_t>(context, stream, address, value, flags);
  });
}

CUresult cuStreamWaitValue64_v2(CUstream handle, CUdeviceptr address, cuuint64_t value,
                                unsigned int flags) {
  return with_stream(handle, [&](Context& context, Stream& stream) {
    return queue_wait<uint64_t>(context, stream, address, value, flags);
  });
}

CUresult cuStreamBatchMemOp_v2(CUstream handle, unsigned int count,
                               CUstreamBatchMemOpParams* operations, unsigned int flags) {
  return with_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    if (!operations || count == 0 || count > 256 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; ++i) {
      if (CUresult result = queue(context, stream, operations[i]); result != CUDA_SUCCESS) {
        return result;
      }
    }
    return CUDA_SUCCESS;
  });
}
