// SPDX-License-Identifier: Apache-2.0
#include "client/core/node_links.h"

#include <algorithm>
#include <string>

#include "client/core/log.h"
#include "client/core/session.h"
#include "client/objects/device.h"

namespace sluice::client {

namespace {
std::pair<uint32_t, uint32_t> pair_of(uint32_t a, uint32_t b) { return std::minmax(a, b); }
}  // namespace

bool NodeLinks::between(const Device& a, const Device& b) {
  const auto pair = pair_of(a.place.node, b.place.node);
  const auto known = [&](bool* is) {
    std::lock_guard lock(mutex_);
    const auto it = links_.find(pair);
    if (it == links_.end()) return false;
    *is = it->second;
    return true;
  };
  bool is = false;
  if (known(&is)) return is;
  std::lock_guard opening(opening_);
  if (known(&is)) return is;
  is = open(a, b);
  std::lock_guard lock(mutex_);
  return links_.try_emplace(pair, is).first->second;
}

// Whoever dials first: of the two the one with the later devices, for which the other waits.
bool NodeLinks::open(const Device& a, const Device& b) {
  const auto& [dials, waits] = a.index > b.index ? std::tie(a, b) : std::tie(b, a);
  if (!(dials.record.abilities & waits.record.abilities & wire::kLinksNodes)) return false;
  for (const auto& [at, other] : {std::tie(dials, waits), std::tie(waits, dials)})
    if (session_.ask(at, wire::kNodeLinkOpen, wire::NodeLinkOpen{peer(other)}) != CUDA_SUCCESS) {
      log_line(LogLevel::kInfo,
               "the nodes of the devices " + std::to_string(waits.index) + " and " +
                   std::to_string(dials.index) +
                   " are not connected to each other: copies between them go by way of this "
                   "process, and waits for each other's events hold the calling thread");
      return false;
    }
  return true;
}

void NodeLinks::lost(uint32_t by, const Device& other) {
  const Device* const said = first_of(by);
  std::lock_guard lock(mutex_);
  bool& is = links_.try_emplace(pair_of(by, other.place.node), true).first->second;
  if (!std::exchange(is, false) || !said) return;
  over_.emplace_back(said, &other);
  unsettled_.store(true, std::memory_order_release);
}

// A node that is gone is not told, nor is the other of it: who waited for it may go on.
void NodeLinks::settle() {
  thread_local bool settles = false;
  if (settles || !unsettled_.load(std::memory_order_acquire)) return;
  std::lock_guard settling(settling_);
  settles = true;
  for (;;) {
    std::unique_lock lock(mutex_);
    if (over_.empty()) {
      unsettled_.store(false, std::memory_order_release);
      break;
    }
    const auto [said, other] = over_.back();
    over_.pop_back();
    lock.unlock();
    if (tell(*other, *said)) tell(*said, *other);
  }
  settles = false;
}

bool NodeLinks::tell(const Device& at, const Device& other) {
  return session_.ask(at, wire::kNodeLinkOpen, wire::NodeLinkOpen{peer(other)}) == CUDA_SUCCESS;
}

const Device* NodeLinks::first_of(uint32_t node) const {
  for (const auto& device : session_.devices())
    if (device->place.node == node) return device.get();
  return nullptr;
}

uint64_t NodeLinks::peer(const Device& of) const { return of.index - of.place.index; }

}  // namespace sluice::client
