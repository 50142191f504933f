// SPDX-License-Identifier: Apache-2.0
// Where device memory and pinned memory lie in the address space of client and worker alike. Which
// window a vGPU has is in its DeviceRecord.
#pragma once

#include <cstdint>

namespace sluice::wire {

// Windows lie between these; the hole keeps clear of position-independent executables and their
// heap.
// A session of few vGPUs gets large ones. The arena of pinned memory is mapped at kArenaAddress by
// client and worker (above AddressSanitizer's own heap).
#if !defined(__SANITIZE_THREAD__)
inline constexpr uint64_t kWindowsBegin = 0x200000000000;
inline constexpr uint64_t kWindowsEnd = 0x600000000000;
inline constexpr uint64_t kWindowHoleBegin = 0x550000000000;
inline constexpr uint64_t kWindowHoleEnd = 0x570000000000;
inline constexpr uint64_t kLargeWindowBytes = 8ull << 40;
inline constexpr uint64_t kSmallWindowBytes = 1ull << 40;
inline constexpr uint64_t kArenaAddress = 0x680000000000;
#else
// ThreadSanitizer keeps its own memory at all of these and refuses to map others' there. Of what it
// leaves to programs, the only stretch that is free in every process ends at 512 GiB. A build with
// it is for tests in which client and worker are both built so.
inline constexpr uint64_t kWindowsBegin = 0x001000000000;
inline constexpr uint64_t kWindowsEnd = 0x006000000000;
inline constexpr uint64_t kWindowHoleBegin = kWindowsEnd;
inline constexpr uint64_t kWindowHoleEnd = kWindowsEnd;
inline constexpr uint64_t kLargeWindowBytes = 64ull << 30;
inline constexpr uint64_t kSmallWindowBytes = 4ull << 30;
inline constexpr uint64_t kArenaAddress = 0x007000000000;
#endif

}  // namespace sluice::wire
