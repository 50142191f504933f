// SPDX-License-Identifier: Apache-2.0
// How a session is asked for and answered. The client writes OpenSession; the server (or, once a
// grant exists, the worker) answers with OpenReply, which a granted session's SessionRecord follows
// (session_record.h). The same bytes travel over the Unix socket, a region's mailbox and TCP.
//
// What has no fixed size may follow, where the header's size says so: lines of UTF-8 text,
// `name=value`, padded with NUL to a multiple of 8. A server that does not know that refuses it.
// docs/protocol.md has the table of fields.
#pragma once

#include "wire/frame.h"

namespace sluice::wire {

inline constexpr uint32_t kOpenMagic = 0x43494c53;  // "SLIC"

enum class ChannelKind : uint32_t {
  kAuto = 0,
  kShm = 1,
  kIvshmem = 2,
  kTcp = 3,
  kVsock = 4,
  kRdma = 5
};

enum OpenFlags : uint32_t {
  kCrossNode = 1u << 0,
  // No session is wanted: the job keeps its grant for as long as whoever asks this lives. Answered
  // with CUDA_ERROR_NOT_READY, and then with nothing.
  kHoldJob = 1u << 1,
  kPreempt = 1u << 2,  // lower-priority work may be ended for it, if its project has that right
  kSameGpu = 1u << 3,  // two of the vGPUs may be on one card where there are too few
  kReservedOnly = 1u << 4,  // the vGPUs are drawn on a reservation or not given
  kOnDemandOnly = 1u << 5,  // no reservation is drawn on
  kTakesRelay = 1u << 6,    // the client knows slots that carry bytes (channel/slot.h)
};

// Behind an OpenSession, at most.
inline constexpr size_t kMaxWishBytes = 3072;

inline constexpr uint32_t kJobTokenDigits = 32;

struct OpenSession {
  FrameHeader header;
  uint32_t magic;
  uint16_t protocol_major;
  uint16_t protocol_minor;
  uint32_t vgpu_count;     // 0 = 1
  uint32_t gmem_mib;       // of each vGPU; 0 = the pool's default
  uint32_t ratio_percent;  // of each vGPU; 0 = the pool's default
  uint32_t flags;          // OpenFlags
  int32_t priority;
  int32_t wait_seconds;  // -1 = for ever, 0 = fail at once
  uint32_t pid;          // informative: the server learns it from the host
  uint32_t uid;
  uint64_t start_time;    // clock ticks since boot, /proc/self/stat field 22
  uint32_t cuda_version;  // of the client's runtime, 13000 = 13.0
  ChannelKind channel;    // the client's wish
  char key[64];           // one-time key of a network channel
  char host[64];
  char program[128];
  // Of a job (docs/guest.md, "Jobs"). The token is 32 hex digits, a secret; empty: a job of its
  // own.
  char job[64];
  uint32_t job_processes;  // whose contexts placement is to leave room for; 0 = 1
  uint32_t chosen_count;   // of the job's vGPUs; 0 = all
  uint8_t chosen[64];      // which of them this process has, in this order
  char reserved[48];
};
static_assert(sizeof(OpenSession) == 512);
static_assert(offsetof(OpenSession, start_time) == 56 && offsetof(OpenSession, key) == 72 &&
              offsetof(OpenSession, program) == 200 && offsetof(OpenSession, job) == 328 &&
              offsetof(OpenSession, chosen) == 400);

struct OpenReply {
  FrameHeader header;
  uint32_t status;  // CUresult; 0 granted, CUDA_ERROR_NOT_READY = a line to show while waiting
  uint32_t reserved;
  uint64_t session_id;
  char message[480];
  // after a grant, behind these 512 bytes: SessionRecord
};
static_assert(sizeof(OpenReply) == 512);

}  // namespace sluice::wire
