// SPDX-License-Identifier: Apache-2.0
#include "channel/own_memory.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <vector>

namespace sluice::channel {

namespace {

struct List {
  std::shared_mutex mutex;  // of:
  std::map<uint64_t, uint64_t> ranges;
  std::mutex holders_mutex;  // of the following, and held while they are told; taken alone
  std::vector<OwnMemory::Holder*> holders;
};

// Never destroyed: connections may outlive what is.
List& list() {
  static List* const one = new List;
  return *one;
}

// The range around it; the list's mutex held.
const std::pair<const uint64_t, uint64_t>* around(const List& l, const void* at, size_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(at);
  auto it = l.ranges.upper_bound(address);
  if (it == l.ranges.begin()) return nullptr;
  --it;
  const uint64_t offset = address - it->first;
  return offset < it->second && bytes <= it->second - offset ? &*it : nullptr;
}

}  // namespace

void OwnMemory::add(const void* at, size_t bytes) {
  List& l = list();
  std::lock_guard lock(l.mutex);
  l.ranges[reinterpret_cast<uint64_t>(at)] = bytes;
}

void OwnMemory::remove(const void* at) {
  List& l = list();
  Range gone;
  {
    std::lock_guard lock(l.mutex);
    const auto it = l.ranges.find(reinterpret_cast<uint64_t>(at));
    if (it == l.ranges.end()) return;
    gone = {it->first, it->second};
    l.ranges.erase(it);
  }
  std::lock_guard lock(l.holders_mutex);
  for (Holder* holder : l.holders) holder->let_go(gone);
}

bool OwnMemory::has(const void* at, size_t bytes) {
  List& l = list();
  std::shared_lock lock(l.mutex);
  return around(l, at, bytes) != nullptr;
}

bool OwnMemory::with(const void* at, size_t bytes, const std::function<void(const Range&)>& use) {
  List& l = list();
  std::shared_lock lock(l.mutex);
  const auto* found = around(l, at, bytes);
  if (found) use({found->first, found->second});
  return found != nullptr;
}

void OwnMemory::join(Holder* holder) {
  List& l = list();
  std::lock_guard lock(l.holders_mutex);
  l.holders.push_back(holder);
}

void OwnMemory::leave(Holder* holder) {
  List& l = list();
  std::lock_guard lock(l.holders_mutex);
  std::erase(l.holders, holder);
}

}  // namespace sluice::channel
