// SPDX-License-Identifier: Apache-2.0
// Arrays of one, two and three dimensions, without mipmaps.
#include "softgpu/runtime/array.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "softgpu/api/api.h"

namespace sluice::softgpu {
namespace {

class Arrays {
 public:
  static Arrays& instance() {
    static Arrays* arrays = new Arrays();  // streams may copy while the process ends
    return *arrays;
  }
  CUarray add(const Array& array) {
    std::lock_guard lock(mutex_);
    known_[++last_] = array;
    return reinterpret_cast<CUarray>(last_);
  }
  std::optional<Array> find(CUarray handle) {
    std::lock_guard lock(mutex_);
    const auto found = known_.find(reinterpret_cast<uintptr_t>(handle));
    return found == known_.end() ? std::nullopt : std::optional(found->second);
  }
  void remove(CUarray handle) {
    std::lock_guard lock(mutex_);
    known_.erase(reinterpret_cast<uintptr_t>(handle));
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, Array> known_;
  uintptr_t last_ = 0;
};

size_t channel_bytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4;
    default:
      return 0;
  }
}

}  // namespace

std::optional<Array> array_from(CUarray handle) { return Arrays::instance().find(handle); }

}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuArray3DCreate_v2(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR* d) {
  if (!handle || !d || d->Width == 0) return CUDA_ERROR_INVALID_VALUE;
  if (d->NumChannels != 1 && d->NumChannels != 2 && d->NumChannels != 4)
    return CUDA_ERROR_INVALID_VALUE;
  const size_t element = channel_bytes(d->Format) * d->NumChannels;
  if (element == 0 || d->Flags != 0) return CUDA_ERROR_NOT_SUPPORTED;
  Array array{0, d->Width * element, std::max<size_t>(1, d->Height), std::max<size_t>(1, d->Depth)};
  size_t bytes = 0;
  if (__builtin_mul_overflow(array.row_bytes, array.rows, &bytes) ||
      __builtin_mul_overflow(bytes, array.slices, &bytes))
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (const CUresult e = cuMemAlloc_v2(&array.base, bytes); e != CUDA_SUCCESS) return e;
  *handle = Arrays::instance().add(array);
  return CUDA_SUCCESS;
}

CUresult cuArrayCreate_v2(CUarray* handle, const CUDA_ARRAY_DESCRIPTOR* d) {
  if (!d) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR flat{};
  flat.Width = d->Width, flat.Height = d->Height;
  flat.Format = d->Format, flat.NumChannels = d->NumChannels;
  return cuArray3DCreate_v2(handle, &flat);
}

CUresult cuArrayDestroy(CUarray handle) {
  const auto array = array_from(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult e = cuMemFree_v2(array->base);
  if (e == CUDA_SUCCESS) Arrays::instance().remove(handle);
  return e;
}
