// SPDX-License-Identifier: Apache-2.0
// Stream capture as the application sees it. The worker's driver records (always in relaxed mode);
// which streams take part, how far, and what CUDA forbids meanwhile is known and enforced here. The
// entry points ask before they send anything; while no stream captures, asking is one load.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "abi/cuda_driver.h"

namespace sluice::client {

struct Device;
struct Event;
struct Stream;

// From cuStreamBeginCapture to cuStreamEndCapture.
struct Capture {
  uint64_t id = 0;     // as the application is told, never 0
  uint64_t graph = 0;  // minted when the capture began, or the existing one that it goes into
  bool existing = false;
  bool invalidated = false;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  const void* thread = nullptr;
  std::vector<Stream*> streams;  // that take part; the first began it
};

class Captures {
 public:
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }

  // Whether `stream` may be given work: in its capture, or past those of others.
  CUresult work(Stream* stream) { return any() ? check_work(stream) : CUDA_SUCCESS; }
  // For calls that might not be safe while somebody captures: the modes decide.
  CUresult unsafe() { return any() ? check_unsafe() : CUDA_SUCCESS; }
  // For calls that wait for, or ask about, a stream or a whole context.
  CUresult wait(Stream* stream) { return any() ? check_wait(stream) : CUDA_SUCCESS; }
  CUresult wait(Device* device) { return any() ? check_wait(device) : CUDA_SUCCESS; }
  // For questions about an event; `captured`: the capture that it was last recorded in.
  CUresult ask(uint64_t captured);

  CUresult begin(Stream* stream, CUstreamCaptureMode mode, uint64_t graph, bool existing);
  // On success the capture is over for the client, invalidated or not.
  CUresult end(Stream* stream, Capture* ended);
  // kNone: the stream does not capture. An error: the legacy stream cannot be asked now.
  CUresult status(Stream* stream, CUstreamCaptureStatus* status, Capture* capture);
  // An event recorded in `stream`: `captured` becomes its capture, or 0.
  CUresult record(Stream* stream, uint64_t* captured);
  enum class Join { kNothing, kWait };
  // `stream` is to wait for an event that was last recorded in capture `captured` (0: in none).
  CUresult join(Stream* stream, uint64_t captured, bool recorded, Join* how);
  // Something that Sluice cannot put into a graph: refused, and the capture with it.
  CUresult refuse(Stream* stream);
  // The stream is to be destroyed: one that has joined a capture leaves it, the one that began it
  // breaks it and stays.
  CUresult leave(Stream* stream);
  bool of_graph(uint64_t graph);

 private:
  CUresult check_work(Stream* stream);
  CUresult check_unsafe();
  CUresult check_wait(Stream* stream);
  CUresult check_wait(Device* device);
  CUresult implicit(const Stream* stream, bool breaks);
  Capture* find(uint64_t id);

  std::atomic<uint32_t> count_{0};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Capture>> all_;
  uint64_t next_id_ = 1;
};

}  // namespace sluice::client
