// SPDX-License-Identifier: Apache-2.0
// The one framing of every channel: what a command and a reply look like as bytes.
// Used by client, worker, doorbell and the generated stubs. A frame is a FrameHeader and a body;
// its size is a multiple of 8, so that a body struct of 8-byte alignment can be copied out as it
// is. Little endian, append-only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::wire {

inline constexpr uint16_t kProtocolMajor = 1;
inline constexpr uint16_t kProtocolMinor = 0;
inline constexpr uint32_t kMaxFrameBytes = 1u << 20;      // one command, its inline data included
inline constexpr uint32_t kInlineChunkBytes = 64u << 10;  // data carried inside one command
inline constexpr uint32_t kMaxReplyBytes = 16u << 20;     // body of one reply on a network channel

struct FrameHeader {
  uint32_t size;      // header and body, multiple of 8
  uint16_t function;  // ControlFunction, or an id of native/api/ids.lock
  uint16_t lane;      // where the reply goes; kNoLane for fire and forget
  uint32_t sequence;  // of the lane: the reply carries it back
  uint32_t context;   // device index + 1 of the calling thread's current context, 0 = none
};
static_assert(sizeof(FrameHeader) == 16);

inline constexpr uint16_t kNoLane = 0xffff;
// Lanes of a network channel; a slot has channel::kLaneCount. A lane has one command under way.
inline constexpr uint16_t kStreamLanes = 256;
// Beside the status of a reply: kernels have printed something, to be fetched with kReadOutput.
inline constexpr uint32_t kOutputWaiting = 1u << 31;
// The answer goes on: the rest is fetched on the same lane with kReplyRest.
inline constexpr uint32_t kMoreFollows = 1u << 30;
// The longest answer in all.
inline constexpr size_t kMaxAnswer = 4 << 20;

