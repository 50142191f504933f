// SPDX-License-Identifier: Apache-2.0
#include "client/core/shm_channel.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "channel/end_reason.h"
#include "client/core/end_notice.h"

namespace sluice::client {

using channel::cpu_relax;
using channel::now_ns;
using channel::SlotState;

namespace {
// How long a waiting thread spins before it sleeps. A launch and a synchronize fit in; an idle
// client does not.
constexpr uint64_t kSpinNs = 60'000;
constexpr uint64_t kSleepSliceNs = 100'000'000;  // then look whether the worker lives
constexpr uint64_t kGuestPauseMinNs = 20'000;
constexpr uint64_t kGuestPauseMaxNs = 2'000'000;
}  // namespace

ShmChannel::ShmChannel(channel::MappedSlot slot, wire::ChannelKind kind, int worker_pidfd,
                       int region_fd, channel::Bell bell)
    : slot_(std::move(slot)),
      kind_(kind),
      worker_pidfd_(worker_pidfd),
      region_fd_(region_fd),
      bell_(std::move(bell)),
      generation_(slot_.header().generation.load()) {
  producer_.attach(slot_.header(), slot_.ring(), slot_.layout().ring_bytes);
}

ShmChannel::~ShmChannel() {
  if (worker_pidfd_ >= 0) ::close(worker_pidfd_);
  if (region_fd_ >= 0) ::close(region_fd_);
}

void ShmChannel::ring() {
  slot_.header().doorbell.store(1, std::memory_order_seq_cst);
  bell_.ring();
}

// After a detach a guest reads zeros from the lost device, so anything but "ready, same generation"
// is an end.
bool ShmChannel::worker_gone() {
  auto& h = slot_.header();
  if (h.state.load(std::memory_order_acquire) != static_cast<uint32_t>(SlotState::kReady) ||
      h.generation.load(std::memory_order_relaxed) != generation_)
    return true;
  if (worker_pidfd_ >= 0) {
    pollfd p{worker_pidfd_, POLLIN, 0};
    if (poll(&p, 1, 0) > 0) return true;
  }
  return false;
}

void ShmChannel::tell_end() {
  if (const std::string why = channel::read_end_reason(slot_); !why.empty()) say_ended(why);
}

std::byte* ShmChannel::reserve(size_t n) {
  if (n > producer_.capacity()) return nullptr;  // would never fit
  if (std::byte* at = producer_.try_reserve(n)) return at;
  const uint64_t start = now_ns();
  uint64_t pause = kGuestPauseMinNs, checked = start;
  for (;;) {
    for (int i = 0; i < 200; ++i) {
      if (std::byte* at = producer_.try_reserve(n)) return at;
      cpu_relax();
    }
    const uint64_t now = now_ns();
    if (now - checked > kSleepSliceNs) {
      if (worker_gone()) return nullptr;
      checked = now;
    }
    if (now - start < kSpinNs) continue;
    // A full ring means that the worker is busy: sleeping a little costs nothing, and no wake-up
    // has to be sent for it.
    channel::sleep_ns(pause);
    pause = std::min(pause * 2, kGuestPauseMaxNs);
  }
}

void ShmChannel::commit(size_t n, bool) {
  bytes_out += n;
  if (!producer_.commit(n)) return;
  auto& h = slot_.header();
  if (h.sleeping.exchange(0, std::memory_order_seq_cst) == 0) return;
  if (shares_futex()) {
    h.wake.fetch_add(1, std::memory_order_seq_cst);
    channel::futex_wake(h.wake);
  } else {
    ring();
  }
}

bool ShmChannel::wait(uint32_t lane_index, uint32_t sequence, Reply* reply) {
  channel::Lane& lane = slot_.lane(lane_index);
  const auto answered = [&] { return lane.sequence.load(std::memory_order_acquire) == sequence; };
  const uint64_t start = now_ns();
  bool done = answered();
  while (!done) {
    for (int i = 0; i < 100 && !(done = answered()); ++i) cpu_relax();
    if (done || now_ns() - start > kSpinNs) break;
  }
  uint64_t pause = kGuestPauseMinNs, slept = 0;
  while (!done) {
    const uint32_t seen = lane.sequence.load(std::memory_order_seq_cst);
    if (seen == sequence) break;
    if (shares_futex()) {
      lane.waiting.store(1, std::memory_order_seq_cst);
      channel::futex_wait(lane.sequence, seen, kSleepSliceNs);
      slept = kSleepSliceNs;
    } else {
      channel::sleep_ns(pause);
      slept += pause;
      pause = std::min(pause * 2, kGuestPauseMaxNs);
    }
    done = answered();
    if (!done && slept >= kSleepSliceNs) {
      slept = 0;
      if (worker_gone() && !answered()) return false;
    }
  }
  reply->status = lane.status;
  reply->body = {lane.body, std::min<size_t>(lane.bytes, sizeof lane.body)};
  return true;
}

void ShmChannel::close() {
  auto& h = slot_.header();
  if (worker_gone()) return;
  h.state.store(static_cast<uint32_t>(SlotState::kClosed), std::memory_order_seq_cst);
  h.sleeping.store(0, std::memory_order_seq_cst);
  h.wake.fetch_add(1, std::memory_order_seq_cst);
  if (shares_futex())
    channel::futex_wake(h.wake, 1);
  else
    ring();
}

}  // namespace sluice::client
