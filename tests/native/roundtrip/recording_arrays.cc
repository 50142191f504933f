// SPDX-License-Identifier: Apache-2.0
// The recording driver's arrays: plain boxes of bytes, so that copies can be looked at, and texture
// numbers that are given out and taken back.
#include <algorithm>

#include "tests/native/roundtrip/recording_driver.h"
#include "wire/array_shape.h"

namespace sluice::test {

namespace {

constexpr uint64_t kMostStored = 64 << 20;
constexpr uint64_t kWindow = 8ull << 40;  // no row and no slice is farther from another

wire::ArrayShape shape_of(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  return {d.Width, d.Height, d.Depth, static_cast<uint32_t>(d.Format), d.NumChannels, d.Flags, 1};
}

void store(Recording::StoredArray& a, const CUDA_ARRAY3D_DESCRIPTOR& d) {
  const wire::ArrayExtent e = wire::extent_of(shape_of(d));
  a.descriptor = d;
  a.row_bytes = e.row_bytes, a.rows = e.rows, a.slices = e.slices;
  const uint64_t bytes = e.row_bytes * e.rows * e.slices;
  a.bytes.resize(bytes <= kMostStored ? bytes : 0);
}

}  // namespace

void Recording::install_arrays() {
  arrays.clear();
  textures.clear();
  surfaces.clear();
  const auto handle = [this] { return reinterpret_cast<void*>(next_ += 64); };
  SLUICE_ON(cuArray3DCreate_v2) = [=, this](CUarray* a, const CUDA_ARRAY3D_DESCRIPTOR* d) {
    if (status != CUDA_SUCCESS) return status;
    *a = static_cast<CUarray>(handle());
    store(arrays[*a], *d);
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuArrayDestroy) = [this](CUarray a) {
    if (!arrays.erase(a)) violation("cuArrayDestroy", "a foreign array");
    return status;
  };
  SLUICE_ON(cuMipmappedArrayCreate) = [=, this](CUmipmappedArray* a,
                                                const CUDA_ARRAY3D_DESCRIPTOR* d, unsigned n) {
    if (status != CUDA_SUCCESS) return status;
    *a = static_cast<CUmipmappedArray>(handle());
    StoredArray& stored = arrays[*a];
    stored.descriptor = *d, stored.levels = n;
    for (unsigned l = 0; l < n; ++l) {
      const auto level = static_cast<CUarray>(handle());
      const wire::ArrayShape s = wire::level_of(shape_of(*d), l);
      CUDA_ARRAY3D_DESCRIPTOR of_level = *d;
      of_level.Width = s.width, of_level.Height = s.height, of_level.Depth = s.depth;
      stored.level_arrays.push_back(level);
      store(arrays[level], of_level);
    }
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuMipmappedArrayGetLevel) = [this](CUarray* level, CUmipmappedArray a, unsigned n) {
    const auto it = arrays.find(a);
    if (it == arrays.end() || n >= it->second.levels) {
      violation("cuMipmappedArrayGetLevel", "a foreign array, or a level that it has not");
      return CUDA_ERROR_INVALID_VALUE;
    }
    *level = it->second.level_arrays[n];
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuMipmappedArrayDestroy) = [this](CUmipmappedArray a) {
    const auto it = arrays.find(a);
    if (it == arrays.end()) return violation("cuMipmappedArrayDestroy", "a foreign array"), status;
    for (const CUarray level : it->second.level_arrays) arrays.erase(level);
    arrays.erase(it);
    return status;
  };
  SLUICE_ON(cuMemcpy3DAsync_v2) = [this](const CUDA_MEMCPY3D* p, CUstream stream) {
    const char* f = "cuMemcpy3DAsync_v2";
    check(f, stream);
    if (p->WidthInBytes * p->Height * p->Depth > kMostStored) return status;
    // Of memory a driver may use both, also where there is but one row or slice.
    const auto apart = [&](CUmemorytype type, uint64_t pitch, uint64_t height) {
      return type == CU_MEMORYTYPE_ARRAY || (pitch >= p->WidthInBytes && pitch <= kWindow &&
                                             height >= p->Height && height <= kWindow);
    };
    if (!apart(p->srcMemoryType, p->srcPitch, p->srcHeight) ||
        !apart(p->dstMemoryType, p->dstPitch, p->dstHeight))
      return violation(f, "a distance of rows or slices that makes no sense"), status;
    // One row of each end, or nullptr after a violation.
    std::vector<std::byte> between(p->WidthInBytes);
    const auto in_array = [&](CUarray a, uint64_t x, uint64_t y, uint64_t z) -> std::byte* {
      const auto it = arrays.find(a);
      if (it == arrays.end()) return violation(f, "a foreign array"), nullptr;
      StoredArray& s = it->second;
      if (x + p->WidthInBytes > s.row_bytes || y >= s.rows || z >= s.slices)
        return violation(f, "a place outside the array"), nullptr;
      return s.bytes.empty() ? nullptr : s.at(x, y, z);
    };
    for (uint64_t z = 0; z < p->Depth; ++z) {
      for (uint64_t y = 0; y < p->Height; ++y) {
        const uint64_t from_memory =
            ((p->srcZ + z) * p->srcHeight + p->srcY + y) * p->srcPitch + p->srcXInBytes;
        const uint64_t to_memory =
            ((p->dstZ + z) * p->dstHeight + p->dstY + y) * p->dstPitch + p->dstXInBytes;
        if (p->srcMemoryType == CU_MEMORYTYPE_ARRAY) {
          const std::byte* at = in_array(p->srcArray, p->srcXInBytes, p->srcY + y, p->srcZ + z);
          if (!at) return status;
          std::copy_n(at, between.size(), between.begin());
        } else if (p->srcMemoryType == CU_MEMORYTYPE_HOST) {
          const auto* at = static_cast<const std::byte*>(p->srcHost) + from_memory;
          if (!host_range(at, between.size())) return violation(f, "foreign host memory"), status;
          std::copy_n(at, between.size(), between.begin());
        } else {
          if (!device_range(p->srcDevice + from_memory, between.size()))
            return violation(f, "foreign device memory"), status;
          between = memory.read(p->srcDevice + from_memory, between.size());
        }
        if (p->dstMemoryType == CU_MEMORYTYPE_ARRAY) {
          std::byte* at = in_array(p->dstArray, p->dstXInBytes, p->dstY + y, p->dstZ + z);
          if (!at) return status;
          std::copy(between.begin(), between.end(), at);
        } else if (p->dstMemoryType == CU_MEMORYTYPE_HOST) {
          auto* at = static_cast<std::byte*>(p->dstHost) + to_memory;
          if (!host_range(at, between.size())) return violation(f, "foreign host memory"), status;
          std::copy(between.begin(), between.end(), at);
        } else {
          if (!device_range(p->dstDevice + to_memory, between.size()))
            return violation(f, "foreign device memory"), status;
          memory.write(p->dstDevice + to_memory, between.data(), between.size());
        }
      }
    }
    return status;
  };
  const auto resource = [this](const char* f, const CUDA_RESOURCE_DESC& r) {
    const bool array = r.resType == CU_RESOURCE_TYPE_ARRAY;
    if (array || r.resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
      const void* at = array ? static_cast<const void*>(r.res.array.hArray)
                             : static_cast<const void*>(r.res.mipmap.hMipmappedArray);
      if (!arrays.contains(at)) violation(f, "a foreign array");
    } else if (r.resType == CU_RESOURCE_TYPE_LINEAR) {
      if (!device_range(r.res.linear.devPtr, r.res.linear.sizeInBytes))
        violation(f, "foreign device memory");
    } else {
      const auto& p = r.res.pitch2D;
      const uint64_t row =
          p.width * wire::element_bytes(static_cast<uint32_t>(p.format), p.numChannels);
      if (!device_range(p.devPtr, p.pitchInBytes * (p.height - 1) + row))
        violation(f, "foreign device memory");
    }
  };
  SLUICE_ON(cuTexObjectCreate) = [=, this](CUtexObject* o, const CUDA_RESOURCE_DESC* r,
                                           const CUDA_TEXTURE_DESC*,
                                           const CUDA_RESOURCE_VIEW_DESC*) {
    resource("cuTexObjectCreate", *r);
    if (status == CUDA_SUCCESS) textures.insert(*o = textures.size() + 1);
    return status;
  };
  SLUICE_ON(cuTexObjectDestroy) = [this](CUtexObject o) {
    if (!textures.erase(o)) violation("cuTexObjectDestroy", "a foreign texture");
    return status;
  };
  SLUICE_ON(cuSurfObjectCreate) = [=, this](CUsurfObject* o, const CUDA_RESOURCE_DESC* r) {
    resource("cuSurfObjectCreate", *r);
    if (status == CUDA_SUCCESS) surfaces.insert(*o = surfaces.size() + 1);
    return status;
  };
  SLUICE_ON(cuSurfObjectDestroy) = [this](CUsurfObject o) {
    if (!surfaces.erase(o)) violation("cuSurfObjectDestroy", "a foreign surface");
    return status;
  };
}

}  // namespace sluice::test
