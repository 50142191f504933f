// SPDX-License-Identifier: Apache-2.0
// What a client knows of its vGPUs without asking again: written once by the worker behind the
// OpenReply. Address windows are disjoint, reserved by client and worker alike. Attribute values
// are the driver's own, indexed by CUdevice_attribute, with those that Sluice changes already
// changed.
#pragma once

#include "wire/frame.h"

namespace sluice::wire {

inline constexpr uint32_t kMaxDevices = 64;
inline constexpr uint32_t kDeviceAttributes = 192;  // CU_DEVICE_ATTRIBUTE_MAX of CUDA 13.0 is below

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

struct DeviceRecord {
  uint64_t window_begin;
  uint64_t window_bytes;
  uint64_t memory_bytes;  // of the vGPU: what cuMemGetInfo calls total
  uint32_t compute_percent;
  uint32_t attribute_count;
  uint8_t uuid[16];
  uint8_t physical_uuid[16];
  char name[128];
  char pci_bus_id[32];
  int32_t attributes[kDeviceAttributes];
  int32_t stream_priority_least;
  int32_t stream_priority_greatest;
  uint64_t granularity;   // of device mappings
  uint64_t limits[8];     // CUlimit
  uint64_t peers;         // bit i: may be given access to the memory of the vGPU i
  uint64_t peer_atomics;  // … and atomics on it are native
  uint64_t thread_bytes;  // local memory that threads have with the context, without a charge; more
                          // is asked for (LocalMemory). 0: the node does not count it
  uint64_t reserved[1];
  uint8_t peer_rank[kMaxDevices];  // relative performance of that link, as the driver ranks it
};

struct SessionRecord {
  uint32_t record_bytes;  // of this struct and the devices behind it
  uint32_t device_bytes;  // of one DeviceRecord, so that it can grow
  uint32_t device_count;
  uint32_t driver_version;
  uint32_t heartbeat_seconds;
  uint32_t software_gpu;   // 1: the back end is the software GPU
  char driver_name[32];    // of the node's kernel driver, "580.65.06"; empty where there is none
  uint32_t keeps_code;     // 1: the node may have code images of earlier sessions
  uint32_t shares_memory;  // 1: other sessions of the job use the same vGPUs, so that credit for
                           // memory is asked for (MemoryCredit)
  // DeviceRecord devices[device_count]
};

}  // namespace sluice::wire
