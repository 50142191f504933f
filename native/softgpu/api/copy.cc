// SPDX-License-Identifier: Apache-2.0
// cuMemcpy* and cuMemset*.
#include "softgpu/runtime/copy.h"

#include <type_traits>

#include "softgpu/api/api.h"
#include "softgpu/runtime/array.h"

namespace sluice::softgpu {
namespace {

enum class Side : uint8_t { kDevice, kHost, kAny };

// A host argument may be pinned; one of "any" may be either kind.
bool make_side(CopySide& side, uintptr_t address, size_t bytes, Side kind) {
  side.address = address;
  if (address == 0 && bytes != 0) return false;
  return classify(side, bytes, kind == Side::kDevice);
}

CUresult linear(CUstream handle, uintptr_t to, Side to_kind, uintptr_t from, Side from_kind,
                size_t bytes, bool wait, bool between_devices = false) {
  return with_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    CopyBox box;
    box.width = bytes;
    box.between_devices = between_devices;
    if (!make_side(box.to, to, bytes, to_kind) || !make_side(box.from, from, bytes, from_kind)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return copy(context, stream, box, wait);
  });
}

bool make_box_side(CopySide& side, CUmemorytype type, const void* host, CUdeviceptr device,
                   CUarray handle, size_t x, size_t y, size_t z, size_t pitch, size_t rows,
                   size_t width, size_t height, size_t depth) {
  if (type == CU_MEMORYTYPE_ARRAY) {
    const auto array = array_from(handle);
    const auto fits = [](size_t at, size_t n, size_t limit) {
      return at <= limit && n <= limit - at;
    };
    if (!array || !fits(x, width, array->row_bytes) || !fits(y, height, array->rows) ||
        !fits(z, depth, array->slices))
      return false;
    type = CU_MEMORYTYPE_DEVICE;
    device = array->base, pitch = array->row_bytes, rows = array->rows;
  }
  if (pitch == 0) pitch = x + width;
  if (rows == 0) rows = y + height;
  if (width > pitch || (depth > 1 && rows < height)) return false;
  uintptr_t base = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uintptr_t>(host) : device;
  if (base == 0) return false;
  size_t slice = pitch * rows;
  side.pitch = pitch;
  side.slice = slice;
  size_t bytes = (depth - 1) * slice + (height - 1) * pitch + width;
  return make_side(side, base + z * slice + y * pitch + x, bytes,
                   type == CU_MEMORYTYPE_DEVICE ? Side::kDevice : Side::kAny);
}

template <class Description>
CUresult make_box(const Description& d, size_t depth, CopyBox& box) {
  box.width = d.WidthInBytes;
  box.height = d.Height;
  box.depth = depth;
  size_t source_z = 0, source_rows = 0, target_z = 0, target_rows = 0;
  if constexpr (requires { d.srcZ; }) {
    source_z = d.srcZ;
    source_rows = d.srcHeight;
    target_z = d.dstZ;
    target_rows = d.dstHeight;
  }
  if (!make_box_side(box.from, d.srcMemoryType, d.srcHost, d.srcDevice, d.srcArray, d.srcXInBytes,
                     d.srcY, source_z, d.srcPitch, source_rows, box.width, box.height, depth) ||
      !make_box_side(box.to, d.dstMemoryType, d.dstHost, d.dstDevice, d.dstArray, d.dstXInBytes,
                     d.dstY, target_z, d.dstPitch, target_rows, box.width, box.height, depth)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

template <class Description>
CUresult box(CUstream handle, const Description* d, size_t depth, bool wait) {
  return with_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    if (!d) return CUDA_ERROR_INVALID_VALUE;
    if (d->WidthInBytes == 0 || d->Height == 0 || depth == 0) return CUDA_SUCCESS;
    CopyBox box;
    box.between_devices = std::is_same_v<Description, CUDA_MEMCPY3D_PEER>;
    if (CUresult wrong = make_box(*d, depth, box); wrong != CUDA_SUCCESS) return wrong;
    return copy(context, stream, box, wait);
  });
}

CUresult set(CUstream handle, CUdeviceptr to, size_t pitch, uint32_t value, unsigned element,
             size_t width, size_t height, bool wait) {
  return with_stream(handle, [&](Context& context, Stream& stream) {
    return fill(context, stream, Fill{to, pitch, value, element, width, height}, wait);
  });
}

uintptr_t host(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

}  // namespace

CUresult copy_box_of(const CUDA_MEMCPY3D& d, CopyBox& box) {
  if (d.WidthInBytes == 0 || d.Height == 0 || d.Depth == 0) return CUDA_ERROR_INVALID_VALUE;
  return make_box(d, d.Depth, box);
}

}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return linear(nullptr, to, Side::kAny, from, Side::kAny, bytes, true);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return linear(stream, to, Side::kAny, from, Side::kAny, bytes, false);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return linear(nullptr, to, Side::kDevice, host(from), Side::kHost, bytes, true);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return linear(stream, to, Side::kDevice, host(from), Side::kHost, bytes, false);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return linear(nullptr, host(to), Side::kHost, from, Side::kDevice, bytes, true);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return linear(stream, host(to), Side::kHost, from, Side::kDevice, bytes, false);
}
// Between device memory CUDA does not make the caller wait.
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return linear(nullptr, to, Side::kDevice, from, Side::kDevice, bytes, false);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return linear(stream, to, Side::kDevice, from, Side::kDevice, bytes, false);
}
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                      CUcontext from_context, size_t bytes) {
  if (!context_from(to_context) || !context_from(from_context)) return CUDA_ERROR_INVALID_CONTEXT;
  return linear(nullptr, to, Side::kAny, from, Side::kAny, bytes, true, true);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, size_t bytes, CUstream stream) {
  if (!context_from(to_context) || !context_from(from_context)) return CUDA_ERROR_INVALID_CONTEXT;
  return linear(stream, to, Side::kAny, from, Side::kAny, bytes, false, true);
}
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* d) { return box(nullptr, d, 1, true); }
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* d) { return box(nullptr, d, 1, true); }
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* d, CUstream stream) {
  return box(stream, d, 1, false);
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* d) { return box(nullptr, d, d ? d->Depth : 0, true); }
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* d, CUstream stream) {
  return box(stream, d, d ? d->Depth : 0, false);
}
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* d) {
  return box(nullptr, d, d ? d->Depth : 0, true);
}
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* d, CUstream stream) {
  return box(stream, d, d ? d->Depth : 0, false);
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  return set(nullptr, to, 0, value, 1, count, 1, true);
}
CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
  return set(nullptr, to, 0, value, 2, count, 1, true);
}
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count) {
  return set(nullptr, to, 0, value, 4, count, 1, true);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return set(stream, to, 0, value, 1, count, 1, false);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  return set(stream, to, 0, value, 2, count, 1, false);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
  return set(stream, to, 0, value, 4, count, 1, false);
}
CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                         size_t height) {
  return set(nullptr, to, pitch, value, 1, width, height, true);
}
CUresult cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                          size_t height) {
  return set(nullptr, to, pitch, value, 2, width, height, true);
}
CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                          size_t height) {
  return set(nullptr, to, pitch, value, 4, width, height, true);
}
CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                           size_t height, CUstream stream) {
  return set(stream, to, pitch, value, 1, width, height, false);
}
CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                            size_t height, CUstream stream) {
  return set(stream, to, pitch, value, 2, width, height, false);
}
CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                            size_t height, CUstream stream) {
  return set(stream, to, pitch, value, 4, width, height, false);
}