enum ControlFunction : uint16_t {
  kReply = 0,  // network channels; `context` is the status, a CUresult
  kOpenSession = 1,
  kOpenReply = 2,
  kClose = 3,          // the client ends its session in good order
  kPing = 4,           // answered at once: the floor of a round trip
  kUpload = 5,         // a piece of a blob too large for one frame
  kMemoryMap = 6,      // back window addresses with device memory
  kMemoryUnmap = 7,    // give them back; nothing uses them any more
  kDeviceIdle = 8,     // answered once the device has nothing left to do
  kArenaRegister = 9,  // make arena pages known to the driver
  kMark = 10,          // write a value into the completion page at this point of a stream
  kHostFunction = 11,  // hold a stream until the client has run a function
  // 12 was never sent.
  kCopyToDevice = 13,
  kCopyToHost = 14,
  kCopyOnDevice = 15,
  kFillDevice = 16,
  kCodeLoad = 17,
  kCodeUnload = 18,
  kFunctionGet = 19,
  // 20 was never sent.
  kFunctionSet = 21,
  kGlobalGet = 22,
  kLaunch = 23,
  kStreamCreate = 24,
  kStreamDestroy = 25,
  kStreamSynchronize = 26,
  kStreamQuery = 27,
  kStreamWaitEvent = 28,
  kEventCreate = 29,
  kEventDestroy = 30,
  kEventRecord = 31,
  kEventSynchronize = 32,
  kEventQuery = 33,
  kEventElapsed = 34,
  kReadOutput = 35,  // what kernels have printed; answered, empty when that was all
  kReplyRest = 36,   // the next piece of this lane's answer
  // Physical memory apart from addresses: the virtual memory API.
  kAllocationCreate = 48,
  kAllocationDestroy = 49,
  kAllocationMap = 50,
  kAllocationUnmap = 51,
  kAllocationAccess = 52,
  kCodeLoadKnown = 53,  // code that the node may have kept
  // Stream capture and graphs: graph_commands.h.
  kStreamMemOps = 54,
  kCaptureBegin = 37,
  kCaptureEnd = 38,
  kCaptureInfo = 39,
  kCaptureUpdate = 40,
  kGraphCreate = 41,
  kGraphCopy = 42,
  kGraphDestroy = 43,
  kGraphNodeAdd = 44,
  kGraphNodeSet = 45,
  kGraphNodeGet = 46,
  kGraphList = 47,
  kGraphEdit = 56,
  kGraphInstantiate = 57,
  kGraphExecUpdate = 58,
  kGraphExecDestroy = 59,
  kGraphLaunch = 60,
  kShadowMake = 61,
  kShadowWrite = 62,
  kShadowRead = 63,
  kFirstApiFunction = 64,
  kFirstLibraryFunction = 1024,  // native/api/library_ids.lock
  // Control functions again, for which there was no room below.
  kPeerAccess = 4032,  // one vGPU may use, or may no longer use, another's memory
  // CUDA IPC: memory and events under keys that the server passes between the workers of its host.
  kShareMemory = 4033,
  kOpenShared = 4034,
  kCloseShared = 4035,
  kSharedEventCreate = 4036,
  kSharedEventDestroy = 4037,
  kSharedEventRecord = 4038,
  kSharedEventWait = 4039,
  kSharedEventQuery = 4040,
  kSharedEventSynchronize = 4041,
  kShareEvent = 4042,
  kOpenSharedEvent = 4043,
  kGpuFigures = 4044,    // what the node's NVML says of a vGPU's GPU
  kMemoryCredit = 4045,  // may this session of a job have so much more of the job's memory
  kLocalMemory = 4046,   // may kernels have so much local memory for each thread
  // Graphs again: graph_commands.h.
  kGraphConditional = 4048,
  kCaptureNode = 4049,
  kCaptureCopy = 4052,  // a copy that was made by hand, where a capture has come to
  kGraphWords = 4053,   // other words for a graph's host functions
  kSignalWait = 4054,   // which host functions runs of graphs wait for; answered after a while
  kSignalDone = 4055,   // the client has run one
  // Allocations of the virtual memory API, shared by descriptor.
  kShareAllocation = 4056,
  kOpenAllocation = 4057,
  kStreamAttribute = 4058,
  kGraphNodeAttribute = 4059,
  // The node's linker: cuLink*.
  kLinkBegin = 4060,
  kLinkAdd = 4061,
  kLinkComplete = 4062,
  kLinkRead = 4063,
  kLinkEnd = 4064,
};

