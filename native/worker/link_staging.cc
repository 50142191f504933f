// SPDX-License-Identifier: Apache-2.0
#include "worker/link_staging.h"

#include <chrono>

namespace sluice::worker {

std::unique_ptr<Staging> Staging::make(const Driver& driver,
                                       std::vector<std::unique_ptr<Vgpu>>& vgpus) {
  std::unique_ptr<Staging> made(new Staging(driver));
  driver.cuCtxSetCurrent(vgpus[0]->gpu->context);
  void* memory = nullptr;
  if (driver.cuMemHostAlloc(&memory, kPieceBytes * kPieces, CU_MEMHOSTALLOC_PORTABLE) !=
      CUDA_SUCCESS)
    return nullptr;
  made->memory_ = static_cast<std::byte*>(memory);
  for (size_t i = 0; i < kPieces; ++i) made->free_.push_back(i);
  for (const auto& v : vgpus) {
    Lane& lane = made->lanes_.emplace_back();
    lane.context = v->gpu->context;
    driver.cuCtxSetCurrent(lane.context);
    if (driver.cuStreamCreate(&lane.stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) return nullptr;
    lane.events.resize(kPieces);
    for (CUevent& event : lane.events)
      if (driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return nullptr;
  }
  return made;
}

Staging::~Staging() {
  for (const Lane& lane : lanes_) {
    driver_.cuCtxSetCurrent(lane.context);
    for (CUevent event : lane.events)
      if (event) driver_.cuEventDestroy_v2(event);
    if (lane.stream) driver_.cuStreamDestroy_v2(lane.stream);
  }
  if (memory_) driver_.cuMemFreeHost(memory_);
}

Staging::Piece Staging::take() {
  std::lock_guard lock(mutex_);
  if (free_.empty()) return {};
  const size_t index = free_.back();
  free_.pop_back();
  return {std::shared_ptr<std::byte>(memory_ + index * kPieceBytes,
                                     [this, index](std::byte*) {
                                       std::lock_guard given(mutex_);
                                       free_.push_back(index);
                                       given_back_.notify_all();
                                     }),
          index};
}

void Staging::wait(int milliseconds) {
  std::unique_lock lock(mutex_);
  given_back_.wait_for(lock, std::chrono::milliseconds(milliseconds),
                       [this] { return !free_.empty(); });
}

CUresult Staging::mark(uint32_t device, const Piece& piece) {
  return driver_.cuEventRecord(lanes_[device].events[piece.index], lanes_[device].stream);
}

CUresult Staging::await(uint32_t device, const Piece& piece) {
  return driver_.cuEventSynchronize(lanes_[device].events[piece.index]);
}

}  // namespace sluice::worker
