// SPDX-License-Identifier: Apache-2.0
#include "doorbell/doorbell.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "channel/futex.h"
#include "wire/frame.h"

namespace sluice::doorbell {

using channel::SlotState;

namespace {

constexpr uint64_t kFastNs = 50'000, kIdleNs = 2'000'000, kUnusedNs = 10'000'000;
constexpr uint64_t kRestNs =
    1'000'000'000;  // after so long without a word the host looks half as often
constexpr uint64_t kAbandonedNs =
    10'000'000'000;  // a slot claimed or refused by a client that is gone
constexpr uint64_t kSilentNs = 30'000'000'000;  // a running slot without a heartbeat
constexpr uint64_t kReportNs = 20'000'000;  // the least time between two reports of a slot: a guest
                                            // can change its words as fast as it likes
constexpr uint64_t kBeatNs = 100'000'000;

std::string hex(const std::byte* data, size_t n) {
  static const char* digits = "0123456789abcdef";
  std::string out;
  out.reserve(n * 2);
  for (size_t i = 0; i < n; ++i) {
    const auto b = static_cast<unsigned>(data[i]);
    out += digits[b >> 4];
    out += digits[b & 15];
  }
  return out;
}

}  // namespace

bool Doorbell::watch(const Message& m, std::string* error) {
  uint64_t slots = 0;
  m.number("slots", &slots);
  auto r = std::make_unique<Region>(m.text("id"), m.text("path"), static_cast<uint32_t>(slots));
  const int fd = r->open_file(error);
  if (fd < 0) return false;
  const auto known = regions_.find(r->id);
  const bool same = known != regions_.end() && known->second->same_as(*r);
  const bool ok = same || r->map(fd, error);
  close(fd);
  if (same)
    known->second->forget_reports();
  else if (ok)
    regions_[r->id] = std::move(r);
  return ok;
}

Slot* Doorbell::find(const Message& m, Region** region, uint32_t* index) {
  const auto it = regions_.find(m.text("id"));
  uint64_t slot = 0;
  m.number("slot", &slot);
  if (it == regions_.end() || slot >= it->second->slots.size()) return nullptr;
  *region = it->second.get();
  *index = static_cast<uint32_t>(slot);
  return &(*region)->slots[slot];
}

void Doorbell::add_bell(Message& m) {
  const auto it = regions_.find(m.text("id"));
  if (it == regions_.end() || m.descriptors.empty()) return;
  it->second->add_bell(m.descriptors.front(), m.text("device") == "yes");
  m.descriptors.erase(m.descriptors.begin());
}

void Doorbell::handle(Message& m) {
  const auto id = m.text("id");
  if (m.verb == "watch") {
    std::string error;
    if (watch(m, &error))
      control_.send("watching", {{"id", id}});
    else
      control_.send("error", {{"id", id}, {"message", error}});
    return;
  }
  if (m.verb == "bell") {
    add_bell(m);
    return;
  }
  if (m.verb == "forget") {
    regions_.erase(id);
    return;
  }
  if (m.verb == "list") {
    std::map<std::string, std::string> all;
    for (const auto& [name, r] : regions_) all[name] = r->path;
    control_.send("regions", all);
    return;
  }
  Region* region;
  uint32_t index;
  Slot* slot = find(m, &region, &index);
  if (!slot) {
    control_.send("error", {{"id", id}, {"message", m.verb + ": no such region or slot"}});
    return;
  }
  auto& h = slot->map.header();
  if (m.verb == "refuse" || m.verb == "wait") {
    // The answer may have been overtaken: a grant, or a client that gave up.
    if (h.state.load() != static_cast<uint32_t>(SlotState::kOpening)) return;
    uint64_t status = 999;
    m.number("status", &status);
    wire::OpenReply reply{};
    reply.header = {sizeof reply, wire::kOpenReply, wire::kNoLane, 0, 0};
    reply.status = m.verb == "wait" ? 600 : static_cast<uint32_t>(status);
    const std::string& text = m.text("message");
    std::memcpy(reply.message, text.data(), std::min(text.size(), sizeof reply.message - 1));
    std::memcpy(slot->map.mailbox().data(), &reply, sizeof reply);
    if (m.verb == "refuse") refuse(*slot);
  } else if (m.verb == "show") {
    if (h.state.load() == static_cast<uint32_t>(SlotState::kOpening)) show(*slot, m.text("text"));
  } else if (m.verb == "release") {
    region->mend_header();
    channel::format_slot(slot->map, index, SlotState::kFree);
    slot->open_reported = slot->closed_reported = false;
    slot->last = SlotState::kFree;
  }
}

// A view: an OpenReply with its text behind it. The slot is refused, since no session is in it.
void Doorbell::show(Slot& slot, const std::string& text) {
  wire::OpenReply reply{};
  const size_t bytes = std::min<size_t>(text.size(), wire::kMaxViewBytes);
  const size_t padded = wire::round_up(bytes, 8);
  reply.header = {static_cast<uint32_t>(sizeof reply + padded), wire::kOpenReply, wire::kNoLane, 0,
                  0};
  std::byte* to = slot.map.mailbox().data();
  std::memset(to + sizeof reply, 0, padded);
  std::memcpy(to + sizeof reply, text.data(), bytes);
  std::memcpy(to, &reply, sizeof reply);
  refuse(slot);
}

void Doorbell::refuse(Slot& slot) {
  uint32_t expected = static_cast<uint32_t>(SlotState::kOpening);
  if (!slot.map.header().state.compare_exchange_strong(expected,
                                                       static_cast<uint32_t>(SlotState::kRefused)))
    return;
  // Its next client may have opened it before the next look, which would see no change.
  slot.last = SlotState::kRefused;
  slot.since = channel::now_ns();
  slot.open_reported = false;
}

bool Doorbell::report_open(Region& r, uint32_t index) {
  // Taken out of the guest's reach once, as long as it could be; what the copy says of its length
  // is what counts.
  std::byte request[sizeof(wire::OpenSession) + wire::kMaxRequestOptionBytes];
  std::memcpy(request, r.slots[index].map.mailbox().data(), sizeof request);
  wire::FrameHeader header;
  std::memcpy(&header, request, sizeof header);
  const size_t size = std::clamp<size_t>(header.size, sizeof(wire::OpenSession), sizeof request);
  return control_.send(
      "open", {{"id", r.id}, {"slot", std::to_string(index)}, {"request", hex(request, size)}});
}

bool Doorbell::scan(Region& r, uint32_t index, uint64_t now) {
  Slot& s = r.slots[index];
  auto& h = s.map.header();
  bool active = false;
  if (h.doorbell.load(std::memory_order_relaxed) &&
      h.doorbell.exchange(0, std::memory_order_seq_cst)) {
    h.wake.fetch_add(1, std::memory_order_seq_cst);
    channel::futex_wake(h.wake, 1);
    active = true;
  }
  const auto state = static_cast<SlotState>(h.state.load(std::memory_order_acquire));
  if (state != s.last) {
    s.last = state;
    s.since = s.heard = s.told = now;
    s.open_reported = s.closed_reported = false;
    active = true;
  }
  const auto closed = [&](const char* reason) {
    if (s.closed_reported || control_.connection() < 0 || now - s.reported < kReportNs) return;
    s.reported = now;
    // Its worker looks at the state when it wakes.
    h.wake.fetch_add(1);
    channel::futex_wake(h.wake, 1 << 20);
    s.closed_reported = control_.send(
        "closed", {{"id", r.id}, {"slot", std::to_string(index)}, {"reason", reason}});
  };
  switch (state) {
    case SlotState::kFree:
    case SlotState::kDead:
      break;
    case SlotState::kClaimed:
    case SlotState::kRefused:
      if (now - s.since > kAbandonedNs) channel::format_slot(s.map, index, SlotState::kFree);
      break;
    case SlotState::kOpening:
      if (!s.open_reported && control_.connection() >= 0 && now - s.reported >= kReportNs) {
        s.reported = now;
        s.open_reported = report_open(r, index);
      }
      break;
    case SlotState::kReady: {
      const uint64_t beat = h.heartbeat.load(std::memory_order_relaxed);
      if (beat != s.heartbeat) {
        s.heartbeat = beat;
        s.heard = s.told = now;
      } else if (now - s.told > kSilentNs) {
        control_.send("silent", {{"id", r.id},
                                 {"slot", std::to_string(index)},
                                 {"seconds", std::to_string((now - s.heard) / 1'000'000'000)}});
        s.told = now;
      }
      break;
    }
    case SlotState::kClosed:
      closed("the client closed its session or died");
      break;
    default:
      closed("the slot's state is nonsense: the guest has written over its region");
  }
  return active;
}

void Doorbell::wait(uint64_t pause) {
  polled_.assign({{control_.listener(), POLLIN, 0}, {control_.connection(), POLLIN, 0}});
  const uint64_t before = channel::now_ns();
  // One that rang just now is not listened to for as long as a busy guest is looked at anyway: none
  // can keep this process from pausing.
  for (auto& [id, r] : regions_)
    for (const Bell& bell : r->bells)
      polled_.push_back({before - bell.rang < kFastNs ? -1 : bell.fd, POLLIN, 0});
  const timespec t{0, static_cast<long>(pause)};
  if (ppoll(polled_.data(), polled_.size(), &t, nullptr) <= 0) return;
  const uint64_t now = channel::now_ns();
  size_t at = 2;
  for (auto& [id, r] : regions_)
    std::erase_if(r->bells, [&](Bell& bell) {
      if (!polled_[at++].revents) return false;
      char said[256];
      const ssize_t n = read(bell.fd, said, sizeof said);
      bell.rang = now;
      if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return false;
      close(bell.fd);
      return true;
    });
  if (polled_[0].revents) {
    control_.accept();
    for (auto& [id, r] : regions_) r->forget_reports();
  }
  if (polled_[1].revents) {
    Message m;
    if (control_.receive(&m)) handle(m);
    for (int fd : m.descriptors) close(fd);
  }
}

int Doorbell::run() {
  uint64_t pause = kIdleNs, active_at = 0, beat_at = 0;
  for (;;) {
    wait(pause);
    const uint64_t now = channel::now_ns();
    bool used = false;
    for (auto& [id, r] : regions_) {
      for (uint32_t i = 0; i < r->slots.size(); ++i) {
        if (scan(*r, i, now)) active_at = now;
        used |= r->slots[i].last != SlotState::kFree;
      }
    }
    // Often while guests are busy, seldom while they rest: an idle host pays next to nothing.
    const uint64_t quiet = now - active_at;
    pause = quiet < 5'000'000 ? kFastNs
            : !used           ? kUnusedNs
            : quiet < kRestNs ? std::min(kIdleNs, quiet / 20)
                              : 2 * kIdleNs;
    if (now - beat_at > kBeatNs) {
      beat_at = now;
      for (auto& [id, r] : regions_) r->header->host_beat.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

}  // namespace sluice::doorbell
