// SPDX-License-Identifier: Apache-2.0
// Copies with arrays: between host memory and an array slice by slice, as transfer.h moves bytes,
// and between arrays and device memory in one command. What an array does not hold is refused here.
#include "client/core/addresses.h"
#include "client/core/enter.h"
#include "client/core/session.h"
#include "client/driver/array.h"
#include "client/driver/transfer.h"
#include "client/objects/array.h"
#include "client/objects/stream.h"
#include "wire/generated.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace sluice::client {

namespace {

struct CopyEnd {
  const Array* array = nullptr;  // or memory:
  bool device = false;
  uint64_t address = 0, pitch = 0, height = 0;
  uint64_t id = 0;
  uint64_t x = 0, y = 0, z = 0;
  uint64_t element = 1;

  DeviceSide slice(uint64_t n) const { return {0, 0, id, x, y, z + n, element}; }
  uint64_t memory_at(uint64_t slice) const {
    return address + ((z + slice) * height + y) * pitch + x;
  }
};

struct CopyBox {
  uint64_t width, rows, slices;
};

CUresult find_array(Session* s, const Stream* stream, CUarray handle, const CopyBox& box,
                    CopyEnd* end) {
  end->array = s->arrays.find(handle);
  if (!end->array || end->array->device != stream->device) return CUDA_ERROR_INVALID_HANDLE;
  end->id = reinterpret_cast<uint64_t>(handle);
  const wire::ArrayShape& shape = end->array->shape;
  end->element = wire::element_bytes(shape.format, shape.channels);
  const wire::ArrayExtent e = wire::extent_of(shape);
  const auto fits = [](uint64_t at, uint64_t n, uint64_t limit) {
    return at <= limit && n <= limit - at;
  };
  const bool ok = end->x % end->element == 0 && box.width % end->element == 0 &&
                  fits(end->x, box.width, e.row_bytes) && fits(end->y, box.rows, e.rows) &&
                  fits(end->z, box.slices, e.slices);
  return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Every byte from the first to the last of the box lies within what addresses can say.
bool countable(const CopyEnd& end, const CopyBox& box) {
  uint64_t rows = 0, bytes = 0;
  return !__builtin_add_overflow(end.z, box.slices, &rows) &&
         !__builtin_mul_overflow(rows, end.height, &rows) &&
         !__builtin_add_overflow(rows, end.y, &rows) &&
         !__builtin_mul_overflow(rows, end.pitch, &bytes) &&
         !__builtin_add_overflow(bytes, end.x, &bytes) &&
         !__builtin_add_overflow(bytes, end.address, &bytes);
}

CUresult find_end(Session* s, const Stream* stream, const CopyBox& box, CUmemorytype type,
                  const void* host, CUdeviceptr device, CUarray array, CopyEnd* end) {
  switch (type) {
    case CU_MEMORYTYPE_ARRAY:
      return find_array(s, stream, array, box, end);
    case CU_MEMORYTYPE_HOST:
      end->address = reinterpret_cast<uint64_t>(host);
      break;
    case CU_MEMORYTYPE_DEVICE:
      end->device = true;
      end->address = device;
      break;
    case CU_MEMORYTYPE_UNIFIED:
      end->device = is_device_address(s, device);
      end->address = device;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (end->pitch == 0) end->pitch = box.width;
  if (end->height == 0) end->height = box.rows;
  const bool ok = end->address != 0 && (end->pitch >= box.width || box.rows * box.slices == 1) &&
                  (end->height >= box.rows || box.slices == 1) && countable(*end, box);
  if (!ok) return CUDA_ERROR_INVALID_VALUE;
  // Memory of another vGPU is copied by way of this one's.
  const Device* home = end->device ? device_of_address(s, end->address) : nullptr;
  if (home && home != stream->device) return CUDA_ERROR_NOT_SUPPORTED;
  const uint64_t first = end->memory_at(0);
  const uint64_t last = end->memory_at(box.slices - 1) + (box.rows - 1) * end->pitch + box.width;
  return end->device && !is_backed(s, first, last - first) ? CUDA_ERROR_INVALID_VALUE
                                                           : CUDA_SUCCESS;
}

CUresult within_device(Session* s, Stream* stream, const CopyEnd& to, const CopyEnd& from,
                       const CopyBox& box) {
  wire::SluiceCopyArrays c{};
  c.stream = stream->wire_id;
  c.toArray = to.id, c.fromArray = from.id;
  if (to.array)
    c.toX = to.x, c.toY = to.y, c.toZ = to.z;
  else
    c.toAddress = to.memory_at(0), c.toPitch = to.pitch, c.toHeight = to.height;
  if (from.array)
    c.fromX = from.x, c.fromY = from.y, c.fromZ = from.z;
  else
    c.fromAddress = from.memory_at(0), c.fromPitch = from.pitch, c.fromHeight = from.height;
  c.width = box.width, c.rows = box.rows, c.slices = box.slices;
  return s->post(wire::kSluiceCopyArrays, c, {}, stream, stream->device->context());
}

}  // namespace

namespace {

// Managed memory is the device's, whatever the caller calls it.
CUresult use_as_device(Session* s, const Stream& stream, CUmemorytype* type, const void* host,
                       CUdeviceptr* device) {
  if (*type == CU_MEMORYTYPE_ARRAY) return CUDA_SUCCESS;
  const auto address = *type == CU_MEMORYTYPE_HOST ? reinterpret_cast<CUdeviceptr>(host) : *device;
  if (!s->managed.contains(address)) return CUDA_SUCCESS;
  *type = CU_MEMORYTYPE_DEVICE;
  *device = address;
  return s->managed.before_use(stream, address, ~uint64_t{0});
}

CUresult copy_either(Session* s, Stream* stream, const CUDA_MEMCPY3D& p, bool wait);

}  // namespace

CUresult copy_with_arrays(Session* s, Stream* stream, const CUDA_MEMCPY3D& p, bool wait) {
  if (!s->managed.any() || stream->capture) return copy_either(s, stream, p, wait);
  const ManagedMemory::Giving giving(s->managed);
  CUDA_MEMCPY3D c = p;
  CUresult e = use_as_device(s, *stream, &c.srcMemoryType, c.srcHost, &c.srcDevice);
  if (e == CUDA_SUCCESS) e = use_as_device(s, *stream, &c.dstMemoryType, c.dstHost, &c.dstDevice);
  return e == CUDA_SUCCESS ? copy_either(s, stream, c, wait) : e;
}

namespace {

CUresult copy_either(Session* s, Stream* stream, const CUDA_MEMCPY3D& p, bool wait) {
  if (wait)
    if (const CUresult unsafe = s->captures.unsafe(); unsafe != CUDA_SUCCESS) return unsafe;
  const CopyBox box{p.WidthInBytes, p.Height, p.Depth};
  if (box.width == 0 || box.rows == 0 || box.slices == 0) return CUDA_SUCCESS;
  if (p.srcLOD != 0 || p.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  CopyEnd to, from;
  to.x = p.dstXInBytes, to.y = p.dstY, to.z = p.dstZ, to.pitch = p.dstPitch;
  to.height = p.dstHeight;
  from.x = p.srcXInBytes, from.y = p.srcY, from.z = p.srcZ, from.pitch = p.srcPitch;
  from.height = p.srcHeight;
  CUresult e = find_end(s, stream, box, p.dstMemoryType, p.dstHost, p.dstDevice, p.dstArray, &to);
  if (e != CUDA_SUCCESS) return e;
  e = find_end(s, stream, box, p.srcMemoryType, p.srcHost, p.srcDevice, p.srcArray, &from);
  if (e != CUDA_SUCCESS) return e;
  if ((to.array || to.device) && (from.array || from.device))
    return within_device(s, stream, to, from, box);
  const Rect slice{box.width, box.rows};
  for (uint64_t z = 0; z < box.slices; ++z) {
    if (to.array) {
      const auto* at = reinterpret_cast<const void*>(from.memory_at(z));
      e = copy_to_device(s, stream, to.slice(z), at, from.pitch, slice, wait);
    } else {
      auto* at = reinterpret_cast<void*>(to.memory_at(z));
      e = copy_to_host(s, stream, at, to.pitch, from.slice(z), slice, wait);
    }
    if (e != CUDA_SUCCESS) return e;
  }
  return CUDA_SUCCESS;
}

// One row of an array without height, from a byte offset.
CUresult row(CUDA_MEMCPY3D p, size_t bytes, CUstream handle, bool wait) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = stream_for_work(s, d, handle, &stream); e != CUDA_SUCCESS) return e;
  p.WidthInBytes = bytes;
  p.Height = p.Depth = 1;
  return copy_with_arrays(s, stream, p, wait);
}

CUDA_MEMCPY3D to_array(CUarray array, size_t offset) {
  CUDA_MEMCPY3D p{};
  p.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  p.dstArray = array;
  p.dstXInBytes = offset;
  return p;
}

CUDA_MEMCPY3D from_array(CUDA_MEMCPY3D p, CUarray array, size_t offset) {
  p.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  p.srcArray = array;
  p.srcXInBytes = offset;
  return p;
}

CUresult host_to_array(CUarray to, size_t offset, const void* from, size_t bytes, CUstream stream,
                       bool wait) {
  CUDA_MEMCPY3D p = to_array(to, offset);
  p.srcMemoryType = CU_MEMORYTYPE_HOST;
  p.srcHost = from;
  return row(p, bytes, stream, wait);
}

CUresult array_to_host(void* to, CUarray from, size_t offset, size_t bytes, CUstream stream,
                       bool wait) {
  CUDA_MEMCPY3D p{};
  p.dstMemoryType = CU_MEMORYTYPE_HOST;
  p.dstHost = to;
  return row(from_array(p, from, offset), bytes, stream, wait);
}

// Within the device nobody waits.
CUresult array_to_array(CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                        size_t bytes, CUstream stream) {
  return row(from_array(to_array(to, to_offset), from, from_offset), bytes, stream, false);
}

CUresult device_to_array(CUarray to, size_t offset, CUdeviceptr from, size_t bytes,
                         CUstream stream) {
  CUDA_MEMCPY3D p = to_array(to, offset);
  p.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  p.srcDevice = from;
  return row(p, bytes, stream, false);
}

CUresult array_to_device(CUdeviceptr to, CUarray from, size_t offset, size_t bytes,
                         CUstream stream) {
  CUDA_MEMCPY3D p{};
  p.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  p.dstDevice = to;
  return row(from_array(p, from, offset), bytes, stream, false);
}

}  // namespace
}  // namespace sluice::client

