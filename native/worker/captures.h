// SPDX-License-Identifier: Apache-2.0
// Which streams of a session capture, and what the worker does differently meanwhile: the driver
// lets a stream that captures be asked or waited for by nobody, and a context with such a stream
// not as a whole.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>

#include "worker/driver.h"

namespace sluice::worker {

class Session;
struct Vgpu;

// Which streams began captures that have not ended. The worker's own calls must not touch a stream
// that captures: whoever does so without knowing holds the lock and finds that nobody captures.
class Captures {
 public:
  std::mutex mutex;
  bool any() const { return count_.load(std::memory_order_acquire) != 0; }

  // Under the lock.
  bool begin(uint64_t stream, uint64_t graph) {
    const bool fresh = graphs_.try_emplace(stream, graph).second;
    count_.store(static_cast<uint32_t>(graphs_.size()), std::memory_order_release);
    return fresh;
  }
  void end(uint64_t stream) {
    graphs_.erase(stream);
    count_.store(static_cast<uint32_t>(graphs_.size()), std::memory_order_release);
  }
  uint64_t graph_of(uint64_t stream) const {
    const auto it = graphs_.find(stream);
    return it == graphs_.end() ? 0 : it->second;
  }

 private:
  std::atomic<uint32_t> count_{0};
  std::map<uint64_t, uint64_t> graphs_;
};

// Whether the driver has this stream in a capture.
bool capturing(Session& s, CUstream stream);
// The worker's own work leaves a stream that is about to capture. Under the captures' lock.
void keep_out(Session& s, CUstream stream, Vgpu* v);
// Waits for all work of the vGPU that is under way.
CUresult wait_idle(Session& s, Vgpu* v);

}  // namespace sluice::worker
