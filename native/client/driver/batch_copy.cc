// SPDX-License-Identifier: Apache-2.0
// Batches of copies. CUDA promises no order within one, so its copies go one after another, each
// the way that its memory asks for. What an attribute allows beyond stream order nobody makes use
// of; what it demands is kept: a source that may be touched during the call only is read by then.
#include <algorithm>
#include <vector>

#include "client/core/addresses.h"
#include "client/driver/graph.h"
#include "client/driver/wait.h"

using namespace sluice::client;

namespace {

constexpr size_t kNoOne = ~size_t{0};  // of the batch: the failure is of the call as a whole

struct Batch {
  Session* s = nullptr;
  Stream* stream = nullptr;
  bool ends_in_call = false;  // what lies on the stream must be over when the call returns
};

CUresult begin(CUstream handle, Batch* b) {
  Device* d;
  if (const CUresult e = enter(&b->s, &d); e != CUDA_SUCCESS) return e;
  // The legacy default stream takes no batches.
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return CUDA_ERROR_INVALID_VALUE;
  return stream_for_work(b->s, d, handle, &b->stream);
}

CUresult check(unsigned order, unsigned flags) {
  const bool known = order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
                     order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
                     order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
  return known && flags <= CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_INVALID_VALUE;
}

// A source that the program takes back when the call returns. Pageable memory has been read by
// then, as always; a graph would read it later.
CUresult note_source(Batch* b, unsigned order, bool pageable) {
  if (order != CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL) return CUDA_SUCCESS;
  if (b->stream->capture)
    return refuse_in_graph(b->s, b->stream, "a copy whose source is gone after the call");
  b->ends_in_call |= !pageable;
  return CUDA_SUCCESS;
}

bool is_pageable(Session* s, uint64_t address) {
  return !is_device_address(s, address) &&
         !s->host_memory().in_arena(reinterpret_cast<const void*>(address), 1);
}

CUresult finish(const Batch& b) {
  return b.ends_in_call ? synchronize_stream(b.s, b.stream) : CUDA_SUCCESS;
}

CUresult linear(const CUdeviceptr* to, const CUdeviceptr* from, const size_t* sizes, size_t count,
                const CUmemcpyAttributes* attributes, const size_t* firsts, size_t attribute_count,
                size_t* failed, CUstream handle) {
  *failed = kNoOne;
  Batch b;
  if (const CUresult e = begin(handle, &b); e != CUDA_SUCCESS) return e;
  if (!to || !from || !sizes || !count || !attributes || !firsts || !attribute_count ||
      attribute_count > count || firsts[0] != 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < attribute_count; ++i)
    if (check(attributes[i].srcAccessOrder, attributes[i].flags) != CUDA_SUCCESS ||
        firsts[i] >= count || (i && firsts[i] <= firsts[i - 1]))
      return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0, a = 0; i < count; ++i) {
    if (a + 1 < attribute_count && firsts[a + 1] == i) ++a;
    CUresult e = note_source(&b, attributes[a].srcAccessOrder, is_pageable(b.s, from[i]));
    if (e == CUDA_SUCCESS) e = cuMemcpyAsync(to[i], from[i], sizes[i], handle);
    if (e == CUDA_SUCCESS) continue;
    *failed = i;
    return e;
  }
  return finish(b);
}

// Bytes of an element; 0: there is no such array.
size_t element_of(Session* s, const CUmemcpy3DOperand& o) {
  if (o.type != CU_MEMCPY_OPERAND_TYPE_ARRAY) return 1;
  const Array* a = s->arrays.find(o.op.array.array);
  return a ? size_t{sluice::wire::channel_bytes(a->shape.format)} * a->shape.channels : 0;
}

struct End {
  CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
  CUdeviceptr address = 0;
  CUarray array = nullptr;
  size_t x = 0, y = 0, z = 0, pitch = 0, height = 0;
};

