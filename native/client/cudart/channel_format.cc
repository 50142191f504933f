// SPDX-License-Identifier: Apache-2.0
#include "client/cudart/channel_format.h"

namespace sluice::cudart {

namespace {

struct ChannelFormat {
  CUarray_format format;
  int bits;
  cudaChannelFormatKind kind;
  unsigned channels;  // 0: as many as there are
  bool integer;       // read as a number unless the texture says otherwise
};

constexpr ChannelFormat kFormats[] = {
    {CU_AD_FORMAT_UNSIGNED_INT8, 8, cudaChannelFormatKindUnsigned, 0, true},
    {CU_AD_FORMAT_UNSIGNED_INT16, 16, cudaChannelFormatKindUnsigned, 0, true},
    {CU_AD_FORMAT_UNSIGNED_INT32, 32, cudaChannelFormatKindUnsigned, 0, true},
    {CU_AD_FORMAT_SIGNED_INT8, 8, cudaChannelFormatKindSigned, 0, true},
    {CU_AD_FORMAT_SIGNED_INT16, 16, cudaChannelFormatKindSigned, 0, true},
    {CU_AD_FORMAT_SIGNED_INT32, 32, cudaChannelFormatKindSigned, 0, true},
    {CU_AD_FORMAT_HALF, 16, cudaChannelFormatKindFloat, 0, false},
    {CU_AD_FORMAT_FLOAT, 32, cudaChannelFormatKindFloat, 0, false},
    {CU_AD_FORMAT_UNORM_INT8X1, 8, cudaChannelFormatKindUnsignedNormalized8X1, 1, false},
    {CU_AD_FORMAT_UNORM_INT8X2, 8, cudaChannelFormatKindUnsignedNormalized8X2, 2, false},
    {CU_AD_FORMAT_UNORM_INT8X4, 8, cudaChannelFormatKindUnsignedNormalized8X4, 4, false},
    {CU_AD_FORMAT_UNORM_INT16X1, 16, cudaChannelFormatKindUnsignedNormalized16X1, 1, false},
    {CU_AD_FORMAT_UNORM_INT16X2, 16, cudaChannelFormatKindUnsignedNormalized16X2, 2, false},
    {CU_AD_FORMAT_UNORM_INT16X4, 16, cudaChannelFormatKindUnsignedNormalized16X4, 4, false},
    {CU_AD_FORMAT_SNORM_INT8X1, 8, cudaChannelFormatKindSignedNormalized8X1, 1, false},
    {CU_AD_FORMAT_SNORM_INT8X2, 8, cudaChannelFormatKindSignedNormalized8X2, 2, false},
    {CU_AD_FORMAT_SNORM_INT8X4, 8, cudaChannelFormatKindSignedNormalized8X4, 4, false},
    {CU_AD_FORMAT_SNORM_INT16X1, 16, cudaChannelFormatKindSignedNormalized16X1, 1, false},
    {CU_AD_FORMAT_SNORM_INT16X2, 16, cudaChannelFormatKindSignedNormalized16X2, 2, false},
    {CU_AD_FORMAT_SNORM_INT16X4, 16, cudaChannelFormatKindSignedNormalized16X4, 4, false},
};

const ChannelFormat* find(CUarray_format format) {
  for (const ChannelFormat& candidate : kFormats) {
    if (candidate.format == format) return &candidate;
  }
  return nullptr;
}

}  // namespace

cudaError_t to_native(const cudaChannelFormatDesc& desc, CUDA_ARRAY3D_DESCRIPTOR* native) {
  const int bits[] = {desc.x, desc.y, desc.z, desc.w};
  unsigned channels = 0;
  while (channels < 4 && bits[channels] != 0) ++channels;
  for (unsigned i = 0; i < 4; ++i) {
    if (bits[i] != (i < channels ? desc.x : 0)) return cudaErrorInvalidChannelDescriptor;
  }
  if (channels == 0 || channels == 3) return cudaErrorInvalidChannelDescriptor;
  for (const ChannelFormat& format : kFormats) {
    if (format.bits == desc.x && format.kind == desc.f &&
        (format.channels == 0 || format.channels == channels)) {
      native->Format = format.format;
      native->NumChannels = channels;
      return cudaSuccess;
    }
  }
  return cudaErrorInvalidChannelDescriptor;
}

cudaError_t from_native(const CUDA_ARRAY3D_DESCRIPTOR& native, cudaChannelFormatDesc* desc) {
  const ChannelFormat* format = find(native.Format);
  if (format == nullptr) return cudaErrorInvalidChannelDescriptor;
  const auto bits = [&](unsigned channel) {
    return channel < native.NumChannels ? format->bits : 0;
  };
  *desc = {bits(0), bits(1), bits(2), bits(3), format->kind};
  return cudaSuccess;
}

size_t channel_size(CUarray_format format) {
  const ChannelFormat* known = find(format);
  return known == nullptr ? 0 : static_cast<size_t>(known->bits) / 8;
}

bool is_integer(CUarray_format format) {
  const ChannelFormat* known = find(format);
  return known != nullptr && known->integer;
}

}  // namespace sluice::cudart
