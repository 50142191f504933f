// SPDX-License-Identifier: Apache-2.0
// Good frames of stream capture and graphs.
#include "tests/native/roundtrip/valid_frames.h"
#include "wire/graph_commands.h"

namespace sluice::test {

namespace {

using Frames = std::vector<ValidFrame>;
using Rig = FurnishedRig;

wire::GraphEdge edge(uint32_t from, uint32_t to = 0) { return {from, to, 0}; }

std::string host_call(Rig& rig) {
  return text(wire::MemOp{CU_STREAM_MEM_OP_WRITE_VALUE_64, 0, rig.arena() + 64, 1}) +
         text(wire::MemOp{CU_STREAM_MEM_OP_WAIT_VALUE_64, CU_STREAM_WAIT_VALUE_GEQ,
                          rig.arena() + 72, 1});
}

void add_captures(Rig& rig, Frames* all) {
  using B = wire::CaptureBegin;
  auto f = make("CaptureBegin", wire::kCaptureBegin, false, "cuStreamBeginCapture_v2",
                B{Rig::kStreamId, handle_id(HandleKind::kGraph, 9), 0, 0});
  f.handles = {offsetof(B, stream)};
  f.minted = {offsetof(B, graph)};
  f.choices = {offsetof(B, existing), offsetof(B, edge_count)};
  all->push_back(f);
  f = make("CaptureBegin, existing graph", wire::kCaptureBegin, false,
           "cuStreamBeginCaptureToGraph", B{Rig::kStreamId, Rig::kGraphId, 1, 1},
           text(edge(Rig::kKernelNode)));
  f.handles = {offsetof(B, stream), offsetof(B, graph)};
  f.choices = {offsetof(B, existing), sizeof(B) + offsetof(wire::GraphEdge, from)};
  all->push_back(f);
  using E = wire::CaptureEnd;
  f = make("CaptureEnd", wire::kCaptureEnd, true, "cuStreamEndCapture",
           E{Rig::kStreamId, Rig::kCaptureId, 0, 0});
  f.in_capture = true;
  f.handles = {offsetof(E, stream), offsetof(E, graph)};
  f.choices = {offsetof(E, discard)};
  all->push_back(f);
  using I = wire::CaptureInfo;
  f = make("CaptureInfo", wire::kCaptureInfo, true, "cuStreamGetCaptureInfo_v3",
           I{Rig::kStreamId, Rig::kCaptureId, 0, 0});
  f.in_capture = true;
  f.handles = {offsetof(I, stream), offsetof(I, graph)};
  all->push_back(f);
  using U = wire::CaptureUpdate;
  f = make("CaptureUpdate", wire::kCaptureUpdate, true, "cuStreamUpdateCaptureDependencies_v2",
           U{Rig::kStreamId, Rig::kGraphId, 1, 1}, text(edge(Rig::kChildNode)));
  f.handles = {offsetof(U, stream), offsetof(U, graph)};
  f.choices = {offsetof(U, replace), sizeof(U) + offsetof(wire::GraphEdge, from)};
  all->push_back(f);
  using N = wire::CaptureNode;
  f = make("CaptureNode", wire::kCaptureNode, true, "cuGraphAddNode_v2",
           N{Rig::kStreamId, Rig::kCaptureId});
  f.in_capture = true;
  f.reaches = "cuStreamUpdateCaptureDependencies_v2";
  f.handles = {offsetof(N, stream), offsetof(N, graph)};
  all->push_back(f);
  using M = wire::StreamMemOps;
  f = make("StreamMemOps", wire::kStreamMemOps, false, "cuStreamBatchMemOp_v2",
           M{Rig::kStreamId, 2, 0}, host_call(rig));
  f.handles = {offsetof(M, stream)};
  f.addresses = {{sizeof(M) + offsetof(wire::MemOp, address), 8}};
  f.choices = {offsetof(M, count), sizeof(M) + offsetof(wire::MemOp, operation),
               sizeof(M) + offsetof(wire::MemOp, flags)};
  all->push_back(f);
}

void add_graph_nodes(Rig& rig, Frames* all) {
  using A = wire::GraphNodeAdd;
  const auto add = [&](const char* name, CUgraphNodeType type, const std::string& body) {
    auto f = make(
        name, wire::kGraphNodeAdd, true, "cuGraphAddNode_v2",
        A{Rig::kGraphId, static_cast<uint32_t>(type), static_cast<uint32_t>(body.size()), 1, 0},
        body + text(edge(Rig::kKernelNode)));
    f.handles = {offsetof(A, graph)};
    f.choices = {offsetof(A, type), offsetof(A, edge_count),
                 sizeof(A) + body.size() + offsetof(wire::GraphEdge, from)};
    return f;
  };
  using K = wire::KernelNode;
  const std::string kernel =
      text(K{Rig::kFunctionId, {1, 2, 3}, {4, 5, 6}, 0, 20}) + std::string(24, 'p');
  auto f = add("GraphNodeAdd, kernel", CU_GRAPH_NODE_TYPE_KERNEL, kernel);
  f.handles.push_back(sizeof(A) + offsetof(K, function));
  all->push_back(f);
  using C = wire::CopyNode;
  const auto copy = [&](const char* name, wire::NodeMemory place, uint64_t address) {
    C c{};
    c.to = {rig.address() + 512, 128, 512, wire::NodeMemory::kDevice, 0};
    c.from = {address, 100, 300, place, 0};
    c.width = 100, c.rows = 3, c.depth = 1;
    auto g = add(name, CU_GRAPH_NODE_TYPE_MEMCPY, text(c));
    g.addresses = {{sizeof(A) + offsetof(C, to), 2 * 128 + 100}};
    g.choices.push_back(sizeof(A) + offsetof(C, from) + offsetof(wire::CopySide, place));
    if (place == wire::NodeMemory::kArena) g.arena = {{sizeof(A) + offsetof(C, from), 300}};
    if (place == wire::NodeMemory::kShadow) g.handles.push_back(sizeof(A) + offsetof(C, from));
    all->push_back(g);
  };
  copy("GraphNodeAdd, copy from the arena", wire::NodeMemory::kArena, rig.arena() + 8192);
  copy("GraphNodeAdd, copy from a shadow", wire::NodeMemory::kShadow, Rig::kShadow);
  using F = wire::FillNode;
  f = add("GraphNodeAdd, fill", CU_GRAPH_NODE_TYPE_MEMSET,
          text(F{rig.address(), 256, 16, 3, 4, 0x01020304}));
  f.addresses = {{sizeof(A) + offsetof(F, address), 2 * 256 + 64}};
  f.choices.push_back(sizeof(A) + offsetof(F, element_bytes));
  all->push_back(f);
  for (auto type : {CU_GRAPH_NODE_TYPE_EVENT_RECORD, CU_GRAPH_NODE_TYPE_WAIT_EVENT}) {
    f = add("GraphNodeAdd, event", type, text(wire::EventNode{Rig::kEventId}));
    f.handles.push_back(sizeof(A));
    all->push_back(f);
  }
  f = add("GraphNodeAdd, memory operations", CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
          text(wire::MemOpsNode{2, 0}) + host_call(rig));
  f.addresses = {{sizeof(A) + sizeof(wire::MemOpsNode) + offsetof(wire::MemOp, address), 8}};
  f.choices.push_back(sizeof(A));
  all->push_back(f);
  using D = wire::StagedCopyNode;
  D staged{};
  staged.copy.to = {rig.address() + 512, 128, 512, wire::NodeMemory::kDevice, 0};
  staged.copy.from = {rig.arena() + 8192, 100, 300, wire::NodeMemory::kArena, 0};
  staged.copy.width = 100, staged.copy.rows = 3, staged.copy.depth = 1;
  staged.call_first = 1;
  staged.call[0] = {CU_STREAM_MEM_OP_WRITE_VALUE_64, 0, rig.arena() + 64, 1};
  staged.call[1] = {CU_STREAM_MEM_OP_WAIT_VALUE_64, CU_STREAM_WAIT_VALUE_GEQ, rig.arena() + 72, 1};
  staged.call[2] = {CU_STREAM_MEM_OP_WRITE_VALUE_64, 0, rig.arena() + 72, 0};
  f = add("GraphNodeAdd, staged copy", static_cast<CUgraphNodeType>(wire::kStagedCopyNode),
          text(staged));
  f.addresses = {{sizeof(A) + offsetof(C, to), 2 * 128 + 100},
                 {sizeof(A) + offsetof(D, call) + offsetof(wire::MemOp, address), 8}};
  f.arena = {{sizeof(A) + offsetof(C, from), 300}};
  f.choices.push_back(sizeof(A) + offsetof(C, from) + offsetof(wire::CopySide, place));
  f.choices.push_back(sizeof(A) + offsetof(D, call_first));
  f.calls.clear();
  f.reaches = "cuGraphAddNode_v2";
  std::erase(f.choices, offsetof(A, type));  // whose number is one of those that others lack
  all->push_back(f);
  using Y = wire::CaptureCopy;
  f = make("CaptureCopy", wire::kCaptureCopy, false, "cuStreamUpdateCaptureDependencies_v2",
           Y{Rig::kStreamId, wire::kStagedCopyNode, sizeof(D)}, text(staged));
  f.in_capture = true;
  f.handles = {offsetof(Y, stream)};
  f.addresses = {{sizeof(Y) + offsetof(C, to), 2 * 128 + 100}};
  f.arena = {{sizeof(Y) + offsetof(C, from), 300}};
  f.choices = {offsetof(Y, body_bytes)};
  all->push_back(f);
  using W = wire::GraphWords;
  f = make("GraphWords", wire::kGraphWords, true, "", W{Rig::kGraphId, 1, 0},
           text(wire::WordsChange{rig.arena() + 64, rig.arena() + 128}));
  f.handles = {offsetof(W, graph)};
  f.choices = {offsetof(W, count)};
  f.addresses = {{sizeof(W) + offsetof(wire::WordsChange, to), 16}};
  f.reaches = "cuGraphGetNodes";
  all->push_back(f);
  f = add("GraphNodeAdd, child", CU_GRAPH_NODE_TYPE_GRAPH, text(wire::ChildNode{Rig::kGraphId}));
  f.handles.push_back(sizeof(A));
  all->push_back(f);
  all->push_back(add("GraphNodeAdd, empty", CU_GRAPH_NODE_TYPE_EMPTY, ""));

  using N = wire::ConditionalNode;
  f = add("GraphNodeAdd, conditional", CU_GRAPH_NODE_TYPE_CONDITIONAL,
          text(N{Recording::kCondition, CU_GRAPH_COND_TYPE_IF, 2}) +
              text(handle_id(HandleKind::kGraph, 9)) + text(handle_id(HandleKind::kGraph, 10)));
  f.handles.push_back(sizeof(A) + offsetof(N, handle));
  f.minted = {sizeof(A) + sizeof(N), sizeof(A) + sizeof(N) + 8};
  f.choices.push_back(sizeof(A) + offsetof(N, type));
  f.choices.push_back(sizeof(A) + offsetof(N, count));
  all->push_back(f);
  using V = wire::GraphConditional;
  f = make("GraphConditional", wire::kGraphConditional, true, "cuGraphConditionalHandleCreate",
           V{Rig::kGraphId, 1, CU_GRAPH_COND_ASSIGN_DEFAULT});
  f.handles = {offsetof(V, graph)};
  f.choices = {offsetof(V, flags)};
  all->push_back(f);

  using S = wire::GraphNodeSet;
  for (uint64_t exec : {uint64_t{0}, Rig::kExecId}) {
    f = make(exec ? "GraphNodeSet, executable" : "GraphNodeSet", wire::kGraphNodeSet, true,
             exec ? "cuGraphExecNodeSetParams" : "cuGraphNodeSetParams",
             S{Rig::kGraphId, exec, Rig::kKernelNode, CU_GRAPH_NODE_TYPE_KERNEL,
               static_cast<uint32_t>(kernel.size()), 0},
             kernel);
    f.handles = {offsetof(S, graph), sizeof(S) + offsetof(K, function)};
    if (exec) f.handles.push_back(offsetof(S, exec));
    f.choices = {offsetof(S, node), offsetof(S, type)};
    all->push_back(f);
  }
  using G = wire::GraphNodeGet;
  f = make("GraphNodeGet", wire::kGraphNodeGet, true, "cuGraphKernelNodeGetParams_v2",
           G{Rig::kGraphId, Rig::kKernelNode, 0});
  f.handles = {offsetof(G, graph)};
  f.choices = {offsetof(G, node)};
  all->push_back(f);
}

void add_graphs(Rig&, Frames* all) {
  auto f = make("GraphCreate", wire::kGraphCreate, false, "cuGraphCreate",
                wire::GraphCreate{handle_id(HandleKind::kGraph, 9)});
  f.minted = {0};
  all->push_back(f);
  using C = wire::GraphCopy;
  f = make("GraphCopy", wire::kGraphCopy, true, "cuGraphClone",
           C{handle_id(HandleKind::kGraph, 9), Rig::kGraphId, wire::kNoNode, 0});
  f.minted = {offsetof(C, id)};
  f.handles = {offsetof(C, graph)};
  all->push_back(f);
  f = make("GraphCopy, of a node", wire::kGraphCopy, true, "cuGraphChildGraphNodeGetGraph",
           C{handle_id(HandleKind::kGraph, 9), Rig::kGraphId, Rig::kChildNode, 0});
  f.minted = {offsetof(C, id)};
  f.handles = {offsetof(C, graph)};
  f.choices = {offsetof(C, node)};
  all->push_back(f);
  f = make("GraphDestroy", wire::kGraphDestroy, false, "cuGraphDestroy",
           wire::GraphId{Rig::kGraphId});
  f.handles = {0};
  all->push_back(f);
  using L = wire::GraphList;
  const char* const lists[] = {"cuGraphNodeGetType",
                               "cuGraphGetRootNodes",
                               "cuGraphGetEdges_v2",
                               "cuGraphNodeGetDependencies_v2",
                               "cuGraphNodeGetDependentNodes_v2",
                               "cuGraphNodeGetDependencies_v2",
                               "cuGraphGetNodes"};
  for (uint32_t what = 0; what < 7; ++what) {
    f = make("GraphList", wire::kGraphList, true, "",
             L{Rig::kGraphId, static_cast<wire::GraphListOf>(what), Rig::kChildNode, 0, 0});
    f.handles = {offsetof(L, graph)};
    f.choices = {offsetof(L, what)};
    if (what >= 3 && what <= 5) f.choices.push_back(offsetof(L, node));
    f.reaches = lists[what];
    all->push_back(f);
  }
  using E = wire::GraphEdit;
  const char* const edits[] = {"cuGraphAddDependencies_v2", "cuGraphRemoveDependencies_v2",
                               "cuGraphDestroyNode",        "cuGraphNodeSetEnabled",
                               "cuGraphNodeSetEnabled",     "cuGraphKernelNodeCopyAttributes"};
  for (uint32_t what = 0; what < 6; ++what) {
    const bool edges = what < 2 || what == 5;
    f = make("GraphEdit", wire::kGraphEdit, true, edits[what],
             E{Rig::kGraphId, Rig::kExecId, static_cast<wire::GraphChange>(what), Rig::kKernelNode,
               edges, 0},
             edges ? text(edge(Rig::kKernelNode, Rig::kChildNode)) : "");
    f.handles = {offsetof(E, graph)};
    f.choices = {offsetof(E, what)};
    if (edges) f.choices.push_back(sizeof(E) + offsetof(wire::GraphEdge, to));
    if (!edges) f.choices.push_back(offsetof(E, node));
    if (what == 3 || what == 4) f.handles.push_back(offsetof(E, exec));
    all->push_back(f);
  }
  using T = wire::GraphNodeAttribute;
  for (uint32_t given : {0u, 1u}) {
    wire::LaunchAttribute priority{CU_LAUNCH_ATTRIBUTE_PRIORITY, 0, {}};
    f = make("GraphNodeAttribute", wire::kGraphNodeAttribute, true,
             given ? "cuGraphKernelNodeSetAttribute" : "cuGraphKernelNodeGetAttribute",
             T{Rig::kGraphId, Rig::kKernelNode, given, priority});
    f.handles = {offsetof(T, graph)};
    f.choices = {offsetof(T, node), offsetof(T, set), offsetof(T, attribute)};
    all->push_back(f);
  }
  using I = wire::GraphInstantiate;
  f = make("GraphInstantiate", wire::kGraphInstantiate, true, "cuGraphInstantiateWithParams",
           I{handle_id(HandleKind::kGraphExec, 9), Rig::kGraphId, 1});
  f.minted = {offsetof(I, exec)};
  f.handles = {offsetof(I, graph)};
  f.choices = {offsetof(I, flags)};
  all->push_back(f);
  using U = wire::GraphExecUpdate;
  f = make("GraphExecUpdate", wire::kGraphExecUpdate, true, "cuGraphExecUpdate_v2",
           U{Rig::kExecId, Rig::kGraphId});
  f.handles = {offsetof(U, exec), offsetof(U, graph)};
  all->push_back(f);
  f = make("GraphExecDestroy", wire::kGraphExecDestroy, false, "cuGraphExecDestroy",
           wire::GraphExecId{Rig::kExecId});
  f.handles = {0};
  all->push_back(f);
  using R = wire::GraphLaunch;
  for (uint32_t upload : {0u, 1u}) {
    f = make("GraphLaunch", wire::kGraphLaunch, false, upload ? "cuGraphUpload" : "cuGraphLaunch",
             R{Rig::kExecId, Rig::kStreamId, upload, 0});
    f.handles = {offsetof(R, exec), offsetof(R, stream)};
    f.choices = {offsetof(R, upload)};
    all->push_back(f);
  }
}

void add_shadows(Rig&, Frames* all) {
  using M = wire::ShadowMake;
  all->push_back(make("ShadowMake", wire::kShadowMake, false, "cuMemHostAlloc", M{9, 4096}));
  auto f = make("ShadowMake, its end", wire::kShadowMake, false, "", M{Rig::kShadow, 0});
  f.handles = {offsetof(M, id)};
  all->push_back(f);
  f = make("SignalWait", wire::kSignalWait, true, "", wire::SignalWait{0});
  f.choices = {0};
  all->push_back(f);
  f = make("SignalDone", wire::kSignalDone, false, "", wire::SignalDone{Rig::kSignal});
  f.handles = {0};
  all->push_back(f);
  using A = wire::ShadowAccess;
  f = make("ShadowWrite", wire::kShadowWrite, false, "", A{Rig::kShadow, 8, 16, 0},
           std::string(16, 's'));
  f.handles = {offsetof(A, id)};
  all->push_back(f);
  f = make("ShadowRead", wire::kShadowRead, true, "", A{Rig::kShadow, 8, 16, 0});
  f.handles = {offsetof(A, id)};
  all->push_back(f);
}

}  // namespace

void add_graph_frames(FurnishedRig& rig, Frames* all) {
  add_captures(rig, all);
  add_graph_nodes(rig, all);
  add_graphs(rig, all);
  add_shadows(rig, all);
}

}  // namespace sluice::test
