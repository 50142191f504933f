// SPDX-License-Identifier: Apache-2.0
#include "worker/bulk.h"

#include "wire/frame.h"

namespace sluice::worker {

BulkFrame* BulkFrames::take() {
  std::lock_guard lock(mutex_);
  if (all_.size() < kBuffers || aside_.empty()) {
    void* at = nullptr;
    if (driver_.cuMemHostAlloc(&at, wire::kMaxFrameBytes, CU_MEMHOSTALLOC_PORTABLE) ==
        CUDA_SUCCESS) {
      all_.push_back({});
      all_.back().at = static_cast<std::byte*>(at);
      return &all_.back();
    }
    if (aside_.empty()) return nullptr;
  }
  BulkFrame* oldest = aside_.front();
  aside_.pop_front();
  // A context that died lets go of everything, so whatever this says, the buffer is free.
  if (oldest->is_read) driver_.cuEventSynchronize(oldest->read);
  oldest->is_read = false;
  return oldest;
}

CUresult BulkFrames::read_by(BulkFrame& frame, CUstream stream, uint32_t device) {
  if (frame.read && frame.device != device) {
    driver_.cuEventDestroy_v2(frame.read);
    frame.read = nullptr;
  }
  if (!frame.read) {
    const CUresult e = driver_.cuEventCreate(&frame.read, CU_EVENT_DISABLE_TIMING);
    if (e != CUDA_SUCCESS) return e;
  }
  frame.device = device;
  frame.is_read = true;
  return driver_.cuEventRecord(frame.read, stream);
}

void BulkFrames::give_back(BulkFrame* frame) {
  std::lock_guard lock(mutex_);
  aside_.push_back(frame);
}

}  // namespace sluice::worker
