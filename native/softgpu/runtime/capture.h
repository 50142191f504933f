// SPDX-License-Identifier: Apache-2.0
// Stream capture: which streams are recording into which graph, and what CUDA forbids meanwhile.
// Every function of the runtime that gives a stream work asks captured() first; every one that
// waits or might, asks one of the others. While no stream captures each costs one load.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "softgpu/runtime/graph.h"

namespace sluice::softgpu {

struct CaptureSequence {
  uint64_t id = 0;
  std::shared_ptr<Graph> graph;
  bool into_existing = false;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  Stream* origin = nullptr;
  bool invalidated = false;
};

// What an event recorded in a capturing stream stands for.
struct CapturedPoint {
  std::shared_ptr<CaptureSequence> sequence;
  std::vector<GraphNode*> nodes;
};

struct CaptureState {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  uint64_t id = 0;
  CUgraph graph = nullptr;
  std::vector<GraphNode*> after;
};

extern std::atomic<int> capturing_streams;

// Adds the work to the stream's capture, if it has one: the call's result. Nothing: the work is to
// be queued as ever.
std::optional<CUresult> add_to_capture(Stream& stream, const std::function<Work()>& work);
template <class F>
std::optional<CUresult> captured(Stream& stream, F&& work) {
  if (capturing_streams.load(std::memory_order_relaxed) == 0) return std::nullopt;
  return add_to_capture(stream, std::forward<F>(work));
}

// For calls that might not be safe while somebody captures: the thread's mode decides.
CUresult unsafe_while_capturing();
// For calls that wait for, or ask about, a stream or a whole context.
CUresult wait_while_capturing(Stream& stream);
CUresult wait_while_capturing(Context& context);
CUresult exchange_capture_mode(CUstreamCaptureMode* mode);

CUresult begin_capture(Stream& stream, CUstreamCaptureMode mode, std::shared_ptr<Graph> into,
                       std::vector<GraphNode*> after);
CUresult end_capture(Stream& stream, CUgraph* graph);
// Whether the stream is the one that its capture began with.
bool began_capture(Stream& stream);
CUresult capture_state(Stream& stream, CaptureState* state);
CUresult change_capture_dependencies(Stream& stream, const std::vector<GraphNode*>& nodes,
                                     bool replace);
// nullopt: neither stream nor event has to do with a capture.
std::optional<CUresult> record_in_capture(Stream& stream, const std::shared_ptr<Event>& event,
                                          bool external);
std::optional<CUresult> wait_in_capture(Stream& stream, const std::shared_ptr<Event>& event,
                                        bool external);
// 0, or why an event that was last recorded in a capture can be neither asked nor waited for.
CUresult ask_captured_event(Event& event);

}  // namespace sluice::softgpu