extern "C" {

CUresult cuMemcpyHtoA_v2(CUarray to, size_t offset, const void* from, size_t bytes) {
  return host_to_array(to, offset, from, bytes, nullptr, true);
}
CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void* from, size_t bytes,
                              CUstream stream) {
  return host_to_array(to, offset, from, bytes, stream, false);
}
CUresult cuMemcpyAtoH_v2(void* to, CUarray from, size_t offset, size_t bytes) {
  return array_to_host(to, from, offset, bytes, nullptr, true);
}
CUresult cuMemcpyAtoHAsync_v2(void* to, CUarray from, size_t offset, size_t bytes,
                              CUstream stream) {
  return array_to_host(to, from, offset, bytes, stream, false);
}
CUresult cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                         size_t bytes) {
  return array_to_array(to, to_offset, from, from_offset, bytes, nullptr);
}
CUresult cuMemcpyAtoA_v2_ptds(CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                              size_t bytes) {
  return array_to_array(to, to_offset, from, from_offset, bytes, CU_STREAM_PER_THREAD);
}
CUresult cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {
  return device_to_array(to, offset, from, bytes, nullptr);
}
CUresult cuMemcpyDtoA_v2_ptds(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {
  return device_to_array(to, offset, from, bytes, CU_STREAM_PER_THREAD);
}
CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {
  return array_to_device(to, from, offset, bytes, nullptr);
}
CUresult cuMemcpyAtoD_v2_ptds(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {
  return array_to_device(to, from, offset, bytes, CU_STREAM_PER_THREAD);
}

}  // extern "C"
