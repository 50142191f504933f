// SPDX-License-Identifier: Apache-2.0
#include "worker/signals.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "worker/dispatch.h"

namespace sluice::worker {

namespace {

constexpr size_t kPageBytes = wire::kSignalBytes * wire::kMaxSignals;
constexpr uint64_t kLongestWait = 1000;  // milliseconds

void wait(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto m = d.fixed<wire::SignalWait>();
  if (!d.ok() || m.milliseconds > kLongestWait) return s.reject("SignalWait makes no sense");
  const auto begin = std::chrono::steady_clock::now();
  const auto end = begin + std::chrono::milliseconds(m.milliseconds);
  const size_t most = std::min<size_t>(256, s.endpoint().reply_limit() / sizeof(uint64_t));
  for (auto pause = std::chrono::microseconds(1); !s.rejected();
       pause = std::min(pause * 2, std::chrono::microseconds(200))) {
    const auto ready = s.signals.take_ready(most);
    reply.put_bytes(ready.data(), ready.size() * sizeof(uint64_t));
    if (!ready.empty() || std::chrono::steady_clock::now() >= end) return;
    std::this_thread::sleep_for(pause);
  }
}

void done(Session& s, const Command& c, Reply&) {
  Decoder d(c.body);
  const auto m = d.fixed<wire::SignalDone>();
  if (!d.ok() || !wire::is_signal(m.signal) || !s.signals.finish(m.signal))
    return s.reject("SignalDone names a host function that nobody waits for");
}

}  // namespace

Signals::~Signals() {
  if (page_.load()) call(driver_->cuMemFreeHost, static_cast<void*>(page_.load()));
}

uint64_t Signals::at(Session& s, uint64_t address) {
  if (!wire::is_signal(address)) return address;
  if (!page_.load()) {
    void* page = nullptr;
    if (!s.driver.cuMemHostAlloc ||
        s.driver.cuMemHostAlloc(&page, kPageBytes,
                                CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP) !=
            CUDA_SUCCESS)
      return 0;
    std::memset(page, 0, kPageBytes);
    driver_ = &s.driver;
    page_ = static_cast<std::atomic<uint64_t>*>(page);
  }
  const uint64_t offset = address - wire::kSignalBase;
  const auto index = static_cast<uint32_t>(offset / wire::kSignalBytes);
  if (index >= used_.load()) used_ = index + 1;
  return reinterpret_cast<uint64_t>(page_.load()) + offset;
}

uint64_t Signals::named(uint64_t address) const {
  const uint64_t at = address - reinterpret_cast<uint64_t>(page_.load());
  return page_.load() && at < kPageBytes ? wire::kSignalBase + at : address;
}

std::vector<uint64_t> Signals::take_ready(size_t most) {
  std::vector<uint64_t> ready;
  std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < used_.load() && ready.size() < most; ++i) {
    if (told_[i] || word(i, 0)->load(std::memory_order_acquire) == 0) continue;
    told_[i] = true;
    ready.push_back(wire::kSignalBase + i * wire::kSignalBytes);
  }
  return ready;
}

bool Signals::finish(uint64_t address) {
  const uint64_t offset = address - wire::kSignalBase;
  const auto index = static_cast<uint32_t>(offset / wire::kSignalBytes);
  std::lock_guard lock(mutex_);
  if (offset % wire::kSignalBytes || !told_[index]) return false;
  word(index, 0)->store(0, std::memory_order_relaxed);
  told_[index] = false;
  word(index, 1)->store(1, std::memory_order_release);
  return true;
}

void add_signal_handlers(DispatchTable& t) {
  t[wire::kSignalWait].run = wait;
  t[wire::kSignalDone].run = done;
}

}  // namespace sluice::worker
