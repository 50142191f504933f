// SPDX-License-Identifier: Apache-2.0
// cuRAND's tables and distributions in the stand-in of cuRAND: numbers that say which table they
// are of and where in it. Compiled into it beside the generated functions.
#include <numeric>
#include <vector>

#include "client/library/call.h"

namespace {

template <class T, size_t kCount, T kFirst>
void* table() {
  static const auto* all = [] {
    auto* t = new std::vector<T>(kCount);
    std::iota(t->begin(), t->end(), kFirst);
    return t;
  }();
  return const_cast<T*>(all->data());
}

}  // namespace

SLUICE_PUBLIC int32_t curandGetDirectionVectors32(void** vectors, int32_t set) {
  if (set != 101 && set != 102) return 104;
  *vectors = set == 101 ? table<uint32_t, 20000 * 32, 7>() : table<uint32_t, 20000 * 32, 9>();
  return 0;
}
SLUICE_PUBLIC int32_t curandGetDirectionVectors64(void** vectors, int32_t) {
  *vectors = table<uint64_t, 20000 * 64, 11>();
  return 0;
}
SLUICE_PUBLIC int32_t curandGetScrambleConstants32(void** constants) {
  *constants = table<uint32_t, 20000, 13>();
  return 0;
}
SLUICE_PUBLIC int32_t curandGetScrambleConstants64(void** constants) {
  *constants = table<uint64_t, 20000, 17>();
  return 0;
}
SLUICE_PUBLIC int32_t curandCreatePoissonDistribution(double lambda, uint64_t* distribution) {
  if (lambda <= 0) return 104;
  *distribution = 0x700000000000 + static_cast<uint64_t>(lambda * 16);
  return 0;
}
SLUICE_PUBLIC int32_t curandDestroyDistribution(uint64_t) { return 0; }
