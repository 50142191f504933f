// SPDX-License-Identifier: Apache-2.0
#include "worker/bulk.h"

#include "channel/own_memory.h"
#include "wire/frame.h"

namespace sluice::worker {

BulkFrame* BulkFrames::add() {
  void* at = nullptr;
  if (driver_.cuMemHostAlloc(&at, wire::kMaxFrameBytes, CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS)
    return nullptr;
  all_.push_back({});
  all_.back().at = static_cast<std::byte*>(at);
  channel::OwnMemory::add(all_.back().at + kHead, wire::kMaxFrameBytes - kHead);
  return &all_.back();
}

BulkFrame* BulkFrames::take() {
  std::lock_guard lock(mutex_);
  if (all_.size() < kBuffers || aside_.empty())
    if (BulkFrame* const added = add()) return added;
  if (aside_.empty()) return nullptr;
  BulkFrame* oldest = aside_.front();
  aside_.pop_front();
  // A context that died lets go of everything, so whatever this says, the buffer is free.
  if (oldest->is_read) driver_.cuEventSynchronize(oldest->read);
  oldest->is_read = false;
  return oldest;
}

BulkFrame* BulkFrames::take_ahead() {
  std::lock_guard lock(mutex_);
  if (all_.size() < kBuffers)
    if (BulkFrame* const added = add()) return added;
  if (aside_.empty()) return nullptr;
  BulkFrame* oldest = aside_.front();
  if (oldest->is_read && driver_.cuEventQuery(oldest->read) == CUDA_ERROR_NOT_READY) return nullptr;
  aside_.pop_front();
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
