// SPDX-License-Identifier: Apache-2.0
// Bodies of the commands that are Sluice's own rather than one CUDA function's: memory, copies,
// modules, launches, marks, host functions (native/api/commands.yaml). Fields are 8-byte aligned as
// they stand; append-only. "mark, value": when `mark` is not kNoMark, the worker has the stream
// write `value` into that word of the completion page at this point. Streams: 0 or CU_STREAM_LEGACY
// (1) is the legacy default stream, everything else an id that the client minted.
#pragma once

#include <compare>

#include "wire/frame.h"

namespace sluice::wire {

inline constexpr uint32_t kNoMark = ~0u;

struct Upload {  // bytes follow
  uint64_t blob;
  uint64_t total;
  uint64_t offset;
  uint64_t bytes;
};
inline constexpr uint64_t kMaxBlobBytes = 2ull << 30;

struct MemoryMap {
  uint32_t device;
  uint32_t reserved;
  uint64_t address;
  uint64_t bytes;
};
using MemoryUnmap = MemoryMap;

// Where several sessions of a job use one vGPU, each has credit for what it has asked for. It is
// spent by backing memory, and gives back as much by giving memory back; nothing is said of that.
// Answered with CUDA_ERROR_OUT_OF_MEMORY where the job has not so much left; `bytes` 0 only asks.
struct MemoryCredit {
  uint32_t device;
  uint32_t reserved;
  uint64_t bytes;
};
struct MemoryCreditReply {
  uint64_t free_bytes;  // that nobody in the job has credit for
};

// Local memory that kernels about to be launched have for each thread. The driver keeps as much for
// every thread that the GPU can run at a time, which is charged to the vGPU before it does so:
// CUDA_ERROR_OUT_OF_MEMORY where the vGPU has not so much left. cuCtxSetLimit of the stack's size
// gives back what is beyond that size.
struct LocalMemory {
  uint32_t device;
  uint32_t reserved;
  uint64_t thread_bytes;
};
// What a thread can have at most; a kernel with more cannot be launched (H200, driver 580).
inline constexpr uint64_t kMaxThreadBytes = 511u << 10;

// Device memory that has no address yet; charged to the vGPU from here to AllocationDestroy.
struct AllocationCreate {
  uint64_t id;
  uint64_t bytes;
  uint32_t device;
  uint32_t flags;  // kCompressible: answered by AllocationReply
};
inline constexpr uint32_t kCompressible = 1;
struct AllocationReply {
  uint32_t device;
  uint32_t compression;  // CUmemAllocationCompType, as the driver granted it
};
struct AllocationId {  // it is mapped nowhere any more
  uint64_t id;
};
struct AllocationMap {  // the whole of it, inside one window
  uint64_t id;
  uint64_t address;
  uint64_t bytes;
};
struct AllocationUnmap {  // exactly one such mapping, which nothing uses any more
  uint64_t address;
  uint64_t bytes;
};
struct AllocationAccess {  // exactly one such mapping
  uint64_t address;
  uint64_t bytes;
  uint32_t device;
  uint32_t flags;  // CUmemAccess_flags
};

// `device` may use all present and future memory of `peer`'s window, or may no longer.
struct PeerAccess {
  uint32_t device;
  uint32_t peer;
  uint32_t enable;  // 0 or 1
  uint32_t reserved;
};

// What CUDA IPC passes around stands for something that the server keeps: 128 random bits, of no
// use to anybody outside the session's own trust domain.
struct ShareKey {
  uint64_t words[2];
  friend auto operator<=>(const ShareKey&, const ShareKey&) = default;
};
struct ShareMemory {  // the whole mapping that contains `address`, which lies in a slab; the answer
  uint64_t address;   // is a SharedMemory
};
struct SharedMemory {
  ShareKey key;
  uint64_t start;  // of the mapping, in the window of whoever shares it
  uint64_t bytes;
};
enum OpenSharedFlags : uint32_t {
  kOwnToo = 1,  // also what the session itself has shared, which CUDA IPC refuses
};
struct OpenShared {  // backs exactly these addresses of the device's window with it
  ShareKey key;
  uint64_t address;
  uint64_t bytes;
  uint32_t device;
  uint32_t flags;
};
// ShareAllocation: an AllocationId, answered by a SharedMemory that starts at 0.
struct OpenAllocation {  // answered by AllocationReply; charged to whoever shared it
  ShareKey key;
  uint64_t id;
  uint64_t bytes;
};
struct CloseShared {  // exactly one that was opened, and nothing uses it any more
  uint64_t address;
  uint64_t bytes;
  uint32_t device;
  uint32_t reserved;
};
struct SharedEvent {  // one of a session's events that others may open: what ShareEvent answers
  ShareKey key;
  uint64_t index;
};
struct OpenSharedEvent {
  SharedEvent event;
  uint64_t id;
};
struct SharedEventUse {  // record: at this point of the stream; wait: the stream, until then
  uint64_t event;
  uint64_t stream;
};

// The arena becomes known to the driver in pieces of this size, counted from its start (the last
// may be shorter). The driver takes no copy that runs from one registration into the next: the
// worker splits it.
inline constexpr uint64_t kArenaChunk = 32ull << 20;

struct ArenaRegister {  // exactly one such piece
  uint64_t address;
  uint64_t bytes;
};

struct Mark {
  uint64_t stream;
  uint32_t mark;
  uint32_t reserved;
  uint64_t value;
};

// Where the host side of a copy lives.
// kShadow: graph_commands.h; the address is the shadow's id.
enum class HostPlace : uint32_t { kInline = 0, kArena = 1, kShadow = 2 };

// rows = 1 for a plain copy; pitches then do not count. Host rows of inline data are packed.
struct CopyToDevice {  // inline data follows
  uint64_t stream;
  uint64_t device_address;
  uint64_t device_pitch;
  uint64_t host_address;  // in the arena
  uint64_t host_pitch;
  uint64_t width;
  uint64_t rows;
  HostPlace place;
  uint32_t mark;
  uint64_t value;
  uint32_t wait;  // answered: the reply is sent when the copy has been done
  uint32_t reserved;
};
using CopyToHost = CopyToDevice;  // kInline: the data is the reply's body

struct CopyOnDevice {
  uint64_t stream;
  uint64_t to, to_pitch;
  uint64_t from, from_pitch;
  uint64_t width, rows;
  uint32_t wait, reserved;
};

struct FillDevice {
  uint64_t stream;
  uint64_t address, pitch;
  uint64_t width;  // elements
  uint64_t rows;
  uint32_t element_bytes;  // 1, 2 or 4
  uint32_t value;
};

enum class CodeKind : uint32_t { kModule = 0, kLibrary = 1 };

struct CodeLoad {
  uint64_t id;
  uint64_t blob;
  CodeKind kind;
  uint32_t option_count;  // u32 option, u32 value pairs follow (the scalar JIT options)
};
struct CodeLoadReply {  // the JIT logs follow
  uint32_t info_bytes, error_bytes;
};

// The same without an upload. Answered with CUDA_ERROR_NOT_FOUND and no body when the node has no
// such image; then the upload follows. Smaller images are not asked for.
struct CodeLoadKnown {
  uint64_t id;
  uint64_t bytes;
  uint8_t hash[32];  // wire/content_hash.h
  CodeKind kind;
  uint32_t option_count;  // as CodeLoad's
};
inline constexpr uint64_t kKeptCodeBytes = 64 << 10;

// A link of the node's driver. Options as CodeLoad's; the JIT logs as they stand after each step
// come with its answer, as CodeLoadReply.
struct LinkBegin {
  uint64_t id;
  uint32_t option_count;
  uint32_t reserved;
};
struct LinkAdd {  // the option pairs, then the input's name
  uint64_t id;
  uint64_t blob;
  uint32_t type;  // CUjitInputType
  uint32_t option_count;
  uint32_t name_bytes;
  uint32_t reserved;
};
struct LinkId {
  uint64_t id;
};
struct LinkDone {  // what LinkComplete answers, the logs behind it
  uint64_t image_bytes;
  CodeLoadReply logs;
};
struct LinkRead {  // answered with these bytes of the image
  uint64_t id;
  uint64_t offset;
  uint64_t bytes;
};
inline constexpr uint64_t kLinkPiece = 256 << 10;
inline constexpr size_t kMaxNameBytes = 8192;

struct CodeUnload {
  uint64_t id;
  CodeKind kind;
  uint32_t reserved;
};

struct FunctionGet {  // the name follows, no NUL
  uint64_t id;
  uint64_t code;
  CodeKind kind;
  uint32_t name_bytes;
};
inline constexpr uint32_t kFunctionAttributes = 24;
struct FunctionRecord {  // param_count pairs of u32 offset, u32 size follow
  int32_t attributes[kFunctionAttributes];
  uint32_t attribute_mask;
  uint32_t param_count;
  uint32_t param_bytes;  // of the whole buffer
  uint32_t reserved;
};

struct GlobalGet {  // the name follows
  uint64_t code;
  CodeKind kind;
  uint32_t name_bytes;
};
struct GlobalReply {
  uint64_t address;
  uint64_t bytes;
};

struct FunctionSet {
  uint64_t function;
  int32_t attribute;
  int32_t value;
};

struct Launch {  // param_bytes of parameters follow, then attribute_count LaunchAttribute
  uint64_t function;
  uint64_t stream;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  uint32_t param_bytes;
  uint32_t attribute_count;
  uint32_t reserved;
};
struct LaunchAttribute {
  uint32_t id;
  uint32_t reserved;
  std::byte value[64];
};

// Of a stream. Attributes change no result, so a driver that does not take one is no error.
struct StreamAttribute {
  uint64_t stream;
  LaunchAttribute attribute;
};

// Answered where the session has more of them than these: they take the vGPU's memory.
inline constexpr uint32_t kUnansweredStreams = 32;
struct StreamCreate {
  uint64_t id;
  uint32_t flags;
  int32_t priority;
};
struct StreamId {
  uint64_t stream;
};
struct EventCreate {
  uint64_t id;
  uint32_t flags;
  uint32_t reserved;
};
struct EventId {
  uint64_t event;
};
struct EventRecord {
  uint64_t event;
  uint64_t stream;
  uint32_t mark;
  uint32_t flags;
  uint64_t value;
};
struct StreamWaitEvent {
  uint64_t stream;
  uint64_t event;
  uint32_t flags;
  uint32_t reserved;
};
struct EventElapsed {
  uint64_t start, end;
};
struct ElapsedReply {
  float milliseconds;
  uint32_t reserved;
};

// The stream writes ready_value to the ready mark, then waits until the done mark reaches it.
struct HostFunction {
  uint64_t stream;
  uint32_t ready_mark, done_mark;
  uint64_t value;
};

inline constexpr size_t kOutputPiece = 32 << 10;  // the longest such reply
struct OutputReply {  // the text follows; a reply's own size may be padded
  uint32_t bytes;
  uint32_t error;  // 1: it went to standard error
};

struct DeviceIdle {
  uint32_t device;
  uint32_t reserved;
};

// Said unasked, over a network: a reply on kNoLane whose status is 0.
struct LibraryMemory {
  uint32_t device;
  uint32_t reserved;
  uint64_t order;  // later ones count up, in whatever order they arrive
  uint64_t bytes;  // what libraries have of the vGPU's memory
};

}  // namespace sluice::wire
