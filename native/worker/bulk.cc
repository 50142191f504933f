// SPDX-License-Identifier: Apache-2.0
#include "worker/bulk.h"

#include <cstdlib>

#include "channel/own_memory.h"
#include "wire/frame.h"

namespace sluice::worker {

BulkFrame* BulkFrames::add() {
  void* at = nullptr;
  const bool pinned = driver_.cuMemHostAlloc(&at, bytes_, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS;
  if (!pinned) at = bytes_ > wire::kMaxFrameBytes ? std::aligned_alloc(4096, bytes_) : nullptr;
  if (!at) return nullptr;
  all_.push_back({});
  BulkFrame& added = all_.back();
  added.at = static_cast<std::byte*>(at);
  added.owner = this;
  if (pinned) channel::OwnMemory::add(added.at + kHead, bytes_ - kHead);
  return &added;
}

BulkFrame* BulkFrames::take() {
  std::lock_guard lock(mutex_);
  if (all_.size() < most_ || aside_.empty())
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
  if (all_.size() < most_)
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
