// SPDX-License-Identifier: Apache-2.0
// Bodies of the commands for stream capture and graphs (native/api/commands.yaml). Graphs and
// executable graphs are ids that the client minted; a node is its graph's id and an ordinal, which
// the worker gives out in the order in which it learns of the nodes and never gives twice. Lists
// follow the fixed part as GraphEdge; fields are append-only and 8-byte aligned as they stand.
#pragma once

#include "wire/commands.h"

namespace sluice::wire {

inline constexpr uint32_t kNoNode = ~0u;
inline constexpr uint32_t kMaxGraphEdges = 1u << 15;  // that fit one command

struct GraphEdge {
  uint32_t from, to;  // ordinals; lists of nodes use `from` alone
  uint64_t data;      // CUgraphEdgeData as it lies in memory, where it applies
};

// One operation of cuStreamBatchMemOp.
struct MemOp {
  uint32_t operation, flags;
  uint64_t address, value;
};
inline constexpr uint32_t kMaxMemOps = 256;
struct StreamMemOps {  // count MemOp follow
  uint64_t stream;
  uint32_t count, reserved;
};

// The worker always captures in relaxed mode: the client enforces the application's.
struct CaptureBegin {  // edge_count GraphEdge follow: the nodes that the capture goes on from
  uint64_t stream;
  uint64_t graph;     // minted for this capture, or an existing one
  uint32_t existing;  // 1: so
  uint32_t edge_count;
};
struct CaptureEnd {  // answered
  uint64_t stream, graph;
  uint32_t discard;  // the client has refused something: there will be no graph
  uint32_t reserved;
};
struct CaptureInfo {  // answered by GraphListReply and the nodes that the stream goes on from
  uint64_t stream, graph;
  uint32_t first, reserved;
};
struct CaptureUpdate {  // answered; edge_count GraphEdge follow
  uint64_t stream, graph;
  uint32_t replace, edge_count;
};

// An empty node at the end of what the stream has recorded, which it goes on from: the place of an
// allocation or of its end. Answered by GraphNodeReply.
struct CaptureNode {
  uint64_t stream, graph;
};

struct GraphCreate {
  uint64_t id;
};
struct GraphCopy {  // answered
  uint64_t id, graph;
  uint32_t
      node;  // kNoNode: a clone of the graph; else the graph inside this node, which stays there
  uint32_t reserved;
};
struct GraphId {
  uint64_t graph;
};

// What nodes hold, by CUgraphNodeType. Kernels: param_bytes of parameters follow.
struct KernelNode {
  uint64_t function;
  uint32_t grid[3], block[3];
  uint32_t shared_bytes, param_bytes;
};
enum class NodeMemory : uint32_t { kDevice = 0, kArena = 1, kShadow = 2 };
struct CopySide {
  uint64_t address;  // kShadow: the shadow's id
  uint64_t pitch, slice;
  NodeMemory place;
  uint32_t reserved;
};
struct CopyNode {
  CopySide to, from;
  uint64_t width, rows, depth;
};
struct FillNode {
  uint64_t address, pitch, width, rows;  // width in elements
  uint32_t element_bytes, value;
};
struct EventNode {
  uint64_t event;
};
struct ChildNode {
  uint64_t graph;
};
// `count` ids for the graphs inside follow, which the client minted.
struct ConditionalNode {
  uint64_t handle;
  uint32_t type, count;
};
inline constexpr uint32_t kMaxBodies = 1024;
inline constexpr uint32_t kMaxGraphDepth = 64;  // of graphs inside of one another
struct MemOpsNode {                             // count MemOp follow
  uint32_t count, reserved;
};
// A copy whose host side the worker cannot reach: one node (a child graph to the driver) of a copy
// to or from a stand-in, and a host function that fills the stand-in before it, or empties it after
// it. No CUgraphNodeType has this number.
inline constexpr uint32_t kStagedCopyNode = 0x10000;
struct StagedCopyNode {
  CopyNode copy;
  uint32_t call_first, reserved;
  MemOp call[3];
};

// A node where a stream's capture has come to: a copy, a staged copy or memory operations.
struct CaptureCopy {  // body_bytes follow
  uint64_t stream;
  uint32_t type, body_bytes;
};

// Where no memory is shared, the words by which graphs call host functions are the worker's, and
// commands name them by addresses that are nobody's: `ready`, and behind it `done`.
inline constexpr uint64_t kSignalBase = 0x6f0000000000;
inline constexpr uint64_t kSignalBytes = 64;
inline constexpr uint32_t kMaxSignals = 4096;
constexpr bool is_signal(uint64_t address) {
  return address - kSignalBase < kSignalBytes * kMaxSignals && address % kSignalBytes <= 8 &&
         address % 8 == 0;
}
struct SignalWait {  // answered by count uint64_t: words that are ready and were not told yet
  uint64_t milliseconds;
};
struct SignalDone {
  uint64_t signal;  // address of its first word
};
// Gives host functions of a graph, and of those inside of it, words of their own.
struct GraphWords {  // answered; count WordsChange follow
  uint64_t graph;
  uint32_t count, reserved;
};
struct WordsChange {
  uint64_t from, to;  // addresses of the first words
};
inline constexpr uint32_t kMaxWordsChanges = 1u << 14;  // that fit one command

struct GraphNodeAdd {  // answered by GraphNodeReply; body_bytes, then edge_count GraphEdge follow
  uint64_t graph;
  uint32_t type, body_bytes, edge_count, reserved;
};
struct GraphNodeReply {
  uint32_t node, reserved;
};
struct GraphNodeSet {  // answered; body_bytes follow
  uint64_t graph;
  uint64_t exec;  // 0: in the graph itself
  uint32_t node, type, body_bytes, reserved;
};
struct GraphNodeGet {  // answered by GraphNodeBody
  uint64_t graph;
  uint32_t node, reserved;
};
struct GraphNodeBody {  // body_bytes follow, as for adding; none for types that carry no body here
  uint32_t type, body_bytes;
};

enum class GraphListOf : uint32_t {
  kNodes = 0,  // `to` is the type
  kRoots = 1,
  kEdges = 2,
  kDependencies = 3,  // of `node`
  kDependents = 4,
  kAncestors = 5,  // all that `node` comes behind, the nearest first, kMaxAncestors at most
  kWords = 6,  // of the host functions in it and in those inside of it: `data` is the first address
};
struct GraphList {  // answered by GraphListReply
  uint64_t graph;
  GraphListOf what;
  uint32_t node, first, reserved;
};
struct GraphListReply {  // count GraphEdge follow: those from `first` on that fit
  uint32_t total, count;
};

inline constexpr uint32_t kMaxAncestors = 4096;

// A value that kernels of a graph set and nodes of it look at. Its handle is the driver's own, as
// kernels take it as a plain parameter: answered by GraphConditionalReply.
struct GraphConditional {
  uint64_t graph;
  uint32_t value, flags;  // what a launch begins with, if the flags say so
};
struct GraphConditionalReply {
  uint64_t handle;
};

enum class GraphChange : uint32_t {
  kAddDependencies = 0,
  kRemoveDependencies = 1,
  kDestroyNode = 2,
  kEnable = 3,  // in an executable graph
  kDisable = 4,
  kCopyAttributes = 5,  // of kernel nodes, by the first edge
};
struct GraphEdit {  // answered; edge_count GraphEdge follow
  uint64_t graph, exec;
  GraphChange what;
  uint32_t node, edge_count, reserved;
};

struct GraphNodeAttribute {  // answered; the value, when it is asked for
  uint64_t graph;
  uint32_t node, set;  // 1: it is given
  LaunchAttribute attribute;
};

struct GraphInstantiate {  // answered by GraphOutcome
  uint64_t exec, graph, flags;
};
struct GraphExecUpdate {  // answered by GraphOutcome
  uint64_t exec, graph;
};
struct GraphOutcome {
  uint32_t result;      // CUgraphInstantiateResult, CUgraphExecUpdateResult
  uint32_t node, from;  // kNoNode: none
  uint32_t reserved;
};
struct GraphExecId {
  uint64_t exec;
};
struct GraphLaunch {
  uint64_t exec, stream;
  uint32_t upload;  // 1: make ready only
  uint32_t reserved;
};

// Host memory of the worker's that stands for the program's in copies of graphs, where they share
// none: written and read by the host functions beside such a copy.
struct ShadowMake {
  uint64_t id;     // the client's, for each session once
  uint64_t bytes;  // 0: this is its end
};
struct ShadowAccess {  // writing: data follows; reading is answered by the data
  uint64_t id, offset, bytes;
  uint64_t reserved;
};
inline constexpr uint64_t kMaxShadowBytes = 1ull << 30;  // of a session

}  // namespace sluice::wire
