// SPDX-License-Identifier: Apache-2.0
// A piece as an executable graph: the commands captured once more in a stream of the worker's own,
// as they were when they came last, and launched in place of the same commands. What was captured
// is the driver's and the libraries' own work, so a piece computes what its commands compute;
// parameters of kernels are set before a launch where they differ from the last one's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/merge/frames.h"
#include "worker/merge/library_states.h"
#include "worker/merge/reader.h"

namespace sluice::worker::merge {

// Why a piece was not made.
enum class Refusal : uint8_t {
  kNone,
  kBusy,      // another capture, or a library's call, is under way: later
  kCapture,   // a command is refused in a capture, or the capture broke
  kNodes,     // it holds what is no kernel, fill or copy, such as memory of the graph's own
  kGreen,     // its stream runs in a part of the GPU
  kRoom,      // the session has as many nodes as it may have
  kInstance,  // the driver makes no executable graph of it
};

// The streams in which pieces are captured, one for each vGPU.
class CaptureStreams {
 public:
  explicit CaptureStreams(Session& session) : session_(session) {}
  // Its context is current. nullptr: there is none to be had.
  CUstream of(Vgpu& v);

 private:
  Session& session_;
  std::vector<CUstream> streams_;
};

class PieceGraph {
 public:
  // By the leader. `before`: what sets libraries' objects to what they were when the commands ran.
  // nullptr with `why`.
  static std::unique_ptr<PieceGraph> make(Session& s, CaptureStreams& streams, const Frames& before,
                                          Frames frames, const std::vector<Read>& reads,
                                          const Reader& reader, Refusal* why);
  ~PieceGraph();
  PieceGraph(const PieceGraph&) = delete;

  size_t size() const { return frames_.size(); }
  // Whether its i-th command only tells a library's object something: the graph does not do that.
  bool sets(size_t i) const { return steps_[i].read.sets; }
  bool launches_only() const { return launches_only_; }
  // Whether the command is its i-th, but for parameters of a kernel.
  bool matches(size_t i, const Command& c, uint64_t key, const Read& r) const;
  // In place of `held`, which match, but for those that set something: these are to run behind it,
  // as what they set is in the graph where its calls had it. False: nothing was launched, all are
  // to run one by one.
  bool launch(const Frames& held, uint64_t name, CUresult* status);

 private:
  struct Step {
    Read read;
    CUgraphNode node = nullptr;  // of a kernel, and what it is but for its parameters
    CUDA_KERNEL_NODE_PARAMS kernel{};
  };
  explicit PieceGraph(Session& s) : session_(s) {}
  Refusal capture(CUstream stream, const Frames& before, const Reader& reader);
  bool run_all(CUstream stream, const Frames& before, const Reader& reader);
  bool set_params(size_t i, std::span<const std::byte> params);

  Session& session_;
  Frames frames_;  // with the parameters that the executable graph has
  std::vector<Step> steps_;
  bool launches_only_ = true;
  uint64_t stream_ = 0;
  uint32_t context_ = 0;
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
  uint64_t nodes_ = 0;  // counted as the session's
  uint32_t works_ = 0;  // commands that give the GPU work
};

}  // namespace sluice::worker::merge
