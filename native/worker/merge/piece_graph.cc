// SPDX-License-Identifier: Apache-2.0
#include "worker/merge/piece_graph.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "library/objects.h"
#include "worker/graph_size.h"
#include "worker/library/charge.h"
#include "worker/library/library.h"
#include "worker/limits.h"
#include "worker/rehearsal.h"

namespace sluice::worker::merge {

namespace {

namespace ids = sluice::library;

// What stands for the worker's own stream where sessions' streams are told apart by id.
constexpr uint64_t kOwnStream = ~uint64_t{0};

// While this lives a capture of the worker's own is under way, and everybody keeps out of it.
class OwnCapture {
 public:
  OwnCapture(Session& s, CUstream stream) : s_(s), stream_(stream) {
    begun_ =
        s.driver.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS;
    if (begun_) s.captures.begin(kOwnStream, kOwnStream);
  }
  ~OwnCapture() {
    CUgraph made = nullptr;
    if (end(&made) && made) s_.driver.cuGraphDestroy(made);
  }
  bool begun() const { return begun_; }
  bool end(CUgraph* made) {
    if (!begun_) return false;
    begun_ = false;
    const CUresult e = s_.driver.cuStreamEndCapture(stream_, made);
    s_.captures.end(kOwnStream);
    return e == CUDA_SUCCESS && *made;
  }

 private:
  Session& s_;
  const CUstream stream_;
  bool begun_ = false;
};

bool run_now(Session& s, Command c) {
  c.header.lane = wire::kNoLane;
  Reply reply;
  dispatch_table()[c.header.function].run(s, c, reply);
  return reply.status == CUDA_SUCCESS;
}

// What descriptors and handles were told last, which commands that run once more tell them anew.
class ToldLast {
 public:
  explicit ToldLast(Session& s) : s_(s) {}

  // Runs such a command. False: it failed, or what it replaces could not be told again.
  bool set(const Command& c, const Reader& reader) {
    const auto last = reader.told_last(c);
    if (last.empty()) return false;
    all_.emplace_back(last.begin(), last.end());
    return run_now(s_, c);
  }
  // Behind the rehearsal: as they were.
  bool back() {
    bool well = true;
    for (const auto& frame : all_) well &= run_now(s_, command_of(frame));
    all_.clear();
    return well;
  }

 private:
  Session& s_;
  std::vector<std::vector<std::byte>> all_;
};

// Library handles whose work goes to a stream that they were told, which for a capture is another.
class HandlesElsewhere {
 public:
  HandlesElsewhere(Session& s, const LibraryStates& libraries) : s_(s), libraries_(libraries) {}

  bool add(uint64_t id, uint16_t set_stream, uint32_t context) {
    if (!there_.insert(id).second) return true;
    LibraryStates::Told told;
    if (const auto* known = libraries_.told(id)) told = *known;
    if (told.stream.empty()) {
      // It was told none, so it has the legacy stream.
      told.stream.resize(sizeof(wire::FrameHeader) + 16);
      const wire::FrameHeader header{static_cast<uint32_t>(told.stream.size()), set_stream,
                                     wire::kNoLane, 0, context};
      std::memcpy(told.stream.data(), &header, sizeof header);
      std::memcpy(told.stream.data() + sizeof header, &id, sizeof id);
    }
    all_.push_back(std::move(told));
    return tell(all_.back());
  }
  // Behind the rehearsal: as they were.
  bool back() {
    bool well = true;
    for (const auto& told : all_) well &= tell(told);
    all_.clear();
    return well;
  }

 private:
  bool tell(const LibraryStates::Told& told) {
    return run_now(s_, command_of(told.stream)) &&
           (told.workspace.empty() || run_now(s_, command_of(told.workspace)));
  }

