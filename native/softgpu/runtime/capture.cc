// SPDX-License-Identifier: Apache-2.0
#include "softgpu/runtime/capture.h"

#include <algorithm>
#include <unordered_set>

namespace sluice::softgpu {

std::atomic<int> capturing_streams{0};

namespace {

struct Capturing {
  std::shared_ptr<Stream> stream;
  std::shared_ptr<CaptureSequence> sequence;
  std::vector<GraphNode*> after;  // what the next node comes after
};

struct State {
  std::mutex mutex;
  std::unordered_map<Stream*, Capturing> streams;
  std::vector<std::shared_ptr<CaptureSequence>> sequences;  // begun and not ended
  uint64_t next_id = 1;
};

State& state() {
  static auto* all = new State;
  return *all;
}

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

std::vector<GraphNode::Edge> edges_from(const std::vector<GraphNode*>& nodes) {
  std::vector<GraphNode::Edge> edges;
  edges.reserve(nodes.size());
  for (GraphNode* node : nodes) edges.push_back({node, {}});
  return edges;
}

// The legacy stream would have to wait for a stream that captures.
CUresult implicit(Stream& stream, bool breaks = true) {
  if (!stream.legacy()) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (auto& [key, capturing] : state().streams) {
    if (&key->context() != &stream.context() || !key->blocking()) continue;
    if (breaks) capturing.sequence->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return result;
}

Capturing* find(Stream& stream) {
  auto found = state().streams.find(&stream);
  return found == state().streams.end() ? nullptr : &found->second;
}

// Everything that `nodes` come after, themselves included.
std::unordered_set<const GraphNode*> ancestors(std::vector<GraphNode*> nodes) {
  std::unordered_set<const GraphNode*> all;
  while (!nodes.empty()) {
    GraphNode* node = nodes.back();
    nodes.pop_back();
    if (!all.insert(node).second) continue;
    for (const GraphNode::Edge& edge : node->after) nodes.push_back(edge.from);
  }
  return all;
}

void merge(std::vector<GraphNode*>& into, const std::vector<GraphNode*>& more) {
  for (GraphNode* node : more) {
    if (std::find(into.begin(), into.end(), node) == into.end()) into.push_back(node);
  }
}

}  // namespace

std::optional<CUresult> add_to_capture(Stream& stream, const std::function<Work()>& work) {
  std::lock_guard lock(state().mutex);
  Capturing* capturing = find(stream);
  if (!capturing) {
    if (CUresult wrong = implicit(stream); wrong != CUDA_SUCCESS) return wrong;
    return std::nullopt;
  }
  CaptureSequence& sequence = *capturing->sequence;
  if (sequence.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  capturing->after = {sequence.graph->add(work(), edges_from(capturing->after))};
  return CUDA_SUCCESS;
}

CUresult unsafe_while_capturing() {
  if (capturing_streams.load(std::memory_order_relaxed) == 0) return CUDA_SUCCESS;
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  std::lock_guard lock(state().mutex);
  CUresult result = CUDA_SUCCESS;
  for (auto& sequence : state().sequences) {
    const bool own = sequence->thread == std::this_thread::get_id();
    const bool forbids = own ? sequence->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                             : sequence->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                   thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!forbids) continue;
    sequence->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult wait_while_capturing(Stream& stream) {
  if (capturing_streams.load(std::memory_order_relaxed) == 0) return CUDA_SUCCESS;
  {
    std::lock_guard lock(state().mutex);
    if (Capturing* capturing = find(stream)) {
      capturing->sequence->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (CUresult wrong = implicit(stream); wrong != CUDA_SUCCESS) return wrong;
  }
  return unsafe_while_capturing();
}

CUresult wait_while_capturing(Context& context) {
  if (capturing_streams.load(std::memory_order_relaxed) == 0) return CUDA_SUCCESS;
  std::lock_guard lock(state().mutex);
  CUresult result = CUDA_SUCCESS;
  for (auto& [key, capturing] : state().streams) {
    if (&key->context() != &context) continue;
    capturing.sequence->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult exchange_capture_mode(CUstreamCaptureMode* mode) {
  if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  std::swap(thread_mode, *mode);
  return CUDA_SUCCESS;
}

CUresult begin_capture(Stream& stream, CUstreamCaptureMode mode, std::shared_ptr<Graph> into,
                       std::vector<GraphNode*> after) {
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  if (stream.legacy()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  std::lock_guard lock(state().mutex);
  if (find(stream)) return CUDA_ERROR_ILLEGAL_STATE;
  auto sequence = std::make_shared<CaptureSequence>();
  sequence->id = state().next_id++;
  sequence->into_existing = into != nullptr;
  sequence->graph = into ? std::move(into) : std::make_shared<Graph>(stream.context());
  if (!sequence->into_existing) publish_graph(sequence->graph);
  sequence->mode = mode;
  sequence->thread = std::this_thread::get_id();
  sequence->origin = &stream;
  state().streams[&stream] = {stream.shared_from_this(), sequence, std::move(after)};
  state().sequences.push_back(std::move(sequence));
  capturing_streams.store(static_cast<int>(state().streams.size()));
  return CUDA_SUCCESS;
}

CUresult end_capture(Stream& stream, CUgraph* graph) {
  std::lock_guard lock(state().mutex);
  if (graph) *graph = nullptr;
  Capturing* capturing = find(stream);
  // Whoever recorded into a graph of his own knows it.
  if (!graph && (!capturing || !capturing->sequence->into_existing))
    return CUDA_ERROR_INVALID_VALUE;
  if (!capturing) return CUDA_ERROR_ILLEGAL_STATE;
  const std::shared_ptr<CaptureSequence> sequence = capturing->sequence;
  if (sequence->origin != &stream) {
    sequence->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  CUresult result = sequence->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  if (sequence->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      sequence->thread != std::this_thread::get_id()) {
    result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;  // it ends all the same
  }
  if (result == CUDA_SUCCESS) {
    const auto joined = ancestors(capturing->after);
    for (auto& [key, other] : state().streams) {
      if (other.sequence != sequence) continue;
      for (const GraphNode* node : other.after) {
        if (!joined.contains(node)) result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
      }
    }
  }
  std::erase_if(state().streams, [&](const auto& s) { return s.second.sequence == sequence; });
  std::erase(state().sequences, sequence);
  capturing_streams.store(static_cast<int>(state().streams.size()));
  if (result == CUDA_SUCCESS) {
    if (graph) *graph = reinterpret_cast<CUgraph>(sequence->graph.get());
  } else if (!sequence->into_existing) {
    retract_graph(reinterpret_cast<CUgraph>(sequence->graph.get()));
  }
  sequence->invalidated = true;  // for events that still name it
  return result;
}

bool began_capture(Stream& stream) {
  if (capturing_streams.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard lock(state().mutex);
  const Capturing* capturing = find(stream);
  return capturing && capturing->sequence->origin == &stream;
}

CUresult capture_state(Stream& stream, CaptureState* result) {
  *result = {};
  std::lock_guard lock(state().mutex);
  const Capturing* capturing = find(stream);
  if (!capturing) return implicit(stream, false);
  const CaptureSequence& sequence = *capturing->sequence;
  result->status =
      sequence.invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  result->id = sequence.id;
  result->graph = reinterpret_cast<CUgraph>(sequence.graph.get());
  result->after = capturing->after;
  return CUDA_SUCCESS;
}

CUresult change_capture_dependencies(Stream& stream, const std::vector<GraphNode*>& nodes,
                                     bool replace) {
  std::lock_guard lock(state().mutex);
  Capturing* capturing = find(stream);
  if (!capturing) return CUDA_ERROR_ILLEGAL_STATE;
  if (capturing->sequence->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  for (const GraphNode* node : nodes) {
    if (node->graph != capturing->sequence->graph.get()) return CUDA_ERROR_INVALID_VALUE;
  }
  if (replace) capturing->after.clear();
  merge(capturing->after, nodes);
  return CUDA_SUCCESS;
}

std::optional<CUresult> record_in_capture(Stream& stream, const std::shared_ptr<Event>& event,
                                          bool external) {
  if (external) {
    if (auto answer = add_to_capture(stream, [&] { return Work(RecordWork{event}); })) {
      return answer;
    }
    return CUDA_ERROR_ILLEGAL_STATE;  // the flag is for streams that capture
  }
  if (capturing_streams.load(std::memory_order_relaxed) == 0) return std::nullopt;
  std::lock_guard lock(state().mutex);
  Capturing* capturing = find(stream);
  if (!capturing) {
    if (CUresult wrong = implicit(stream); wrong != CUDA_SUCCESS) return wrong;
    return std::nullopt;
  }
  if (capturing->sequence->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  auto mark = std::make_shared<EventMark>();
  mark->captured =
      std::make_shared<CapturedPoint>(CapturedPoint{capturing->sequence, capturing->after});
  event->set_mark(std::move(mark));
  return CUDA_SUCCESS;
}

std::optional<CUresult> wait_in_capture(Stream& stream, const std::shared_ptr<Event>& event,
                                        bool external) {
  if (external) {
    if (auto answer = add_to_capture(stream, [&] { return Work(WaitWork{event}); })) {
      return answer;
    }
    return CUDA_ERROR_ILLEGAL_STATE;  // the flag is for streams that capture
  }
  const std::shared_ptr<EventMark> mark = event->mark();
  if (!(mark && mark->captured) && capturing_streams.load(std::memory_order_relaxed) == 0) {
    return std::nullopt;
  }
  std::lock_guard lock(state().mutex);
  Capturing* capturing = find(stream);
  if (!mark || !mark->captured) {
    if (!capturing) {
      if (CUresult wrong = implicit(stream); wrong != CUDA_SUCCESS) return wrong;
      return std::nullopt;
    }
    if (capturing->sequence->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!mark) return CUDA_SUCCESS;  // never recorded: nothing to wait for
    capturing->sequence->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  const CapturedPoint& point = *mark->captured;
  const bool under_way = std::find(state().sequences.begin(), state().sequences.end(),
                                   point.sequence) != state().sequences.end();
  if (!under_way) return CUDA_ERROR_INVALID_VALUE;
  if (point.sequence->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!capturing) {
    if (stream.legacy()) {
      point.sequence->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    state().streams[&stream] = {stream.shared_from_this(), point.sequence, point.nodes};
    capturing_streams.store(static_cast<int>(state().streams.size()));
    return CUDA_SUCCESS;
  }
  if (capturing->sequence != point.sequence) {
    capturing->sequence->invalidated = point.sequence->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  merge(capturing->after, point.nodes);
  return CUDA_SUCCESS;
}

CUresult ask_captured_event(Event& event) {
  const std::shared_ptr<EventMark> mark = event.mark();
  if (!mark || !mark->captured) return unsafe_while_capturing();
  std::lock_guard lock(state().mutex);
  const auto& all = state().sequences;
  // Once that capture is over, the event was never recorded.
  if (std::find(all.begin(), all.end(), mark->captured->sequence) == all.end())
    return CUDA_ERROR_INVALID_VALUE;
  mark->captured->sequence->invalidated = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

}  // namespace sluice::softgpu
