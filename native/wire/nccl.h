// SPDX-License-Identifier: Apache-2.0
// A group of NCCL calls as one command: what a thread called between ncclGroupStart and
// ncclGroupEnd, or one call that makes a communicator. Pieces are rounded up to 8 bytes.
#pragma once

#include <cstdint>

namespace sluice::wire {

// `calls` of NcclCall with their bodies follow. Answer: i64 status, then for each call that makes a
// communicator a u64: 1 when it was made. `grouped`: between ncclGroupStart and ncclGroupEnd.
struct NcclGroup {
  uint32_t calls;
  uint32_t grouped;
};

// The body is that of the function's own command; for function 0 it is an NcclMake.
struct NcclCall {
  uint16_t function;
  uint16_t reserved;
  uint32_t context;
  uint64_t bytes;
};

enum class NcclHow : uint32_t { kRank, kScalable, kSplit, kShrink };

// Behind it: `count` unique ids (kRank: one, kScalable) or excluded ranks (i32, kShrink), the
// configuration as the application gave it, and the two texts that it points to, with their NULs.
struct NcclMake {
  uint64_t id;      // of the new communicator; 0 where this rank gets none
  uint64_t parent;  // kSplit, kShrink
  NcclHow how;
  int32_t ranks, rank;
  int32_t color, key;
  int32_t flags;
  uint32_t count;
  uint32_t config_bytes, net_bytes, name_bytes;
};

inline constexpr uint32_t kNcclIdBytes = 128;
// ncclConfig_t: its size today, and where it points to texts.
inline constexpr uint32_t kNcclConfigBytes = 80, kNcclConfigLeast = 24;
inline constexpr uint32_t kNcclConfigBlocking = 16, kNcclConfigNetName = 32, kNcclConfigName = 48;
inline constexpr uint32_t kNcclMostIds = 4096, kNcclMostRanks = 1 << 16, kNcclMostText = 4096;

}  // namespace sluice::wire
