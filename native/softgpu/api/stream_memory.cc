// SPDX-License-Identifier: Apache-2.0
// Stream memory operations: write a value, or wait for one, in stream order.
#include "softgpu/api/api.h"
#include "softgpu/runtime/mem_op.h"

namespace sluice::softgpu {
namespace {

CUresult queue(CUstream handle, const CUstreamBatchMemOpParams* operations, unsigned count) {
  return with_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    for (unsigned i = 0; i < count; ++i) {
      if (CUresult wrong = check_mem_op(operations[i]); wrong != CUDA_SUCCESS) return wrong;
    }
    std::vector<CUstreamBatchMemOpParams> kept(operations, operations + count);
    if (auto answer = captured(stream, [&] { return Work(MemOpsWork{kept}); })) return *answer;
    context.submit(stream, [&context, kept = std::move(kept)] {
      for (const CUstreamBatchMemOpParams& op : kept) run_mem_op(context, op);
    });
    return CUDA_SUCCESS;
  });
}

template <class T>
CUresult write(CUstream stream, CUstreamBatchMemOpType type, CUdeviceptr address, T value,
               unsigned flags) {
  if (flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) return CUDA_ERROR_INVALID_VALUE;
  CUstreamBatchMemOpParams op{};
  op.operation = type;
  op.writeValue.address = address;
  op.writeValue.value64 = value;
  return queue(stream, &op, 1);
}

template <class T>
CUresult wait(CUstream stream, CUstreamBatchMemOpType type, CUdeviceptr address, T value,
              unsigned flags) {
  CUstreamBatchMemOpParams op{};
  op.operation = type;
  op.waitValue.address = address;
  op.waitValue.value64 = value;
  op.waitValue.flags = flags;
  return queue(stream, &op, 1);
}

}  // namespace
}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                 unsigned int flags) {
  return write(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, address, value, flags);
}
CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                 unsigned int flags) {
  return write(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, address, value, flags);
}
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                unsigned int flags) {
  return wait(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, address, value, flags);
}
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                unsigned int flags) {
  return wait(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, address, value, flags);
}

CUresult cuStreamBatchMemOp_v2(CUstream handle, unsigned int count,
                               CUstreamBatchMemOpParams* operations, unsigned int flags) {
  if (!operations || count == 0 || count > 256 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return queue(handle, operations, count);
}
