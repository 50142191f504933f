// SPDX-License-Identifier: Apache-2.0
// What of cuRAND no table says: generators that compute in host memory, tables of the library's
// own, distributions that kernels read. Generators on the device go by the table.
#include "client/library/curand.h"

#include <mutex>
#include <set>

namespace {

using sluice::wire::CurandHost;
using sluice::wire::CurandMakes;

constexpr int32_t kOutOfRange = 104;

struct HostGenerators {
  std::mutex mutex;
  std::set<uint64_t> all;
};
HostGenerators& host_generators() {
  static HostGenerators* h = new HostGenerators;
  return *h;
}

bool is_host(void* generator) {
  HostGenerators& h = host_generators();
  std::lock_guard lock(h.mutex);
  return h.all.contains(reinterpret_cast<uint64_t>(generator));
}

int32_t make(void* generator, CurandMakes makes, void* out, uint64_t n, double a = 0, double b = 0,
             uint32_t method = 0) {
  const CurandHost call{reinterpret_cast<uint64_t>(generator), 0, n, a, b, makes, method};
  return sluice_library_curand_host(&call, out);
}

}  // namespace

extern "C" {
int32_t sluice_forward_curandCreateGeneratorHost(void*, int32_t);
int32_t sluice_forward_curandDestroyGenerator(void*);
int32_t sluice_forward_curandGenerate(void*, void*, uint64_t);
int32_t sluice_forward_curandGenerateLongLong(void*, void*, uint64_t);
int32_t sluice_forward_curandGenerateUniform(void*, void*, uint64_t);
int32_t sluice_forward_curandGenerateUniformDouble(void*, void*, uint64_t);
int32_t sluice_forward_curandGenerateNormal(void*, void*, uint64_t, float, float);
int32_t sluice_forward_curandGenerateNormalDouble(void*, void*, uint64_t, double, double);
int32_t sluice_forward_curandGenerateLogNormal(void*, void*, uint64_t, float, float);
int32_t sluice_forward_curandGenerateLogNormalDouble(void*, void*, uint64_t, double, double);
int32_t sluice_forward_curandGeneratePoisson(void*, void*, uint64_t, double);
int32_t sluice_forward_curandGeneratePoissonMethod(void*, void*, uint64_t, double, int32_t);
int32_t sluice_forward_curandGenerateSeeds(void*);
}

SLUICE_PUBLIC int32_t curandCreateGeneratorHost(void* generator, int32_t type) {
  const int32_t status = sluice_forward_curandCreateGeneratorHost(generator, type);
  if (status != 0) return status;
  HostGenerators& h = host_generators();
  std::lock_guard lock(h.mutex);
  h.all.insert(*static_cast<uint64_t*>(generator));
  return 0;
}

SLUICE_PUBLIC int32_t curandDestroyGenerator(void* generator) {
  {
    HostGenerators& h = host_generators();
    std::lock_guard lock(h.mutex);
    h.all.erase(reinterpret_cast<uint64_t>(generator));
  }
  return sluice_forward_curandDestroyGenerator(generator);
}

#define SLUICE_GENERATE(name, makes)                                        \
  SLUICE_PUBLIC int32_t name(void* generator, void* out, uint64_t n) {      \
    return is_host(generator) ? make(generator, CurandMakes::makes, out, n) \
                              : sluice_forward_##name(generator, out, n);   \
  }
#define SLUICE_GENERATE_NORMAL(name, makes, T)                                                    \
  SLUICE_PUBLIC int32_t name(void* generator, void* out, uint64_t n, T a, T b) {                  \
    return is_host(generator) ? make(generator, CurandMakes::makes, out, n, double{a}, double{b}) \
                              : sluice_forward_##name(generator, out, n, a, b);                   \
  }
SLUICE_GENERATE(curandGenerate, kBits)
SLUICE_GENERATE(curandGenerateLongLong, kLongLongs)
SLUICE_GENERATE(curandGenerateUniform, kUniform)
SLUICE_GENERATE(curandGenerateUniformDouble, kUniformDouble)
SLUICE_GENERATE_NORMAL(curandGenerateNormal, kNormal, float)
SLUICE_GENERATE_NORMAL(curandGenerateNormalDouble, kNormalDouble, double)
SLUICE_GENERATE_NORMAL(curandGenerateLogNormal, kLogNormal, float)
SLUICE_GENERATE_NORMAL(curandGenerateLogNormalDouble, kLogNormalDouble, double)

SLUICE_PUBLIC int32_t curandGeneratePoisson(void* generator, void* out, uint64_t n, double lambda) {
  return is_host(generator) ? make(generator, CurandMakes::kPoisson, out, n, lambda)
                            : sluice_forward_curandGeneratePoisson(generator, out, n, lambda);
}
SLUICE_PUBLIC int32_t curandGeneratePoissonMethod(void* generator, void* out, uint64_t n,
                                                  double lambda, int32_t method) {
  return is_host(generator)
             ? make(generator, CurandMakes::kPoissonMethod, out, n, lambda, 0,
                    static_cast<uint32_t>(method))
             : sluice_forward_curandGeneratePoissonMethod(generator, out, n, lambda, method);
}
SLUICE_PUBLIC int32_t curandGenerateSeeds(void* generator) {
  return is_host(generator) ? make(generator, CurandMakes::kSeeds, nullptr, 0)
                            : sluice_forward_curandGenerateSeeds(generator);
}

SLUICE_PUBLIC int32_t curandGetDirectionVectors32(void** vectors, int32_t set) {
  return sluice_library_curand_table(0, static_cast<uint32_t>(set), vectors);
}
SLUICE_PUBLIC int32_t curandGetDirectionVectors64(void** vectors, int32_t set) {
  return sluice_library_curand_table(1, static_cast<uint32_t>(set), vectors);
}
SLUICE_PUBLIC int32_t curandGetScrambleConstants32(void** constants) {
  return sluice_library_curand_table(2, 0, constants);
}
SLUICE_PUBLIC int32_t curandGetScrambleConstants64(void** constants) {
  return sluice_library_curand_table(3, 0, constants);
}

SLUICE_PUBLIC int32_t curandCreatePoissonDistribution(double lambda, uint64_t* distribution) {
  if (!distribution) return kOutOfRange;
  const sluice::wire::CurandDistribution call{lambda, 0};
  return sluice_library_curand_distribution(&call, distribution);
}
SLUICE_PUBLIC int32_t curandDestroyDistribution(uint64_t distribution) {
  if (!distribution) return kOutOfRange;
  const sluice::wire::CurandDistribution call{0, distribution};
  return sluice_library_curand_distribution(&call, nullptr);
}
