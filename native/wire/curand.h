// SPDX-License-Identifier: Apache-2.0
// What of cuRAND writes to host memory, hands out tables of the library's own or makes objects that
// kernels read. Commands of their own; all are answered.
#pragma once

#include <cstdint>

namespace sluice::wire {

// What a generator in host memory makes. The numbers go into device memory of the client's, from
// where it copies them: so much memory is the vGPU's, and the way back is the one of every copy.
enum class CurandMakes : uint32_t {
  kBits,       // curandGenerate
  kLongLongs,  // curandGenerateLongLong
  kUniform,    // curandGenerateUniform …
  kUniformDouble,
  kNormal,  // a: mean, b: standard deviation
  kNormalDouble,
  kLogNormal,
  kLogNormalDouble,
  kPoisson,        // a: lambda
  kPoissonMethod,  // and `method`
  kSeeds,          // curandGenerateSeeds: nothing is written
};
inline constexpr uint32_t kCurandBytes[] = {4, 8, 4, 8, 4, 8, 4, 8, 4, 4, 0};

struct CurandHost {
  uint64_t generator;  // id
  uint64_t address, count;
  double a, b;
  CurandMakes makes;
  uint32_t method;
};
// Answer: i64 status.
inline constexpr uint64_t kMaxCurandBytes = 4ull << 30;

// Tables: 0, 1: direction vectors of 32 and 64 bits; 2, 3: scramble constants. Answer: i64 status,
// then `bytes` of the table from `offset` on.
struct CurandTable {
  uint32_t which;
  uint32_t set;  // curandDirectionVectorSet_t
  uint64_t offset, bytes;
};
inline constexpr uint64_t kCurandDimensions = 20000;
inline constexpr uint64_t kCurandTableBytes[] = {kCurandDimensions * 32 * 4,
                                                 kCurandDimensions * 64 * 8, kCurandDimensions * 4,
                                                 kCurandDimensions * 8};

// A distribution is device memory of the library's: its handle is an address that kernels are
// given.
struct CurandDistribution {
  double lambda;
  uint64_t destroy;  // 0: make one
};
struct CurandDistributionReply {
  int64_t status;
  uint64_t address;
};

}  // namespace sluice::wire
