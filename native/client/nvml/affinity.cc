// SPDX-License-Identifier: Apache-2.0
// Which processors and memory are near a vGPU: all that the program's machine has, since none of
// them is nearer to a GPU that lies elsewhere. Programs bind themselves and what they start to
// these, and do no harm so.
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <span>

#include "client/nvml/session.h"

using namespace sluice::nvml;

namespace {

// Numbers as the kernel lists them, "0-3,8".
constexpr const char* kProcessors = "/sys/devices/system/cpu/online";
constexpr const char* kMemory = "/sys/devices/system/node/online";

constexpr unsigned kWordBits = std::numeric_limits<unsigned long>::digits;
constexpr unsigned kMostNumbers = 1u << 16;

// Calls `each` for every number of such a list. A machine that tells of none has the first.
template <class Each>
void each_of(const char* list, Each each) {
  std::FILE* const file = std::fopen(list, "re");
  if (!file) return each(0u);
  unsigned first = 0;
  while (std::fscanf(file, "%u", &first) == 1) {
    unsigned last = first;
    int behind = std::fgetc(file);
    if (behind == '-') {
      if (std::fscanf(file, "%u", &last) != 1) break;
      behind = std::fgetc(file);
    }
    for (unsigned n = first; n <= std::min(last, kMostNumbers); ++n) each(n);
    if (behind != ',') break;
  }
  std::fclose(file);
}

// What finds no room in the set is left out, as NVIDIA's does.
void put_bit(std::span<unsigned long> set, unsigned n) {
  if (n / kWordBits < set.size()) set[n / kWordBits] |= 1ul << n % kWordBits;
}

// The numbers of a list, as bits of a set of so many words.
nvmlReturn_t near(nvmlDevice_t device, unsigned int words, unsigned long* set,
                  nvmlAffinityScope_t scope, const char* list) {
  uint32_t index;
  if (const nvmlReturn_t e = enter(device, &index); e != NVML_SUCCESS) return e;
  if (!set || words == 0 ||
      (scope != NVML_AFFINITY_SCOPE_NODE && scope != NVML_AFFINITY_SCOPE_SOCKET))
    return NVML_ERROR_INVALID_ARGUMENT;
  const std::span whole(set, words);
  std::fill(whole.begin(), whole.end(), 0ul);
  each_of(list, [&](unsigned n) { put_bit(whole, n); });
  return NVML_SUCCESS;
}

// The calling thread may run anywhere.
nvmlReturn_t unbind(nvmlDevice_t device) {
  uint32_t index;
  if (const nvmlReturn_t e = enter(device, &index); e != NVML_SUCCESS) return e;
  cpu_set_t all;
  CPU_ZERO(&all);
  each_of(kProcessors, [&](unsigned n) {
    if (n < CPU_SETSIZE) CPU_SET(n, &all);
  });
  return sched_setaffinity(0, sizeof all, &all) == 0 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words,
                                                 unsigned long* set, nvmlAffinityScope_t scope) {
  return near(device, words, set, scope, kProcessors);
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long* set) {
  return near(device, words, set, NVML_AFFINITY_SCOPE_NODE, kProcessors);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words,
                                         unsigned long* set, nvmlAffinityScope_t scope) {
  return near(device, words, set, scope, kMemory);
}

nvmlReturn_t nvmlDeviceSetCpuAffinity(nvmlDevice_t device) { return unbind(device); }

nvmlReturn_t nvmlDeviceClearCpuAffinity(nvmlDevice_t device) { return unbind(device); }

// `count`: the room in `devices`, and then how many there are; without room, only that.
nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int processor, unsigned int* count,
                                         nvmlDevice_t* devices) {
  if (const nvmlReturn_t e = enter(); e != NVML_SUCCESS) return e;
  bool known = false;
  each_of(kProcessors, [&](unsigned n) { known |= n == processor; });
  if (!count || (*count && !devices) || !known) return NVML_ERROR_INVALID_ARGUMENT;
  const unsigned room = devices ? *count : 0;
  *count = device_count();
  for (unsigned i = 0; i < std::min(room, *count); ++i) devices[i] = handle_of(i);
  return NVML_SUCCESS;
}

}  // extern "C"
