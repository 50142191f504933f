// SPDX-License-Identifier: Apache-2.0
// What a node answers when it is asked for records, as far as it can be believed. Its worker may
// have been taken over and answer anything: read_answer() looks at sizes, counts and names,
// credible() at each record's numbers. What passes fits NVIDIA's structures and points at nothing
// but whole names; what it tells of the GPU may still be a lie. Pure, so that it is fuzzed
// (tests/native/fuzz); what only the session knows (devices, calls, the clock) node.cc looks at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "wire/bodies/profiling.h"

namespace sluice::cupti {

struct Answer {
  wire::ProfileRecords head{};
  std::vector<wire::ProfileRecord> records;
  std::span<const char> names;  // within the bytes that were read, each with its NUL
};

// False: it is no answer.
bool read_answer(std::span<const std::byte> bytes, Answer* answer);

// Whether a record is of a kind among `activities` (bits 1 << kind) and can be told to a profiler.
// Numbers of copies and launches that NVIDIA's header has no name for become "unknown".
bool credible(const Answer& answer, uint64_t activities, wire::ProfileRecord* record);

// The latest time of a node that is one: in nanoseconds, the year 2116.
inline constexpr uint64_t kLatest = uint64_t{1} << 62;

}  // namespace sluice::cupti