// For people; nullptr when it is no control function.
constexpr const char* control_name(uint16_t function) {
  switch (function) {
    case kReply:
      return "Reply";
    case kOpenSession:
      return "OpenSession";
    case kOpenReply:
      return "OpenReply";
    case kClose:
      return "Close";
    case kPing:
      return "Ping";
    case kUpload:
      return "Upload";
    case kMemoryMap:
      return "MemoryMap";
    case kMemoryUnmap:
      return "MemoryUnmap";
    case kDeviceIdle:
      return "DeviceIdle";
    case kArenaRegister:
      return "ArenaRegister";
    case kMark:
      return "Mark";
    case kHostFunction:
      return "HostFunction";
    case kCopyToDevice:
      return "CopyToDevice";
    case kCopyToHost:
      return "CopyToHost";
    case kCopyOnDevice:
      return "CopyOnDevice";
    case kFillDevice:
      return "FillDevice";
    case kCodeLoad:
      return "CodeLoad";
    case kCodeUnload:
      return "CodeUnload";
    case kFunctionGet:
      return "FunctionGet";
    case kFunctionSet:
      return "FunctionSet";
    case kGlobalGet:
      return "GlobalGet";
    case kLaunch:
      return "Launch";
    case kStreamCreate:
      return "StreamCreate";
    case kStreamDestroy:
      return "StreamDestroy";
    case kStreamSynchronize:
      return "StreamSynchronize";
    case kStreamQuery:
      return "StreamQuery";
    case kStreamWaitEvent:
      return "StreamWaitEvent";
    case kEventCreate:
      return "EventCreate";
    case kEventDestroy:
      return "EventDestroy";
    case kEventRecord:
      return "EventRecord";
    case kEventSynchronize:
      return "EventSynchronize";
    case kEventQuery:
      return "EventQuery";
    case kEventElapsed:
      return "EventElapsed";
    case kReplyRest:
      return "ReplyRest";
    case kReadOutput:
      return "ReadOutput";
    case kPeerAccess:
      return "PeerAccess";
    case kShareMemory:
      return "ShareMemory";
    case kOpenShared:
      return "OpenShared";
    case kCloseShared:
      return "CloseShared";
    case kSharedEventCreate:
      return "SharedEventCreate";
    case kSharedEventDestroy:
      return "SharedEventDestroy";
    case kSharedEventRecord:
      return "SharedEventRecord";
    case kSharedEventWait:
      return "SharedEventWait";
    case kSharedEventQuery:
      return "SharedEventQuery";
    case kSharedEventSynchronize:
      return "SharedEventSynchronize";
    case kShareEvent:
      return "ShareEvent";
    case kOpenSharedEvent:
      return "OpenSharedEvent";
    case kGpuFigures:
      return "GpuFigures";
    case kMemoryCredit:
      return "MemoryCredit";
    case kLocalMemory:
      return "LocalMemory";
    case kCaptureCopy:
      return "CaptureCopy";
    case kGraphWords:
      return "GraphWords";
    case kSignalWait:
      return "SignalWait";
    case kSignalDone:
      return "SignalDone";
    case kShareAllocation:
      return "ShareAllocation";
    case kOpenAllocation:
      return "OpenAllocation";
    case kStreamAttribute:
      return "StreamAttribute";
    case kGraphNodeAttribute:
      return "GraphNodeAttribute";
    case kLinkBegin:
      return "LinkBegin";
    case kLinkAdd:
      return "LinkAdd";
    case kLinkComplete:
      return "LinkComplete";
    case kLinkRead:
      return "LinkRead";
    case kLinkEnd:
      return "LinkEnd";
    case kAllocationCreate:
      return "AllocationCreate";
    case kAllocationDestroy:
      return "AllocationDestroy";
    case kAllocationMap:
      return "AllocationMap";
    case kAllocationUnmap:
      return "AllocationUnmap";
    case kAllocationAccess:
      return "AllocationAccess";
    case kCodeLoadKnown:
      return "CodeLoadKnown";
    case kStreamMemOps:
      return "StreamMemOps";
    case kCaptureBegin:
      return "CaptureBegin";
    case kCaptureEnd:
      return "CaptureEnd";
    case kCaptureInfo:
      return "CaptureInfo";
    case kCaptureUpdate:
      return "CaptureUpdate";
    case kGraphCreate:
      return "GraphCreate";
    case kGraphCopy:
      return "GraphCopy";
    case kGraphDestroy:
      return "GraphDestroy";
    case kGraphNodeAdd:
      return "GraphNodeAdd";
    case kGraphNodeSet:
      return "GraphNodeSet";
    case kGraphNodeGet:
      return "GraphNodeGet";
    case kGraphList:
      return "GraphList";
    case kGraphEdit:
      return "GraphEdit";
    case kGraphInstantiate:
      return "GraphInstantiate";
    case kGraphExecUpdate:
      return "GraphExecUpdate";
    case kGraphExecDestroy:
      return "GraphExecDestroy";
    case kGraphLaunch:
      return "GraphLaunch";
    case kShadowMake:
      return "ShadowMake";
    case kShadowWrite:
      return "ShadowWrite";
    case kShadowRead:
      return "ShadowRead";
    case kGraphConditional:
      return "GraphConditional";
    case kCaptureNode:
      return "CaptureNode";
    default:
      return nullptr;
  }
}

inline constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace sluice::wire
