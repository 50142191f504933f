// SPDX-License-Identifier: Apache-2.0
#include "tests/native/roundtrip/valid_frames.h"

#include <elf.h>

#include <stdexcept>
#include <tuple>
#include <utility>

#include "tests/native/roundtrip/library_frames.h"
#include "wire/generated.h"
#include "wire/graph_commands.h"

namespace sluice::test {

namespace {

using wire::CodeKind;

// The text below is made by native/codegen.
#include "tests/generated_frames.inc"

using Frames = std::vector<ValidFrame>;
using Rig = FurnishedRig;

// A file header and the one section header that every file has: machine code, which needs no
// compiler's thread for each of thousands of sessions.
std::string machine_code() {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_shoff = sizeof header, header.e_shentsize = sizeof(Elf64_Shdr), header.e_shnum = 1;
  return text(header) + std::string(sizeof(Elf64_Shdr), '\0');
}

void add_code(Rig&, Frames* all) {
  const std::string image = machine_code();
  auto f = make("Upload", wire::kUpload, false, "", wire::Upload{99, image.size(), 0, image.size()},
                image);
  all->push_back(f);
  using L = wire::CodeLoad;
  const uint32_t option[2] = {CU_JIT_MAX_REGISTERS, 32};
  const std::string options(reinterpret_cast<const char*>(option), sizeof option);
  f = make("CodeLoad, module", wire::kCodeLoad, true, "cuModuleLoadDataEx",
           L{handle_id(HandleKind::kModule, 9), Rig::kBlob, CodeKind::kModule, 1}, options);
  f.minted = {offsetof(L, id)};
  f.choices = {offsetof(L, kind)};
  all->push_back(f);
  f = make("CodeLoad, library", wire::kCodeLoad, true, "cuLibraryLoadData",
           L{handle_id(HandleKind::kLibrary, 9), Rig::kBlob, CodeKind::kLibrary, 1}, options);
  f.minted = {offsetof(L, id)};
  f.choices = {offsetof(L, kind)};
  all->push_back(f);
  using K = wire::CodeLoadKnown;
  f = make("CodeLoadKnown", wire::kCodeLoadKnown, true, "",
           K{handle_id(HandleKind::kModule, 9), 100000, {}, CodeKind::kModule, 1}, options);
  f.minted = {offsetof(K, id)};
  f.choices = {offsetof(K, kind)};
  all->push_back(f);
  using G = wire::FunctionGet;
  f = make("FunctionGet", wire::kFunctionGet, true, "cuModuleGetFunction",
           G{handle_id(HandleKind::kFunction, 9), Rig::kModuleId, CodeKind::kModule, 6}, "vector");
  f.minted = {offsetof(G, id)};
  f.handles = {offsetof(G, code)};
  all->push_back(f);
  f = make("FunctionGet, kernel", wire::kFunctionGet, true, "cuLibraryGetKernel",
           G{handle_id(HandleKind::kKernel, 9), Rig::kLibraryId, CodeKind::kLibrary, 6}, "kernel");
  f.minted = {offsetof(G, id)};
  f.handles = {offsetof(G, code)};
  all->push_back(f);
  using S = wire::FunctionSet;
  f = make("FunctionSet", wire::kFunctionSet, true, "cuFuncSetAttribute",
           S{Rig::kFunctionId, 8, 1024});
  f.handles = {offsetof(S, function)};
  f.choices = {offsetof(S, attribute)};
  all->push_back(f);
  f = make("FunctionSet, kernel", wire::kFunctionSet, false, "cuKernelSetAttribute",
           S{Rig::kKernelId, 8, 1024});
  f.handles = {offsetof(S, function)};
  f.choices = {offsetof(S, attribute)};
  all->push_back(f);
  using M = wire::LibraryModule;
  f = make("LibraryModule", wire::kLibraryModule, true, "cuLibraryGetModule",
           M{handle_id(HandleKind::kModule, 9), Rig::kLibraryId});
  f.minted = {offsetof(M, id)};
  f.handles = {offsetof(M, library)};
  all->push_back(f);
  using V = wire::GlobalGet;
  f = make("GlobalGet", wire::kGlobalGet, true, "cuModuleGetGlobal_v2",
           V{Rig::kModuleId, CodeKind::kModule, 4}, "data");
  f.handles = {offsetof(V, code)};
  all->push_back(f);
  f = make("GlobalGet, library", wire::kGlobalGet, true, "cuLibraryGetGlobal",
           V{Rig::kLibraryId, CodeKind::kLibrary, 4}, "data");
  f.handles = {offsetof(V, code)};
  all->push_back(f);
  using U = wire::CodeUnload;
  f = make("CodeUnload", wire::kCodeUnload, false, "cuModuleUnload",
           U{Rig::kModuleId, CodeKind::kModule, 0});
  f.handles = {offsetof(U, id)};
  all->push_back(f);
  f = make("CodeUnload, library", wire::kCodeUnload, false, "cuLibraryUnload",
           U{Rig::kLibraryId, CodeKind::kLibrary, 0});
  f.handles = {offsetof(U, id)};
  all->push_back(f);
}

void add_launches(Rig&, Frames* all) {
  using L = wire::Launch;
  const std::string params(20, 'p');
  L l{Rig::kFunctionId, Rig::kStreamId, {2, 3, 4}, {5, 6, 7}, 1024, 20, 0, 0};
  auto f = make("Launch", wire::kLaunch, false, "cuLaunchKernel", l, params);
  f.handles = {offsetof(L, function), offsetof(L, stream)};
  all->push_back(f);
  l.function = Rig::kKernelId;
  l.attribute_count = 1;
  wire::LaunchAttribute a{};
  a.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  a.value[0] = std::byte{1};
  f = make("Launch, attributes", wire::kLaunch, false, "cuLaunchKernelEx", l,
           params + std::string(reinterpret_cast<const char*>(&a), sizeof a));
  f.handles = {offsetof(L, function), offsetof(L, stream)};
  all->push_back(f);
}

void add_clusters(Rig&, Frames* all) {
  using O = wire::SluiceOccupancyOfClusters;
  O o{};
  o.function = Rig::kFunctionId;
  o.stream = Rig::kStreamId;
  o.gridX = o.gridY = o.gridZ = o.blockX = o.blockY = o.blockZ = o.clusterX = 1;
  auto f = make("OccupancyOfClusters", wire::kSluiceOccupancyOfClusters, true,
                "cuOccupancyMaxActiveClusters", o);
  f.handles = {offsetof(O, function), offsetof(O, stream)};
  f.choices = {offsetof(O, potential)};
  all->push_back(f);
  using M = wire::SluiceEncodeTensorMap;
  M m{};
  m.rank = 2;
  auto map =
      make("EncodeTensorMap", wire::kSluiceEncodeTensorMap, true, "cuTensorMapEncodeTiled", m);
  map.choices = {offsetof(M, kind), offsetof(M, rank)};
  all->push_back(map);
}

void add_streams(Rig& rig, Frames* all) {
  using T = wire::StreamAttribute;
  auto a = make("StreamAttribute", wire::kStreamAttribute, false, "cuStreamSetAttribute",
                T{Rig::kStreamId, {CU_LAUNCH_ATTRIBUTE_PRIORITY, 0, {}}});
  a.handles = {offsetof(T, stream)};
  a.choices = {offsetof(T, attribute)};
  all->push_back(a);
  T window{Rig::kStreamId, {CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, 0, {}}};
  const CUaccessPolicyWindow w{reinterpret_cast<void*>(rig.address()), 4096, 0.5f,
                               CU_ACCESS_PROPERTY_PERSISTING, CU_ACCESS_PROPERTY_STREAMING};
  std::memcpy(window.attribute.value, &w, sizeof w);
  a = make("StreamAttribute, window", wire::kStreamAttribute, false, "cuStreamSetAttribute",
           window);
  constexpr size_t kValue = offsetof(T, attribute) + offsetof(wire::LaunchAttribute, value);
  a.handles = {offsetof(T, stream)};
  a.addresses = {{kValue, 4096}};
  a.choices = {kValue + offsetof(CUaccessPolicyWindow, hitProp),
               kValue + offsetof(CUaccessPolicyWindow, missProp)};
  all->push_back(a);
  using C = wire::StreamCreate;
  auto f = make("StreamCreate", wire::kStreamCreate, false, "cuStreamCreateWithPriority",
                C{handle_id(HandleKind::kStream, 9), CU_STREAM_NON_BLOCKING, -1});
  f.minted = {offsetof(C, id)};
  f.choices = {offsetof(C, flags)};
  all->push_back(f);
  const auto plain = [&](const char* name, uint16_t function, bool answered, const char* calls) {
    auto g = make(name, function, answered, calls, wire::StreamId{Rig::kStreamId});
    g.handles = {0};
    all->push_back(g);
  };
  plain("StreamDestroy", wire::kStreamDestroy, false, "cuStreamDestroy_v2");
  plain("StreamSynchronize", wire::kStreamSynchronize, true, "cuStreamSynchronize");
  plain("StreamQuery", wire::kStreamQuery, true, "cuStreamQuery");
  using W = wire::StreamWaitEvent;
  f = make("StreamWaitEvent", wire::kStreamWaitEvent, false, "cuStreamWaitEvent",
           W{Rig::kStreamId, Rig::kEventId, 0, 0});
  f.handles = {offsetof(W, stream), offsetof(W, event)};
  all->push_back(f);
  using M = wire::Mark;
  f = make("Mark", wire::kMark, false, "cuStreamWriteValue64_v2", M{Rig::kStreamId, 17, 0, 5});
  f.handles = {offsetof(M, stream)};
  f.choices = {offsetof(M, mark)};
  all->push_back(f);
  using H = wire::HostFunction;
  f = make("HostFunction", wire::kHostFunction, false, "cuStreamWaitValue64_v2",
           H{Rig::kStreamId, 18, 19, 7});
  f.handles = {offsetof(H, stream)};
  f.choices = {offsetof(H, ready_mark), offsetof(H, done_mark)};
  all->push_back(f);
}

void add_events(Rig&, Frames* all) {
  using C = wire::EventCreate;
  auto f = make("EventCreate", wire::kEventCreate, false, "cuEventCreate",
                C{handle_id(HandleKind::kEvent, 9), CU_EVENT_DISABLE_TIMING, 0});
  f.minted = {offsetof(C, id)};
  f.choices = {offsetof(C, flags)};
  all->push_back(f);
  const auto plain = [&](const char* name, uint16_t function, bool answered, const char* calls) {
    auto g = make(name, function, answered, calls, wire::EventId{Rig::kEventId});
    g.handles = {0};
    all->push_back(g);
  };
  plain("EventDestroy", wire::kEventDestroy, false, "cuEventDestroy_v2");
  plain("EventSynchronize", wire::kEventSynchronize, true, "cuEventSynchronize");
  plain("EventQuery", wire::kEventQuery, true, "cuEventQuery");
  using R = wire::EventRecord;
  f = make("EventRecord", wire::kEventRecord, false, "cuEventRecordWithFlags",
           R{Rig::kEventId, Rig::kStreamId, 20, 0, 9});
  f.handles = {offsetof(R, event), offsetof(R, stream)};
  f.choices = {};
  all->push_back(f);
  using E = wire::EventElapsed;
  f = make("EventElapsed", wire::kEventElapsed, true, "cuEventElapsedTime_v2",
           E{Rig::kEventId, Rig::kSecondEventId});
  f.handles = {offsetof(E, start), offsetof(E, end)};
  all->push_back(f);
}

}  // namespace

wire::FrameHeader ValidFrame::header() const {
  return {static_cast<uint32_t>(sizeof(wire::FrameHeader) + words.size() * 8), function,
          answered ? uint16_t{0} : wire::kNoLane, answered ? 1u : 0u, context};
}

template <class T>
void FurnishedRig::send(uint16_t function, bool answered, const T& body, const std::string& tail) {
  const ValidFrame f = make("furnishing", function, answered, "", body, tail);
  Answer answer;
  if (!dispatch(f.header(), f.body(), &answer) || answer.status != CUDA_SUCCESS)
    throw std::runtime_error("the session cannot be furnished: " + session().reason());
}

FurnishedRig::FurnishedRig() {
  Recording& r = Recording::get();
  r.writing_down = false;
  const std::string image = machine_code();
  send(wire::kStreamCreate, false, wire::StreamCreate{kStreamId, 0, 0});
  send(wire::kEventCreate, false, wire::EventCreate{kEventId, 0, 0});
  send(wire::kEventCreate, false, wire::EventCreate{kSecondEventId, 0, 0});
  for (uint64_t blob : {uint64_t{1}, uint64_t{2}, kBlob})
    send(wire::kUpload, false, wire::Upload{blob, image.size(), 0, image.size()}, image);
  send(wire::kCodeLoad, true, wire::CodeLoad{kModuleId, 1, CodeKind::kModule, 0});
  send(wire::kCodeLoad, true, wire::CodeLoad{kLibraryId, 2, CodeKind::kLibrary, 0});
  send(wire::kLinkBegin, false, wire::LinkBegin{kLinkId, 0, 0});
  send(wire::kFunctionGet, true, wire::FunctionGet{kFunctionId, kModuleId, CodeKind::kModule, 1},
       "f");
  send(wire::kFunctionGet, true, wire::FunctionGet{kKernelId, kLibraryId, CodeKind::kLibrary, 1},
       "k");
  send(wire::kMemoryMap, false, wire::MemoryMap{0, 0, address(), kMappedBytes});
  send(wire::kAllocationCreate, false, wire::AllocationCreate{kAllocationId, 2 << 20, 0, 0});
  send(wire::kAllocationCreate, false, wire::AllocationCreate{kSpareAllocationId, 2 << 20, 0, 0});
  send(wire::kAllocationMap, false,
       wire::AllocationMap{kAllocationId, address() + kMappedBytes, 2 << 20});
  wire::SluiceArrayCreate array{};
  array.id = kArrayId, array.width = 64, array.height = 16, array.format = CU_AD_FORMAT_FLOAT;
  array.channels = 1;
  send(wire::kSluiceArrayCreate, false, array);
  array.id = kMipmappedId, array.levels = 3;
  send(wire::kSluiceArrayCreate, false, array);
  send(wire::kSluiceArrayLevel, false, wire::SluiceArrayLevel{kLevelId, kMipmappedId, 1, {}});
  wire::SluiceTextureCreate texture{};
  texture.array = kArrayId, texture.resource = CU_RESOURCE_TYPE_ARRAY;
  send(wire::kSluiceTextureCreate, true, texture);
  send(wire::kArenaRegister, false, wire::ArenaRegister{arena(), wire::kArenaChunk});
  send(wire::kOpenShared, true, wire::OpenShared{{{1, 2}}, opened(), 2 << 20, 0, 0});
  send(wire::kSharedEventCreate, true, wire::EventId{kSharedEventId});
  if (!session().unfetched.keep(0, 8, std::as_bytes(std::span(image)))) std::abort();
  furnish_libraries();
  send(wire::kGraphCreate, false, wire::GraphCreate{kGraphId});
  send(wire::kGraphConditional, true, wire::GraphConditional{kGraphId, 1, 0});
  for (auto type : {CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_GRAPH}) {
    const std::string body =
        type == CU_GRAPH_NODE_TYPE_KERNEL
            ? text(wire::KernelNode{kFunctionId, {1, 1, 1}, {1, 1, 1}, 0, 20}) + std::string(24, 0)
            : text(wire::ChildNode{kGraphId});
    send(wire::kGraphNodeAdd, true,
         wire::GraphNodeAdd{kGraphId, static_cast<uint32_t>(type),
                            static_cast<uint32_t>(body.size()), 0, 0},
         body);
  }
  send(wire::kGraphInstantiate, true, wire::GraphInstantiate{kExecId, kGraphId, 0});
  send(wire::kShadowMake, false, wire::ShadowMake{kShadow, kShadowBytes});
  // A host function of a graph that the client has been told of.
  session().use(0);
  auto* ready = reinterpret_cast<std::atomic<uint64_t>*>(session().signals.at(session(), kSignal));
  ready->store(1);
  session().signals.take_ready(1);
  r.writing_down = true;
  r.clear();
}

void FurnishedRig::begin_capture() {
  Recording& r = Recording::get();
  const bool before = std::exchange(r.writing_down, false);
  send(wire::kCaptureBegin, false, wire::CaptureBegin{kStreamId, kCaptureId, 0, 0});
  r.writing_down = before;
}

void FurnishedRig::complete_link() {
  Recording& r = Recording::get();
  const bool before = std::exchange(r.writing_down, false);
  send(wire::kLinkComplete, true, wire::LinkId{kLinkId});
  r.writing_down = before;
}

std::vector<ValidFrame> valid_frames(FurnishedRig& rig) {
  Frames all;
  add_memory_frames(rig, &all);
  add_array_frames(rig, &all);
  add_green_frames(rig, &all);
  add_code(rig, &all);
  add_link_frames(&all);
  add_profile_frames(&all);
  add_node_frames(rig, &all);
  add_launches(rig, &all);
  add_clusters(rig, &all);
  add_streams(rig, &all);
  add_events(rig, &all);
  add_graph_frames(rig, &all);
  add_generated_frames(rig, &all);
  add_hand_written_frames(rig, &all);
  add_nccl_frames(rig, &all);
  all.push_back(make("ReplyRest", wire::kReplyRest, true, "", uint64_t{8}));
  return all;
}

}  // namespace sluice::test
