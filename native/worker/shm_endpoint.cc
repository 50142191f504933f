// SPDX-License-Identifier: Apache-2.0
// The endpoint over a slot: shared memory and ivshmem alike. Keeps its own copy of head and of
// every size.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "channel/end_reason.h"
#include "channel/ring.h"
#include "worker/endpoint.h"

namespace sluice::worker {

using channel::SlotState;

namespace {

class ShmEndpoint : public Endpoint {
 public:
  explicit ShmEndpoint(channel::MappedSlot slot) : slot_(std::move(slot)) {
    consumer_.attach(slot_.header(), slot_.ring(), slot_.layout().ring_bytes);
  }

  Got take(std::byte* out) override {
    switch (consumer_.take(out)) {
      case channel::RingConsumer::Got::kFrame:
        consumer_.release();
        return Got::kFrame;
      case channel::RingConsumer::Got::kEmpty:
        return Got::kEmpty;
      case channel::RingConsumer::Got::kBroken:
        break;
    }
    return Got::kBroken;
  }
  bool empty() override { return consumer_.empty(); }
  bool closed() override {
    return slot_.header().state.load(std::memory_order_acquire) !=
           static_cast<uint32_t>(SlotState::kReady);
  }
  void set_sleeping(bool sleeping) override {
    slot_.header().sleeping.store(sleeping ? 1 : 0, std::memory_order_seq_cst);
  }
  bool unannounced() override { return !empty(); }
  bool parking_is_dear() const override { return false; }
  uint32_t wake_count() override { return slot_.header().wake.load(std::memory_order_seq_cst); }
  void sleep(uint32_t seen) override { channel::futex_wait(slot_.header().wake, seen); }
  void wake_one() override {
    slot_.header().wake.fetch_add(1, std::memory_order_seq_cst);
    channel::futex_wake(slot_.header().wake);
  }

  void reply(uint16_t lane_index, uint32_t sequence, uint32_t status,
             std::span<const std::byte> head, std::span<const std::byte> body,
             const std::shared_ptr<const void>&) override {
    if (lane_index >= channel::kLaneCount) return;
    channel::Lane& lane = slot_.lane(lane_index);
    size_t at = 0;
    for (const auto& part : {head, body}) {
      const size_t n = std::min(part.size(), sizeof lane.body - at);
      if (n) std::memcpy(lane.body + at, part.data(), n);
      at += n;
    }
    lane.status = status;
    lane.bytes = static_cast<uint32_t>(at);
    lane.sequence.store(sequence, std::memory_order_seq_cst);
    if (lane.waiting.load(std::memory_order_seq_cst) && lane.waiting.exchange(0))
      channel::futex_wake(lane.sequence, 1 << 20);
  }
  uint32_t lane_count() const override { return channel::kLaneCount; }
  size_t reply_limit() const override { return channel::kLaneBytes - 16; }

  void say_why(const std::string& reason) override { channel::write_end_reason(slot_, reason); }

  void publish_error(uint32_t error, bool over) override {
    auto& h = slot_.header();
    h.sticky_error.store(error, std::memory_order_seq_cst);
    if (!over) return;
    uint32_t expected = static_cast<uint32_t>(SlotState::kReady);
    h.state.compare_exchange_strong(expected, static_cast<uint32_t>(SlotState::kDead));
    for (uint32_t i = 0; i < channel::kLaneCount; ++i)
      channel::futex_wake(slot_.lane(i).sequence, 1 << 20);
  }

  bool publish_record(std::span<const std::byte> all, std::string* error) override {
    if (all.size() > slot_.mailbox().size() - channel::kEndReasonBytes) {
      *error = "the session's record does not fit the mailbox";
      return false;
    }
    std::memcpy(slot_.mailbox().data(), all.data(), all.size());
    slot_.header().state.store(static_cast<uint32_t>(SlotState::kReady), std::memory_order_seq_cst);
    return true;
  }

  std::span<std::byte> arena() override {
    return {slot_.arena(), slot_.arena() ? slot_.layout().arena_bytes : 0};
  }
  std::atomic<uint64_t>* marks() override { return slot_.marks(); }
  size_t mark_count() const override { return channel::kMarkCount; }
  std::atomic<uint64_t>* memory_used(uint32_t device) override {
    return device < channel::kMemoryWords ? &slot_.header().memory_used[device] : nullptr;
  }
  void tell_library_memory(const wire::LibraryMemory&) override {}
  uint64_t bytes_in() const override { return consumer_.consumed(); }

 private:
  channel::MappedSlot slot_;
  channel::RingConsumer consumer_;
};

}  // namespace

std::unique_ptr<Endpoint> make_shm_endpoint(int region_fd, size_t region_bytes, uint32_t slots,
                                            uint32_t slot, bool format, uint64_t arena_address,
                                            std::string* error) {
  const size_t slot_bytes = channel::slot_bytes_of(region_bytes, slots);
  if (slot >= slots) {
    *error = "slot " + std::to_string(slot) + " of a region with " + std::to_string(slots);
    return nullptr;
  }
  if (format && !channel::format_region(region_fd, region_bytes, slots, error)) return nullptr;
  channel::MappedSlot mapped;
  if (!mapped.map(region_fd, slot_bytes, slot, arena_address, error)) return nullptr;
  if (format)
    channel::format_slot(mapped, slot, SlotState::kOpening);
  else
    channel::start_slot(mapped);
  return make_shm_endpoint(std::move(mapped));
}

std::unique_ptr<Endpoint> make_shm_endpoint(channel::MappedSlot slot) {
  return std::make_unique<ShmEndpoint>(std::move(slot));
}

}  // namespace sluice::worker
