// SPDX-License-Identifier: Apache-2.0
// cuDNN's backend functions in the stand-in of cuDNN: they touch all memory that they are given,
// succeed, and say of a descriptor what follows from what it was made of. One that has the
// attribute kRefused is not finalized, with the status that is its value. Compiled into it beside
// the generated functions.
#include <atomic>
#include <map>
#include <mutex>

#include "client/library/call.h"
#include "wire/cudnn_backend.h"

namespace {

std::atomic<uint64_t> g_made{0};
std::atomic<int64_t> g_got{0};  // calls that gave descriptors

uint64_t bytes(int32_t type, int64_t count) {
  return sluice::wire::backend_element_bytes(static_cast<uint32_t>(type)) *
         static_cast<uint64_t>(count);
}

// Reads everything, so that a sanitizer sees what is not there.
uint8_t sum(const void* at, uint64_t n) {
  uint8_t all = 0;
  for (uint64_t i = 0; i < n; ++i) all ^= static_cast<const uint8_t*>(at)[i];
  return all;
}

volatile uint8_t g_sum;

constexpr int64_t kDescriptors = 2;
constexpr int32_t kRefused = 9999;
std::mutex g_mutex;

// What each descriptor is, made of its kind, its attributes and where it came from.
std::map<void*, uint64_t>& contents() {
  static std::map<void*, uint64_t> all;
  return all;
}

// Of those that have one: the status that they get.
std::map<void*, int32_t>& refusals() {
  static std::map<void*, int32_t> all;
  return all;
}

uint64_t mix(uint64_t a, uint64_t b) {
  const uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15ull)) * 0xff51afd7ed558ccdull;
  return x ^ x >> 29;
}

}  // namespace

SLUICE_PUBLIC int32_t cudnnBackendCreateDescriptor(int32_t type, void** descriptor) {
  *descriptor = reinterpret_cast<void*>((++g_made) * 64);
  std::lock_guard lock(g_mutex);
  contents()[*descriptor] = mix(1, static_cast<uint64_t>(type));
  return 0;
}
SLUICE_PUBLIC int32_t cudnnBackendDestroyDescriptor(void* descriptor) {
  std::lock_guard lock(g_mutex);
  contents().erase(descriptor);
  refusals().erase(descriptor);
  return 0;
}
SLUICE_PUBLIC int32_t cudnnBackendFinalize(void* descriptor) {
  std::lock_guard lock(g_mutex);
  const auto it = refusals().find(descriptor);
  return it == refusals().end() ? 0 : it->second;
}
SLUICE_PUBLIC int32_t cudnnBackendSetAttribute(void* descriptor, int32_t name, int32_t type,
                                               int64_t count, const void* elements) {
  const uint8_t all = sum(elements, bytes(type, count));
  g_sum = all;
  std::lock_guard lock(g_mutex);
  if (name == kRefused) refusals()[descriptor] = *static_cast<const int32_t*>(elements);
  uint64_t& content = contents()[descriptor];
  content = mix(mix(content, static_cast<uint64_t>(name)), all);
  return 0;
}
SLUICE_PUBLIC int32_t cudnnBackendGetAttribute(void* descriptor, int32_t name, int32_t type,
                                               int64_t requested, int64_t* count, void* elements) {
  std::lock_guard lock(g_mutex);
  const uint64_t asked = mix(contents()[descriptor], static_cast<uint64_t>(name));
  if (type != static_cast<int32_t>(sluice::wire::kBackendDescriptor)) {
    // More than there was room for, as cuDNN does when asked how many there are.
    *count = requested + 1;
    auto* at = static_cast<uint8_t*>(elements);
    for (uint64_t i = 0; at && i < bytes(type, requested); ++i)
      at[i] = static_cast<uint8_t>(mix(asked, i));
    return 0;
  }
  // Two of them, whatever is asked for.
  if (elements) ++g_got;
  *count = kDescriptors;
  for (int64_t i = 0; elements && i < requested && i < kDescriptors; ++i)
    contents()[static_cast<void**>(elements)[i]] = mix(asked, static_cast<uint64_t>(i));
  return 0;
}
// How many descriptors there are.
SLUICE_PUBLIC int64_t fake_cudnn_descriptors() {
  std::lock_guard lock(g_mutex);
  return static_cast<int64_t>(contents().size());
}
SLUICE_PUBLIC int64_t fake_cudnn_got() { return g_got; }
SLUICE_PUBLIC int32_t cudnnBackendExecute(void*, void*, void*) { return 0; }
