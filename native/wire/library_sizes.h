// SPDX-License-Identifier: Apache-2.0
// How many elements and bytes a library function's parameter has, computed by client and worker
// alike from the words of the other parameters.
#pragma once

#include <algorithm>

#include "wire/library_spec.h"

namespace sluice::wire {

// Bytes of one value of a cudaDataType; 0 for an unknown one.
constexpr uint32_t bytes_of_data_type(uint64_t type) {
  switch (static_cast<uint32_t>(type)) {
    case 3:
    case 8:
    case 28:
    case 29:
    case 30:
    case 31:
    case 32:  // R_8I, R_8U, FP8s
      return 1;
    case 2:
    case 14:
    case 20:
    case 22:
    case 7:
    case 9:  // R_16F, R_16BF, R_16I, R_16U, C_8I, C_8U
      return 2;
    case 0:
    case 6:
    case 15:
    case 10:
    case 12:
    case 21:
    case 23:  // R_32F, C_16F, C_16BF, R_32I …
      return 4;
    case 1:
    case 4:
    case 11:
    case 13:
    case 24:
    case 26:  // R_64F, C_32F, C_32I, C_32U, R_64I, R_64U
      return 8;
    case 5:
    case 25:
    case 27:  // C_64F, C_64I, C_64U
      return 16;
    default:
      return 0;
  }
}

constexpr bool is_complex(uint64_t type) {
  switch (static_cast<uint32_t>(type)) {
    case 4:
    case 5:
    case 6:
    case 7:
    case 9:
    case 11:
    case 13:
    case 15:
    case 25:
    case 27:
      return true;
    default:
      return false;
  }
}

// Bytes of cuSPARSE's factors for vectors of a type: it computes with 16-bit numbers as floats.
constexpr uint32_t bytes_of_factor(uint64_t type) {
  const uint32_t n = bytes_of_data_type(type);
  return std::max<uint32_t>(n, n == 0 ? 0 : is_complex(type) ? 8 : 4);
}

// Bytes of one element of a cudnnDataType_t, with all that is packed in it.
constexpr uint32_t bytes_of_cudnn_type(uint64_t type) {
  switch (static_cast<uint32_t>(type)) {
    case 8:  // INT8x32
      return 32;
    case 21:  // COMPLEX_FP64
      return 16;
    case 1:
    case 10:
    case 20:  // DOUBLE, INT64, COMPLEX_FP32
      return 8;
    case 2:
    case 9:  // HALF, BFLOAT16
      return 2;
    case 3:
    case 6:
    case 11:
    case 12:
    case 13:
    case 15:
    case 16:
    case 17:
    case 18:  // INT8, UINT8, BOOLEAN, FP8s, and what is packed into bytes
      return 1;
    default:
      return 4;
  }
}

// Bytes of one element of an ncclDataType_t; 0 for an unknown one.
constexpr uint32_t bytes_of_nccl_type(uint64_t type) {
  constexpr uint32_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return static_cast<uint32_t>(type) < 12 ? kBytes[static_cast<uint32_t>(type)] : 0;
}

// Bytes of the scalars that go with a cublasComputeType_t (cuBLAS's documentation of cublasGemmEx).
constexpr uint32_t bytes_of_compute_type(uint64_t compute, uint64_t matrix) {
  uint32_t real = 4;                             // every flavour of 32-bit, integers too
  if (compute == 64 || compute == 65) real = 2;  // 16F
  if (compute == 70 || compute == 71 || compute == 79) real = 8;  // 64F
  return is_complex(matrix) ? 2 * real : real;
}

inline uint64_t elements(const FunctionSpec& f, const ParamSpec& p, const uint64_t* words) {
  uint64_t n = p.times;
  for (const int8_t by : p.count) {
    if (by < 0) continue;
    uint64_t count = words[by];
    if (f.param[by].bytes == 4) {
      const auto value = static_cast<int32_t>(count);
      count = value < 0 ? 0 : static_cast<uint64_t>(value);
    }
    // Never overflows; what is beyond the limit stays beyond it.
    n = std::min<uint64_t>(n * std::min<uint64_t>(count, kMaxCarried + 1), kMaxCarried + 1);
  }
  return std::min<uint64_t>(n + p.plus, kMaxCarried + 1);
}

// What the table says of the attribute that a kAttribute is for; nullptr: it may not be set.
inline const AttributeSpec* find_attribute(const ParamSpec& p, const uint64_t* words) {
  for (const AttributeSpec* a = p.attributes; a && a->bytes; ++a)
    if (a->name == static_cast<uint32_t>(words[p.by])) return a;
  return nullptr;
}

// Whether what a kAttribute carries is a device address: some attributes' values are.
inline bool carries_address(const ParamSpec& p, const uint64_t* words) {
  const AttributeSpec* a = p.kind == ParamKind::kAttribute ? find_attribute(p, words) : nullptr;
  return a && a->address;
}

// What the words alone say; 0 when they do not.
inline uint32_t scalar_bytes(const ParamSpec& p, const uint64_t* words) {
  switch (p.size) {
    case ScalarSize::kFixed:
      return p.bytes;
    case ScalarSize::kDataType:
      return bytes_of_data_type(words[p.by]);
    case ScalarSize::kComputeType:
      return bytes_of_compute_type(words[p.by], words[p.by2]);
    case ScalarSize::kNcclType:
      return bytes_of_nccl_type(words[p.by]);
    case ScalarSize::kDoubleOrFloat:
    case ScalarSize::kCudnnType:
    case ScalarSize::kObjectType:
    case ScalarSize::kVectorType:
      return 0;
  }
  return 0;
}

// Bytes of one of the elements that a parameter counts; 0 where its type is unknown.
inline uint32_t element_bytes(const ParamSpec& p, const uint64_t* words) {
  return p.size == ScalarSize::kFixed ? p.bytes : scalar_bytes(p, words);
}

}  // namespace sluice::wire