CUresult describe(const CUmemcpy3DOperand& o, const CUextent3D& extent, size_t element, End* end) {
  if (o.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    end->type = CU_MEMORYTYPE_ARRAY;
    end->array = o.op.array.array;
    end->x = o.op.array.offset.x * element;
    end->y = o.op.array.offset.y;
    end->z = o.op.array.offset.z;
    return CUDA_SUCCESS;
  }
  if (o.type != CU_MEMCPY_OPERAND_TYPE_POINTER) return CUDA_ERROR_INVALID_VALUE;
  const auto& p = o.op.ptr;
  if ((p.rowLength && p.rowLength < extent.width) ||
      (p.layerHeight && p.layerHeight < extent.height))
    return CUDA_ERROR_INVALID_VALUE;
  end->address = p.ptr;
  end->pitch = (p.rowLength ? p.rowLength : extent.width) * element;
  end->height = p.layerHeight ? p.layerHeight : extent.height;
  return CUDA_SUCCESS;
}

CUresult copy_box(Batch* b, const CUDA_MEMCPY3D_BATCH_OP& op, CUstream handle) {
  if (!op.extent.width || !op.extent.height || !op.extent.depth) return CUDA_ERROR_INVALID_VALUE;
  const bool from_array = op.src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
  const bool to_array = op.dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
  const size_t from_element = element_of(b->s, op.src), to_element = element_of(b->s, op.dst);
  if (!from_element || !to_element || (from_array && to_array && from_element != to_element))
    return CUDA_ERROR_INVALID_VALUE;
  const size_t element = std::max(from_element, to_element);
  size_t row = 0;
  if (__builtin_mul_overflow(op.extent.width, element, &row)) return CUDA_ERROR_INVALID_VALUE;
  End to, from;
  if (const CUresult e = describe(op.src, op.extent, element, &from); e != CUDA_SUCCESS) return e;
  if (const CUresult e = describe(op.dst, op.extent, element, &to); e != CUDA_SUCCESS) return e;
  CUDA_MEMCPY3D p{};
  p.srcMemoryType = from.type, p.srcDevice = from.address, p.srcArray = from.array;
  p.srcXInBytes = from.x, p.srcY = from.y, p.srcZ = from.z;
  p.srcPitch = from.pitch, p.srcHeight = from.height;
  p.dstMemoryType = to.type, p.dstDevice = to.address, p.dstArray = to.array;
  p.dstXInBytes = to.x, p.dstY = to.y, p.dstZ = to.z;
  p.dstPitch = to.pitch, p.dstHeight = to.height;
  p.WidthInBytes = row, p.Height = op.extent.height, p.Depth = op.extent.depth;
  const bool pageable = !from_array && is_pageable(b->s, from.address);
  if (const CUresult e = note_source(b, op.srcAccessOrder, pageable); e != CUDA_SUCCESS) return e;
  return cuMemcpy3DAsync_v2(&p, handle);
}

CUresult boxes(size_t count, const CUDA_MEMCPY3D_BATCH_OP* ops, size_t* failed,
               unsigned long long flags, CUstream handle) {
  *failed = kNoOne;
  Batch b;
  if (const CUresult e = begin(handle, &b); e != CUDA_SUCCESS) return e;
  if (!count || !ops || flags) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    *failed = i;
    if (const CUresult e = check(ops[i].srcAccessOrder, ops[i].flags); e != CUDA_SUCCESS) return e;
  }
  for (size_t i = 0; i < count; ++i) {
    *failed = i;
    if (const CUresult e = copy_box(&b, ops[i], handle); e != CUDA_SUCCESS) return e;
  }
  *failed = kNoOne;
  return finish(b);
}

}  // namespace

extern "C" {

CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                            CUmemcpyAttributes* attributes, size_t* firsts, size_t attribute_count,
                            size_t* failed, CUstream stream) {
  size_t place;
  const CUresult e = linear(to, from, sizes, count, attributes, firsts, attribute_count,
                            failed ? failed : &place, stream);
  return e;
}
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                               CUmemcpyAttributes* attributes, size_t* firsts,
                               size_t attribute_count, CUstream stream) {
  size_t place;
  return linear(to, from, sizes, count, attributes, firsts, attribute_count, &place, stream);
}

CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP* ops, size_t* failed,
                              unsigned long long flags, CUstream stream) {
  size_t place;
  return boxes(count, ops, failed ? failed : &place, flags, stream);
}
CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP* ops,
                                 unsigned long long flags, CUstream stream) {
  size_t place;
  return boxes(count, ops, &place, flags, stream);
}

}  // extern "C"
