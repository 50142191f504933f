// SPDX-License-Identifier: Apache-2.0
// What worker/library/nccl.cc calls beside the table, in the stand-in of NCCL: it touches all
// memory that it is given and succeeds. Compiled into it beside the generated functions.
#include <atomic>
#include <cstring>

#include "client/library/call.h"
#include "wire/bodies/nccl.h"

// Of the process, where it has such: an object that it knows from then on.
extern "C" __attribute__((weak)) uint64_t sluice_fake_object(uint64_t bytes);

namespace {

struct UniqueId {
  uint8_t bytes[sluice::wire::kNcclIdBytes];
};

std::atomic<uint64_t> g_made{0};
volatile uint8_t g_sum;

// Reads everything, so that a sanitizer sees what is not there.
void touch(const void* at, uint64_t n) {
  uint8_t all = 0;
  for (uint64_t i = 0; i < n; ++i) all ^= static_cast<const uint8_t*>(at)[i];
  g_sum = all;
}

void touch_config(const void* config) {
  if (!config) return;
  const auto* at = static_cast<const char*>(config);
  touch(at, sluice::wire::kNcclConfigBytes);
  for (const uint32_t offset : {sluice::wire::kNcclConfigNetName, sluice::wire::kNcclConfigName}) {
    const char* text;
    std::memcpy(&text, at + offset, sizeof text);
    if (text) touch(text, std::strlen(text));
  }
}

int32_t make(void** comm, const void* config) {
  touch_config(config);
  const uint64_t made = sluice_fake_object ? sluice_fake_object(sizeof *comm) : ++g_made * 64;
  *comm = reinterpret_cast<void*>(made);
  return 0;
}

}  // namespace

SLUICE_PUBLIC int32_t ncclGroupStart() { return 0; }
SLUICE_PUBLIC int32_t ncclGroupEnd() { return 0; }
SLUICE_PUBLIC int32_t ncclCommInitRank(void** comm, int, UniqueId id, int) {
  touch(&id, sizeof id);
  return make(comm, nullptr);
}
SLUICE_PUBLIC int32_t ncclCommInitRankConfig(void** comm, int, UniqueId id, int, void* config) {
  touch(&id, sizeof id);
  return make(comm, config);
}
SLUICE_PUBLIC int32_t ncclCommInitRankScalable(void** comm, int, int, int ids, UniqueId* list,
                                               void* config) {
  touch(list, static_cast<uint64_t>(ids) * sizeof *list);
  return make(comm, config);
}
SLUICE_PUBLIC int32_t ncclCommSplit(void*, int, int, void** comm, void* config) {
  return make(comm, config);
}
SLUICE_PUBLIC int32_t ncclCommShrink(void*, int* ranks, int count, void** comm, void* config, int) {
  touch(ranks, static_cast<uint64_t>(count) * sizeof *ranks);
  return make(comm, config);
}