  Session& s_;
  const LibraryStates& libraries_;
  std::set<uint64_t> there_;
  std::vector<LibraryStates::Told> all_;
};

// The function that tells the handle of this call its stream; 0: the call says its stream itself.
uint16_t sets_stream_of(uint16_t function) {
  if (function == ids::id_sluiceCudnnBackendExecute) return ids::id_cudnnSetStream;
  const Libraries::Entry* entry =
      function >= wire::kFirstLibraryFunction ? Libraries::get().find(function) : nullptr;
  if (!entry) return 0;
  const std::string_view library = entry->table->spec->name;
  if (library == "cudnn") return ids::id_cudnnSetStream;
  return library == "cublas" ? ids::id_cublasSetStream_v2 : 0;
}

}  // namespace

CUstream CaptureStreams::of(Vgpu& v) {
  if (streams_.size() <= v.index) streams_.resize(v.index + 1);
  CUstream& stream = streams_[v.index];
  if (stream || !take_stream(session_, v)) return stream;
  // Non-blocking, so that the legacy stream may be used while it captures.
  if (session_.driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
    stream = nullptr;
    give_stream(v);
  }
  return stream;
}

std::unique_ptr<PieceGraph> PieceGraph::make(Session& s, CaptureStreams& streams,
                                             const Frames& before, Frames frames,
                                             const std::vector<Read>& reads, const Reader& reader,
                                             Refusal* why) {
  const auto works = std::ranges::find(reads, false, &Read::sets);
  if (works == reads.end()) return *why = Refusal::kNodes, nullptr;
  std::unique_lock lock(s.captures.mutex, std::try_to_lock);
  if (!lock || s.captures.any()) return *why = Refusal::kBusy, nullptr;
  std::unique_ptr<PieceGraph> made(new PieceGraph(s));
  made->frames_ = std::move(frames);
  for (const Read& r : reads) made->steps_.push_back({r, nullptr, {}});
  made->works_ = static_cast<uint32_t>(std::ranges::count(reads, false, &Read::sets));
  made->stream_ = works->stream;
  made->context_ = made->frames_.at(0).header.context;
  StreamObject object;
  if (made->stream_ != 0 && (!s.objects.streams.get(made->stream_, &object) || object.green))
    return *why = Refusal::kGreen, nullptr;
  CUstream client;
  Vgpu* v = nullptr;
  if (!s.stream(made->stream_, made->context_, &client, &v))
    return *why = Refusal::kCapture, nullptr;
  const CUstream own = streams.of(*v);
  *why = own ? made->capture(own, before, reader) : Refusal::kCapture;
  return *why == Refusal::kNone ? std::move(made) : nullptr;
}

PieceGraph::~PieceGraph() {
  if (exec_) session_.driver.cuGraphExecDestroy(exec_);
  if (graph_) session_.driver.cuGraphDestroy(graph_);
  give_nodes(session_, nodes_);
}

bool PieceGraph::run_all(CUstream stream, const Frames& before, const Reader& reader) {
  HandlesElsewhere handles(session_, reader.libraries());
  ToldLast told(session_);
  bool well = true;
  {
    const Rehearsal rehearsal(stream_, context_, stream);
    for (size_t i = 0; i < before.size() && well; ++i)
      well = told.set(before.at(i), reader) && !rehearsal.refused();
    for (size_t i = 0; i < frames_.size() && well; ++i) {
      const Command c = frames_.at(i);
      launches_only_ &= steps_[i].read.launch;
      if (steps_[i].read.sets) {
        well = told.set(c, reader) && !rehearsal.refused();
        continue;
      }
      if (const uint16_t set = sets_stream_of(c.header.function)) {
        uint64_t handle;
        std::memcpy(&handle, c.body.data(), sizeof handle);
        well = handles.add(handle, set, c.header.context);
      }
      well = well && run_now(session_, c) && !rehearsal.refused();
      if (!well || !steps_[i].read.launch) continue;
      CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
      CUgraph graph = nullptr;
      const CUgraphNode* last = nullptr;
      const CUgraphEdgeData* edges = nullptr;
      size_t count = 0;
      well = session_.driver.cuStreamGetCaptureInfo_v3(stream, &status, nullptr, &graph, &last,
                                                       &edges, &count) == CUDA_SUCCESS &&
             status == CU_STREAM_CAPTURE_STATUS_ACTIVE && count == 1;
      if (!well) continue;
      steps_[i].node = last[0];
      well =
          session_.driver.cuGraphKernelNodeGetParams_v2(last[0], &steps_[i].kernel) == CUDA_SUCCESS;
    }
  }
  // Not told again it would work in the worker's stream from now on, or with what is not said of it
  // any more: the session cannot go on so.
  if (!handles.back()) session_.reject("a library's handle does not take its stream back");
  if (!told.back()) session_.reject("a library's object does not take back what it was told");
  return well;
}

Refusal PieceGraph::capture(CUstream stream, const Frames& before, const Reader& reader) {
  const Driver& d = session_.driver;
  {
    OwnCapture capture(session_, stream);
    if (!capture.begun() || !run_all(stream, before, reader)) return Refusal::kCapture;
    if (!capture.end(&graph_)) return Refusal::kCapture;
  }
  size_t count = 0;
  if (d.cuGraphGetNodes(graph_, nullptr, &count) != CUDA_SUCCESS || count == 0)
    return Refusal::kCapture;
  std::vector<CUgraphNode> nodes(count);
  d.cuGraphGetNodes(graph_, nodes.data(), &count);
  for (const CUgraphNode node : nodes) {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    if (d.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS ||
        (type != CU_GRAPH_NODE_TYPE_KERNEL && type != CU_GRAPH_NODE_TYPE_MEMCPY &&
         type != CU_GRAPH_NODE_TYPE_MEMSET))
      return Refusal::kNodes;
  }
  // The graph and the executable one.
  if (!take_nodes(session_, 2 * count)) return Refusal::kRoom;
  nodes_ = 2 * count;
  CUDA_GRAPH_INSTANTIATE_PARAMS p{};
  if (d.cuGraphInstantiateWithParams(&exec_, graph_, &p) != CUDA_SUCCESS) {
    exec_ = nullptr;
    return Refusal::kInstance;
  }
  settle_local_memory(session_, *session_.used_last());
  return Refusal::kNone;
}

bool PieceGraph::matches(size_t i, const Command& c, uint64_t key, const Read& r) const {
  if (i >= frames_.size() || frames_.key(i) != key) return false;
  const Command mine = frames_.at(i);
  if (mine.header.function != c.header.function || mine.header.context != c.header.context ||
      mine.body.size() != c.body.size())
    return false;
  const auto same = [&](size_t from, size_t to) {
    return std::memcmp(mine.body.data() + from, c.body.data() + from, to - from) == 0;
  };
  return r.launch ? same(0, r.varying) && same(r.varying_end, c.body.size())
                  : same(0, c.body.size());
}

bool PieceGraph::set_params(size_t i, std::span<const std::byte> params) {
  CUDA_KERNEL_NODE_PARAMS& p = steps_[i].kernel;
  size_t bytes = params.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<std::byte*>(params.data()),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  p.kernelParams = nullptr;
  p.extra = extra;
  return session_.driver.cuGraphExecKernelNodeSetParams_v2(exec_, steps_[i].node, &p) ==
         CUDA_SUCCESS;
}

bool PieceGraph::launch(const Frames& held, uint64_t name, CUresult* status) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Read& r = steps_[i].read;
    if (r.varying == r.varying_end) continue;
    const auto now = held.at(i).body.subspan(r.varying, r.varying_end - r.varying);
    const auto before = frames_.body(i).subspan(r.varying, now.size());
    if (std::memcmp(now.data(), before.data(), now.size()) == 0) continue;
    if (!set_params(i, now)) return false;
    std::memcpy(before.data(), now.data(), now.size());
  }
  CUstream stream;
  Vgpu* v;
  if (!session_.stream(stream_, context_, &stream, &v)) return false;
  Gate::Passage passage = v->gate->pass(stream, {name, works_});
  *status = session_.driver.cuGraphLaunch(exec_, stream);
  if (*status == CUDA_SUCCESS) passage.issued();
  return *status == CUDA_SUCCESS || is_sticky(*status);
}

}  // namespace sluice::worker::merge
