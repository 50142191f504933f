// SPDX-License-Identifier: Apache-2.0
// NCCL: configurations of odd sizes, and communicators destroyed twice.
#include "client/objects/device.h"
#include "tests/gpu/hostile_libraries.h"
#include "wire/bodies/nccl.h"

extern "C" {
int32_t ncclGetUniqueId(void* id);
}

namespace hostile {

namespace {

// A communicator of one rank, with `bytes` of a configuration.
std::vector<uint64_t> making(uint64_t made, uint32_t bytes, uint64_t filling) {
  std::vector<uint64_t> unique(wire::kNcclIdBytes / 8);
  need(ncclGetUniqueId(unique.data()), "ncclGetUniqueId");
  wire::NcclMake head{made, 0, wire::NcclHow::kRank, 1, 0, 0, 0, 0, 1, bytes, 0, 0};
  std::vector<uint64_t> body((sizeof head + 7) / 8);
  std::memcpy(body.data(), &head, sizeof head);
  body.insert(body.end(), unique.begin(), unique.end());
  std::vector<uint64_t> config((bytes + 7) / 8, filling);
  if (bytes >= 24)
    config[0] = bytes, config[1] = 0xcafebeef | 22707ull << 32,
    config[2] = 1ull | 0x80000000ull << 32;
  body.insert(body.end(), config.begin(), config.end());
  return body;
}

Outcome group(const std::vector<std::pair<uint16_t, std::vector<uint64_t>>>& calls) {
  std::vector<uint64_t> words{calls.size() | (calls.size() > 1 ? 1ull << 32 : 0)};
  for (const auto& [function, body] : calls) {
    words.push_back(function | uint64_t{world().device->index + 1} << 32);
    words.push_back(body.size() * 8);
    words.insert(words.end(), body.begin(), body.end());
  }
  return send(ids::id_sluiceNcclGroup, words);
}

uint64_t communicator() {
  const uint64_t made = mint();
  need(group({{0, making(made, 32, 0x8000000080000000)}}).status, "a communicator");
  return made;
}

int configuration(uint32_t bytes) {
  return say(group({{0, making(mint(), bytes, 0x4141414141414141)}}));
}
int configuration_39() { return configuration(39); }
int configuration_55() { return configuration(55); }

int honest_reduction() {
  const uint64_t comm = communicator(), at = world().put<float>(0, {5, 6});
  need(group({{ids::id_ncclAllReduce, {at, at + 256, 2, 7, 0, comm, 0}}}).status, "a reduction");
  cuCtxSynchronize();
  float got[2];
  cuMemcpyDtoH_v2(got, at + 256, sizeof got);
  need(group({{ids::id_ncclCommDestroy, {comm}}}).status, "its end");
  return ok(got[1] == 6, "the sum");
}

int destroyed_twice() {
  const uint64_t comm = communicator();
  return say(group({{ids::id_ncclCommDestroy, {comm}}, {ids::id_ncclCommDestroy, {comm}}}));
}

}  // namespace

Cases collective_cases() {
#define SLUICE_CASE(name) {#name, name}
  return {
      SLUICE_CASE(honest_reduction),
      SLUICE_CASE(configuration_39),
      SLUICE_CASE(configuration_55),
      SLUICE_CASE(destroyed_twice),
  };
#undef SLUICE_CASE
}

}  // namespace hostile
