// SPDX-License-Identifier: Apache-2.0
#include "worker/vgpu_memory.h"

#include <algorithm>
#include <string>

#include "process/log.h"

namespace sluice::worker {

namespace {

constexpr uint64_t kLeastHostBytes = 256ull << 20;

uint64_t less(uint64_t from, uint64_t bytes) { return from - std::min(from, bytes); }

void log_surplus(const std::string& what, uint64_t given, uint64_t taken) {
  process::log_error("accounting: " + std::to_string(given) + what + " are given back, of " +
                     std::to_string(taken));
}

}  // namespace

uint64_t VgpuMemory::room() const {
  return less(credit_, taken(MemoryUse::kClient) + taken(MemoryUse::kLibrary));
}

uint64_t VgpuMemory::left(MemoryUse use) const {
  switch (use) {
    case MemoryUse::kClient:
    case MemoryUse::kLibrary:
      return room();
    case MemoryUse::kLibraryHost:
      return less(std::max(kLeastHostBytes, bytes_), taken(use));
    case MemoryUse::kCode:
    case MemoryUse::kOpened:
      break;
  }
  return less(bytes_, taken(use));
}

uint64_t VgpuMemory::used() const {
  return taken(MemoryUse::kClient) + taken(MemoryUse::kLibrary) + taken(MemoryUse::kCode);
}

bool VgpuMemory::take(MemoryUse use, uint64_t bytes) {
  if (bytes > left(use)) return false;
  of(use) += bytes;
  if (use == MemoryUse::kLibrary) ++library_changes_;
  show();
  return true;
}

uint64_t VgpuMemory::give(MemoryUse use, uint64_t bytes) {
  const uint64_t given = std::min(bytes, taken(use));
  if (given < bytes) log_surplus(" bytes of a vGPU's memory", bytes, given);
  of(use) -= given;
  if (use == MemoryUse::kLibrary) ++library_changes_;
  show();
  return given;
}

void VgpuMemory::show_on(std::atomic<uint64_t>* taken, std::atomic<uint64_t>* staying) {
  taken_shown_ = taken;
  staying_shown_ = staying;
  show();
}

void VgpuMemory::show() const {
  if (!taken_shown_) return;
  taken_shown_->store(used(), std::memory_order_seq_cst);
  staying_shown_->store(less(taken(MemoryUse::kLibrary), laid_) + taken(MemoryUse::kCode),
                        std::memory_order_relaxed);
}

void VgpuMemory::lay(uint64_t bytes) {
  laid_ += bytes;
  show();
}

void VgpuMemory::lift(uint64_t bytes) {
  laid_ = less(laid_, bytes);
  show();
}

void VgpuMemory::drop_credit(uint64_t bytes) { credit_ -= std::min(bytes, room()); }

bool VgpuMemory::take_paid_stream() {
  if (streams_ >= std::max(streams_paid_, kStreamsOfContext)) return false;
  ++streams_;
  return true;
}

void VgpuMemory::add_paid_stream() {
  ++streams_;
  streams_paid_ = std::max(streams_paid_, kStreamsOfContext) + 1;
}

bool VgpuMemory::take_unpaid_stream() {
  if (streams_ >= streams_paid_ + 2 * kStreamsOfContext) return false;
  ++streams_;
  return true;
}

void VgpuMemory::give_stream() {
  if (streams_ == 0) return log_surplus(" streams", 1, 0);
  --streams_;
}

}  // namespace sluice::worker
