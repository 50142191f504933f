// SPDX-License-Identifier: Apache-2.0
// A driver table for the executor's tests: fills write down their value, waits wait as long as a
// test wants, captures and graphs hold fills, and everything else there is does nothing. One at a
// time in a process.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "worker/driver.h"

namespace sluice::test {

class FakeDriver {
 public:
  FakeDriver() {
    table.cuCtxSetCurrent = [](CUcontext) { return CUDA_SUCCESS; };
    table.cuStreamQuery = [](CUstream) { return get()->stream_status.load(); };
    table.cuMemsetD32Async = [](CUdeviceptr, unsigned value, size_t, CUstream stream) {
      return get()->fill(value, stream);
    };
    table.cuCtxSynchronize = [] {
      return get()->on_synchronize ? get()->on_synchronize() : CUDA_SUCCESS;
    };
    table.cuEventCreate = [](CUevent* e, unsigned) {
      static std::atomic<uintptr_t> next{0};
      *e = reinterpret_cast<CUevent>(++next);
      return CUDA_SUCCESS;
    };
    table.cuEventRecord = [](CUevent, CUstream) { return CUDA_SUCCESS; };
    table.cuEventQuery = table.cuEventSynchronize = [](CUevent) { return CUDA_SUCCESS; };
    table.cuEventElapsedTime_v2 = [](float* ms, CUevent, CUevent) {
      *ms = 0;
      return CUDA_SUCCESS;
    };
    table.cuGetErrorName = [](CUresult, const char** name) {
      *name = "FAKE_ERROR";
      return CUDA_SUCCESS;
    };
    add_graphs();
    current_ = this;
  }

  std::vector<unsigned> fills() {
    std::lock_guard lock(mutex_);
    return fills_;
  }
  size_t fill_count() {
    std::lock_guard lock(mutex_);
    return fills_.size();
  }
  // Whether it has come to `n` within twenty seconds.
  bool wait_fills(size_t n) {
    std::unique_lock lock(mutex_);
    return grown_.wait_for(lock, std::chrono::seconds(20), [&] { return fills_.size() >= n; });
  }

  worker::Driver table;
  std::function<CUresult()> on_synchronize;  // both set before the session runs
  std::function<void(unsigned)> on_fill;
  std::atomic<CUresult> fill_status{CUDA_SUCCESS}, stream_status{CUDA_SUCCESS};
  std::atomic<CUresult> graph_status{CUDA_SUCCESS};  // of a launch

 private:
  using Fills = std::vector<unsigned>;
  static FakeDriver* get() { return current_.load(); }
  // A graph is a list of fills, and so is an executable one.
  void add_graphs() {
    table.cuStreamCreate = [](CUstream* stream, unsigned) {
      static int made;
      *stream = reinterpret_cast<CUstream>(&made);
      return CUDA_SUCCESS;
    };
    table.cuStreamIsCapturing = [](CUstream stream, CUstreamCaptureStatus* status) {
      std::lock_guard lock(get()->mutex_);
      *status = get()->capturing_ == stream && stream ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                                      : CU_STREAM_CAPTURE_STATUS_NONE;
      return CUDA_SUCCESS;
    };
    table.cuStreamBeginCapture_v2 = [](CUstream stream, CUstreamCaptureMode) {
      std::lock_guard lock(get()->mutex_);
      get()->capturing_ = stream;
      return CUDA_SUCCESS;
    };
    table.cuStreamEndCapture = [](CUstream, CUgraph* graph) {
      std::lock_guard lock(get()->mutex_);
      get()->capturing_ = nullptr;
      *graph = reinterpret_cast<CUgraph>(new Fills(std::exchange(get()->captured_, {})));
      return CUDA_SUCCESS;
    };
    table.cuGraphGetNodes = [](CUgraph graph, CUgraphNode* nodes, size_t* count) {
      const Fills& fills = *reinterpret_cast<Fills*>(graph);
      if (nodes)
        for (size_t i = 0; i < *count; ++i) nodes[i] = reinterpret_cast<CUgraphNode>(graph);
      *count = fills.size();
      return CUDA_SUCCESS;
    };
    table.cuGraphNodeGetType = [](CUgraphNode, CUgraphNodeType* type) {
      *type = CU_GRAPH_NODE_TYPE_MEMSET;
      return CUDA_SUCCESS;
    };
    table.cuGraphInstantiateWithParams = [](CUgraphExec* exec, CUgraph graph,
                                            CUDA_GRAPH_INSTANTIATE_PARAMS*) {
      *exec = reinterpret_cast<CUgraphExec>(new Fills(*reinterpret_cast<Fills*>(graph)));
      return CUDA_SUCCESS;
    };
    table.cuGraphLaunch = [](CUgraphExec exec, CUstream stream) {
      if (const CUresult e = get()->graph_status; e != CUDA_SUCCESS) return e;
      for (const unsigned value : *reinterpret_cast<Fills*>(exec)) get()->fill(value, stream);
      return CUDA_SUCCESS;
    };
    table.cuGraphDestroy = [](CUgraph graph) {
      delete reinterpret_cast<Fills*>(graph);
      return CUDA_SUCCESS;
    };
    table.cuGraphExecDestroy = [](CUgraphExec exec) {
      delete reinterpret_cast<Fills*>(exec);
      return CUDA_SUCCESS;
    };
  }
  CUresult fill(unsigned value, CUstream stream) {
    {
      std::lock_guard lock(mutex_);
      if (capturing_ && capturing_ == stream) return captured_.push_back(value), CUDA_SUCCESS;
    }
    if (on_fill) on_fill(value);
    std::lock_guard lock(mutex_);
    fills_.push_back(value);
    grown_.notify_all();
    return fill_status;
  }

  static inline std::atomic<FakeDriver*> current_{
      nullptr};  // the newest one: older sessions' watchdogs ask it too
  std::mutex mutex_;
  std::condition_variable grown_;
  Fills fills_, captured_;
  CUstream capturing_ = nullptr;
};

}  // namespace sluice::test
