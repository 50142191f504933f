// SPDX-License-Identifier: Apache-2.0
// One good frame of every command that the worker speaks, against a session that has one object of
// each kind, and where in it handles, addresses and numbered choices stand. What the tests of
// hostile frames break on purpose and the fuzzer starts from.
#pragma once

#include <string>
#include <vector>

#include "tests/native/roundtrip/worker_rig.h"

namespace sluice::test {

// As client/objects/handles.h makes them.
using wire::HandleKind;
constexpr uint64_t handle_id(HandleKind kind, uint64_t index, uint64_t generation = 1) {
  return 0x51ceull << 48 | uint64_t{static_cast<uint8_t>(kind)} << 40 | generation << 24 | index;
}

// A rig whose session has one object of each kind.
class FurnishedRig : public WorkerRig {
 public:
  FurnishedRig();
  ~FurnishedRig();
  static constexpr uint64_t kContext = 1;
  static constexpr uint64_t kStreamId = handle_id(HandleKind::kStream, 3),
                            kEventId = handle_id(HandleKind::kEvent, 3),
                            kSecondEventId = handle_id(HandleKind::kEvent, 4),
                            kModuleId = handle_id(HandleKind::kModule, 3),
                            kLibraryId = handle_id(HandleKind::kLibrary, 3),
                            kFunctionId = handle_id(HandleKind::kFunction, 3),
                            kKernelId = handle_id(HandleKind::kKernel, 3),
                            kAllocationId =
                                handle_id(HandleKind::kAllocation, 3),  // mapped behind the rest
      kSpareAllocationId = handle_id(HandleKind::kAllocation, 4),       // mapped nowhere
      kGraphId = handle_id(HandleKind::kGraph, 3), kExecId = handle_id(HandleKind::kGraphExec, 3),
                            kCaptureId = handle_id(HandleKind::kGraph, 4),
                            kSharedEventId = handle_id(HandleKind::kEvent, 7);
  // kGraphId's nodes, in order.
  static constexpr uint32_t kKernelNode = 0, kChildNode = 1, kNodes = 2;
  static constexpr uint64_t kShadow = 7, kShadowBytes = 1000;
  static constexpr uint64_t kSignal = wire::kSignalBase + wire::kSignalBytes;  // waits for a call
  static constexpr uint64_t kArrayId = handle_id(HandleKind::kArray, 3),       // 64 by 16 floats
      kLevelId = handle_id(HandleKind::kArray, 4),
                            kMipmappedId = handle_id(HandleKind::kMipmappedArray, 3);
  static constexpr uint64_t kLinkId = handle_id(HandleKind::kLink, 3);  // begun
  static constexpr uint64_t kOtherNode = 1;  // has the client's vGPU 1; ours are 2 and 3
  static constexpr uint64_t kBlob = 7;
  static constexpr uint64_t kMappedBytes = 4 << 20;

  uint64_t address() { return session().vgpus[0]->window_begin; }  // kMappedBytes are backed
  // kStreamId captures into kCaptureId from now on.
  void begin_capture();
  void complete_link();                           // kLinkId
  void connect_node();                            // kOtherNode
  int other_node() const { return other_node_; }  // its end of the link
  uint64_t opened() {
    return address() + kMappedBytes + (8 << 20);
  }  // one slab of another session's
  uint64_t arena() { return reinterpret_cast<uint64_t>(endpoint().arena().data()); }

 private:
  template <class T>
  void send(uint16_t function, bool answered, const T& body, const std::string& tail = "");

  int other_node_ = -1;
};

struct ValidFrame {
  std::string name;
  uint16_t function = 0;
  bool answered = false;
  uint32_t context = 1;
  std::vector<uint64_t> words;  // the body
  struct Range {
    size_t offset;
    uint64_t bytes;  // from there on
    bool or_null = false;
  };
  std::vector<size_t> handles;   // offsets of handles that must be known
  std::vector<size_t> minted;    // offsets of handles that must be free
  std::vector<Range> addresses;  // device memory
  std::vector<Range> arena;      // shared host memory
  std::vector<size_t> choices;   // offsets of u32 that are numbered choices
  std::vector<size_t> devices;   // offsets of u32 that number a vGPU
  std::string reaches;           // one that it must lead to, however often
  bool in_capture = false;       // good only while kStreamId captures
  bool linked = false;           // good only behind complete_link()
  bool node = false;             // good only behind connect_node()
  std::string calls;             // the driver function that it must lead to, if any

  std::span<const std::byte> body() const { return std::as_bytes(std::span(words)); }
  wire::FrameHeader header() const;
};

inline std::vector<uint64_t> pack(const void* body, size_t bytes, const std::string& tail) {
  std::vector<uint64_t> words((bytes + tail.size() + 7) / 8, 0);
  auto* at = reinterpret_cast<char*>(words.data());
  std::memcpy(at, body, bytes);
  std::memcpy(at + bytes, tail.data(), tail.size());
  return words;
}

template <class T>
ValidFrame make(const char* name, uint16_t function, bool answered, const char* calls,
                const T& body, const std::string& tail = "") {
  ValidFrame f;
  f.name = name;
  f.function = function;
  f.answered = answered;
  f.calls = calls;
  f.words = pack(&body, sizeof body, tail);
  return f;
}
// A struct of the wire as text, for what follows a fixed part.
inline std::string text(const auto& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::vector<ValidFrame> valid_frames(FurnishedRig& rig);
// Those of capture and graphs (valid_graph_frames.cc).
void add_graph_frames(FurnishedRig& rig, std::vector<ValidFrame>* all);
// Those of memory and copies (memory_frames.cc).
void add_memory_frames(FurnishedRig& rig, std::vector<ValidFrame>* all);
// Those of links (link_frames.cc).
void add_link_frames(std::vector<ValidFrame>* all);
void add_profile_frames(std::vector<ValidFrame>* all);
// Those of links to other nodes (node_frames.cc).
void add_node_frames(FurnishedRig& rig, std::vector<ValidFrame>* all);
// Those of arrays, textures and surfaces (array_frames.cc).
void add_array_frames(FurnishedRig& rig, std::vector<ValidFrame>* all);
// Those of green contexts and of single questions (green_frames.cc).
void add_green_frames(FurnishedRig& rig, std::vector<ValidFrame>* all);

}  // namespace sluice::test
