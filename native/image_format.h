// SPDX-License-Identifier: Apache-2.0
// Fat binaries as nvcc writes them, and how an image of code begins: a container of parts, each PTX
// text or machine code. Read by the client, the worker and the software GPU, each of which checks
// what stands here against what has come.
#pragma once

#include <cstdint>

namespace sluice::fat_binary {

// An image's first four bytes, little-endian.
inline constexpr uint32_t kContainerMagic = 0xba55ed50;
inline constexpr uint32_t kWrapperMagic = 0x466243b1;  // points to a container
inline constexpr uint32_t kElfMagic = 0x464c457f;      // machine code by itself

inline constexpr uint16_t kPtx = 1, kMachineCode = 2;
inline constexpr uint64_t kLz4 = 0x2000, kZstd = 0x8000;  // flags: how a part is packed

// Flags: what a part is for. Code for one architecture alone (sm_90a), for its family (sm_100f),
// machine code for compute capability 10.0 and later.
inline constexpr uint64_t kOneArchitecture = 0x100000, kFamily = 0x200000, kSince100 = 0x1000000;

struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const void* data;
  const void* unused;
};

struct Container {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t body_bytes;  // of all parts, behind the header
};
static_assert(sizeof(Container) == 16);

// The start of a part.
struct PartStart {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t bytes;  // behind the header, padded
  uint32_t packed_bytes;
  uint32_t options_offset;
  uint16_t minor, major;  // of the format
  uint32_t arch;          // 90 for compute capability 9.0
};
static_assert(sizeof(PartStart) == 32);

struct Part : PartStart {
  uint32_t name_offset, name_bytes;
  uint64_t flags;
  uint64_t reserved;
  uint64_t unpacked_bytes;
};
static_assert(sizeof(Part) == 64);

}  // namespace sluice::fat_binary
