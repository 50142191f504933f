// SPDX-License-Identifier: Apache-2.0
#include "softgpu/memory/shared_use.h"

#include <array>
#include <memory>
#include <mutex>

#include "softgpu/memory/shared_file.h"

namespace sluice::softgpu {
namespace {

constexpr int kProcesses = SharedFile::kProcesses, kDevices = SharedFile::kDevices;

class Locked {
 public:
  explicit Locked(SharedFile& file) : file_(file), lock_(file, SharedFile::kWords, mutex()) {}
  Locked(const Locked&) = delete;

  // Of one that has ended nothing counts.
  uint64_t used(int device) const {
    uint64_t sum = 0;
    for (int i = 0; i < kProcesses; ++i) {
      std::atomic<uint64_t>& word = file_.word(i, device);
      if (word == 0) continue;
      if (!file_.is_taken(i)) word = 0;
      sum += word;
    }
    return sum;
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  SharedFile& file_;
  const SharedFile::Lock lock_;
};

}  // namespace

SharedUse* SharedUse::of(int physical) {
  if (!SharedFile::get() || physical < 0 || physical >= kDevices) return nullptr;
  static std::array<std::unique_ptr<SharedUse>, kDevices> all;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  auto& one = all[static_cast<size_t>(physical)];
  if (!one) one.reset(new SharedUse(physical));
  return one.get();
}

bool SharedUse::take(uint64_t bytes, uint64_t total, uint64_t besides) {
  SharedFile& f = *SharedFile::get();
  const Locked locked(f);
  const uint64_t used = locked.used(physical_);
  if (used > total || bytes + besides > total - used) return false;
  f.word(f.own(), physical_) += bytes;
  return true;
}

void SharedUse::give(uint64_t bytes) {
  SharedFile& f = *SharedFile::get();
  const Locked locked(f);
  f.word(f.own(), physical_) -= bytes;
}

uint64_t SharedUse::used() { return Locked(*SharedFile::get()).used(physical_); }

uint64_t SharedUse::own() {
  SharedFile& f = *SharedFile::get();
  return f.word(f.own(), physical_);
}

}  // namespace sluice::softgpu
