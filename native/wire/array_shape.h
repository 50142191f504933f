// SPDX-License-Identifier: Apache-2.0
// What a CUDA array looks like and what it is charged: the rules that client and worker share, so
// that both keep the same accounts (rule 6). How the driver lays an array out is its own affair;
// array_bytes() is what it takes at most: rows in whole 64-byte pieces, and rows and slices in
// whole blocks of the largest tiles.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "abi/cuda_driver.h"

namespace sluice::wire {

struct ArrayShape {
  uint64_t width = 0, height = 0, depth = 0;  // as CUDA_ARRAY3D_DESCRIPTOR has them
  uint32_t format = 0, channels = 0, flags = 0;
  uint32_t levels = 1;  // of a mipmapped array
};

inline constexpr uint64_t kMaxArrayWidth = 1 << 27, kMaxArrayHeight = 1 << 20,
                          kMaxArrayDepth = 1 << 20;
inline constexpr uint32_t kMaxArrayLevels = 32;
// What no client of ours asks for: sparse arrays, arrays mapped later, video surfaces.
inline constexpr uint32_t kArrayFlags = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST |
                                        CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER |
                                        CUDA_ARRAY3D_DEPTH_TEXTURE | CUDA_ARRAY3D_COLOR_ATTACHMENT;

// Bytes of one channel; 0 for formats whose elements are no rows of channels (block-compressed,
// planar).
constexpr uint32_t channel_bytes(uint32_t format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT8X4:
    case CU_AD_FORMAT_SNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X4:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X4:
      return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4;
    default:
      return 0;
  }
}

constexpr uint32_t element_bytes(uint32_t format, uint32_t channels) {
  return channels == 1 || channels == 2 || channels == 4 ? channel_bytes(format) * channels : 0;
}

// What copies may name of one level.
struct ArrayExtent {
  uint64_t row_bytes = 0, rows = 0, slices = 0;
};

constexpr ArrayShape level_of(ArrayShape a, uint32_t level) {
  const auto halved = [&](uint64_t n) { return n == 0 ? 0 : std::max<uint64_t>(1, n >> level); };
  const bool layers = a.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
  a.width = halved(a.width);
  a.height = halved(a.height);
  if (!layers) a.depth = halved(a.depth);
  a.levels = 1;
  return a;
}

constexpr ArrayExtent extent_of(const ArrayShape& a) {
  return {a.width * element_bytes(a.format, a.channels), std::max<uint64_t>(1, a.height),
          std::max<uint64_t>(1, a.depth)};
}

constexpr bool sensible(const ArrayShape& a) {
  return a.width > 0 && a.width <= kMaxArrayWidth && a.height <= kMaxArrayHeight &&
         a.depth <= kMaxArrayDepth && a.levels > 0 && a.levels <= kMaxArrayLevels &&
         (a.flags & ~kArrayFlags) == 0 && element_bytes(a.format, a.channels) != 0;
}

// Of a sensible array; ~0 when that is more than a number holds.
constexpr uint64_t array_bytes(const ArrayShape& a) {
  // Small arrays have small tiles.
  const auto tiled = [](uint64_t n, uint64_t most) {
    const uint64_t tile = std::min(std::bit_ceil(n), most);
    return (n + tile - 1) / tile * tile;
  };
  const bool layers = a.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
  uint64_t all = 0;
  for (uint32_t l = 0; l < a.levels; ++l) {
    const ArrayExtent e = extent_of(level_of(a, l));
    const uint64_t row = (e.row_bytes + 63) / 64 * 64;
    const uint64_t rows = e.rows == 1 ? 1 : std::max<uint64_t>(8, tiled(e.rows, 128));
    const uint64_t slices = layers ? e.slices : tiled(e.slices, 32);
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(row, rows, &bytes) ||
        __builtin_mul_overflow(bytes, slices, &bytes) || __builtin_add_overflow(all, bytes, &all))
      return ~uint64_t{0};
  }
  return all;
}

// What the arrays of one vGPU are charged. Large ones whole slabs of their own; small ones share
// slabs, and what the small ones took at their most is given back when the last of them has gone,
// as nobody knows how the driver packs them.
class ArrayCharges {
 public:
  static constexpr uint64_t kSlab = 2ull << 20, kPiece = 64ull << 10, kSmall = 1ull << 20;

  // How much more is charged with one more array of this size.
  uint64_t needed(uint64_t bytes) const {
    if (bytes > kSmall) return up(bytes, kSlab);
    const uint64_t wanted = up(small_bytes_ + up(bytes, kPiece), kSlab);
    return wanted > small_charged_ ? wanted - small_charged_ : 0;
  }
  void add(uint64_t bytes) {
    if (bytes > kSmall) return;
    small_charged_ += needed(bytes);
    small_bytes_ += up(bytes, kPiece);
    ++small_count_;
  }
  // How much less without it.
  uint64_t remove(uint64_t bytes) {
    if (bytes > kSmall) return up(bytes, kSlab);
    small_bytes_ -= up(bytes, kPiece);
    if (--small_count_ > 0) return 0;
    const uint64_t less = small_charged_;
    small_charged_ = 0;
    return less;
  }

 private:
  static constexpr uint64_t up(uint64_t n, uint64_t to) {
    return n > ~uint64_t{0} - to ? ~uint64_t{0} / to * to
                                 : (std::max<uint64_t>(n, 1) + to - 1) / to * to;
  }
  uint64_t small_count_ = 0, small_bytes_ = 0, small_charged_ = 0;
};

}  // namespace sluice::wire
