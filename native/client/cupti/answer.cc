// SPDX-License-Identifier: Apache-2.0
#include "client/cupti/answer.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "cupti_abi.h"

namespace sluice::cupti {

namespace {

constexpr uint32_t kMostInt = std::numeric_limits<int32_t>::max();
// No program has more memory; all pieces of a copy together have fewer than 2^64.
constexpr uint64_t kMostBytes = uint64_t{1} << 48;

bool whole_names(std::span<const char> names) {
  size_t begin = 0;
  for (size_t at = 0; at < names.size(); ++at) {
    if (names[at] != '\0') continue;
    if (at - begin > wire::kProfileOneName) return false;
    begin = at + 1;
  }
  return begin == names.size();
}

bool credible_kernel(const Answer& a, const wire::ProfileRecord& r) {
  const auto dimension = [](uint32_t n) { return n > 0 && n <= kMostInt; };
  // Where a name begins.
  return r.name < a.names.size() && (r.name == 0 || a.names[r.name - 1] == '\0') &&
         std::ranges::all_of(r.grid, dimension) && std::ranges::all_of(r.block, dimension) &&
         std::ranges::all_of(r.cluster, [](uint32_t n) { return n <= kMostInt; }) &&
         r.static_shared <= kMostInt && r.dynamic_shared <= kMostInt &&
         r.registers <= std::numeric_limits<uint16_t>::max();
}

}  // namespace

bool read_answer(std::span<const std::byte> bytes, Answer* answer) {
  *answer = {};
  wire::ProfileRecords& head = answer->head;
  if (bytes.size() < sizeof head) return false;
  std::memcpy(&head, bytes.data(), sizeof head);
  bytes = bytes.subspan(sizeof head);
  if (head.count > wire::kProfileRecords || head.name_bytes > wire::kProfileNameBytes ||
      head.now > kLatest)
    return false;
  const size_t records = size_t{head.count} * sizeof(wire::ProfileRecord);
  // A frame is a multiple of 8 bytes.
  const size_t all = records + head.name_bytes;
  if (bytes.size() < all || bytes.size() >= all + 8) return false;
  answer->records.resize(head.count);
  if (head.count) std::memcpy(answer->records.data(), bytes.data(), records);
  answer->names = {reinterpret_cast<const char*>(bytes.data()) + records, head.name_bytes};
  return whole_names(answer->names);
}

bool credible(const Answer& answer, uint64_t activities, wire::ProfileRecord* record) {
  wire::ProfileRecord& r = *record;
  if (r.kind >= 64 || !(activities >> r.kind & 1)) return false;
  if (r.start > r.end || r.end > kLatest || r.correlation == 0) return false;
  const auto known = [](uint32_t* number, uint32_t last) {
    if (*number > last) *number = 0;
  };
  switch (r.kind) {
    case kKernel:
    case kConcurrentKernel:
      known(&r.launch_type, kCommandListLaunch);
      return credible_kernel(answer, r);
    case kMemcpy:
    case kMemcpyPeer:
    case kMemset:
      known(&r.copy_kind, kPeer);
      known(&r.from_kind, kManagedStatic);
      known(&r.to_kind, kManagedStatic);
      return r.bytes <= kMostBytes;
    default:
      return false;
  }
}

}  // namespace sluice::cupti
