// SPDX-License-Identifier: Apache-2.0
// Which addresses of this process the software GPU may touch, and on behalf of which device.
// Written by everything that maps, registers or frees memory; read by every kernel and copy.
// Readers work on a snapshot and announce which generation of it they use; retract() returns only
// once no reader can still use the old one, so that unmapping under a running kernel makes that
// kernel fail with an illegal address instead of taking the process down.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace sluice::softgpu {

// Readers or writers.
inline constexpr uint64_t kEveryDevice = ~0ull;

struct Range {
  uintptr_t low = 0;
  uintptr_t high = 0;    // one past the end
  uint64_t readers = 0;  // bit d: device d may read
  uint64_t writers = 0;
};

class RangeMap {
 public:
  using Snapshot = std::shared_ptr<const std::vector<Range>>;

  // One per thread that touches device memory; a thread uses one view at a time.
  struct Reader {
    std::atomic<uint64_t> seen{0};  // generation in use, 0 while the thread touches nothing
  };

  static RangeMap& instance();

  // Makes [low, low + size) accessible; replaces what was said of those addresses before.
  void grant(uintptr_t low, size_t size, uint64_t readers, uint64_t writers);
  // Takes the addresses away and waits until no reader relies on them.
  void retract(uintptr_t low, size_t size);

  uint64_t generation() const { return generation_.load(std::memory_order_seq_cst); }
  uint64_t generation_hint() const { return generation_.load(std::memory_order_relaxed); }
  Snapshot snapshot();

  std::shared_ptr<Reader> add_reader();

 private:
  void erase_locked(uintptr_t low, uintptr_t high);

  std::mutex mutex_;
  std::map<uintptr_t, Range> ranges_;  // by low
  Snapshot snapshot_;
  std::atomic<uint64_t> generation_{1};
  std::vector<std::weak_ptr<Reader>> readers_;
};

// A thread's window on the range map for one device: the last range that was hit is kept.
class MemoryView {
 public:
  MemoryView();
  ~MemoryView() { leave(); }
  MemoryView(const MemoryView&) = delete;
  MemoryView& operator=(const MemoryView&) = delete;

  // Between enter and leave, retract() waits for this thread to call tick().
  void enter(int device);
  // What any device may touch: for copies between two of them.
  void enter_for_all();
  void leave();
  // Adopts the newest generation. Call often; addresses checked before are no longer good.
  void tick() {
    if (map_.generation_hint() != generation_) refresh();
  }

  bool readable(uintptr_t address, size_t size) {
    return (address - read_low_ <= read_span_ && read_span_ - (address - read_low_) >= size) ||
           find(address, size, false);
  }
  bool accessible(uintptr_t address, size_t size, bool write) {
    return write ? writable(address, size) : readable(address, size);
  }
  bool writable(uintptr_t address, size_t size) {
    return (address - write_low_ <= write_span_ && write_span_ - (address - write_low_) >= size) ||
           find(address, size, true);
  }

 private:
  void refresh();
  bool find(uintptr_t address, size_t size, bool write);
  void forget();

  RangeMap& map_;
  std::shared_ptr<RangeMap::Reader> reader_;
  RangeMap::Snapshot snapshot_;
  uint64_t generation_ = 0;
  uint64_t device_bit_ = 1;
  uintptr_t read_low_ = 0;
  size_t read_span_ = 0;
  uintptr_t write_low_ = 0;
  size_t write_span_ = 0;
};

}  // namespace sluice::softgpu
