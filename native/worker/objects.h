// SPDX-License-Identifier: Apache-2.0
// The objects of one kind that a session made: from the client's minted id to what the worker
// keeps. An id is 16 bits of tag, 8 of kind, 16 of generation and 24 of index
// (client/objects/handles.h); all of it has to match. The client chooses the index, so the count is
// limited here.
#pragma once

#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "wire/command_registry.h"

namespace sluice::worker {

template <class T>
class ObjectTable {
 public:
  // `limit`: how many there may be, where the registry does not say it.
  explicit ObjectTable(wire::HandleKind kind, uint32_t limit = 0)
      : kind_(static_cast<uint8_t>(kind)), limit_(limit ? limit : wire::most_objects(kind)) {}

  bool add(uint64_t id, T value) {
    std::unique_lock lock(mutex_);
    const uint32_t index = id & 0xffffff;
    if (id >> 40 != (0x51ceull << 8 | kind_) || index >= limit_) return false;
    if (index >= entries_.size()) entries_.resize(index + 1);
    if (entries_[index].id != 0) return false;
    entries_[index] = {id, value};
    ++count_;
    return true;
  }
  bool get(uint64_t id, T* value) const {
    std::shared_lock lock(mutex_);
    const uint32_t index = id & 0xffffff;
    if (id == 0 || index >= entries_.size() || entries_[index].id != id) return false;
    *value = entries_[index].value;
    return true;
  }
  bool take(uint64_t id, T* value) {
    std::unique_lock lock(mutex_);
    const uint32_t index = id & 0xffffff;
    if (id == 0 || index >= entries_.size() || entries_[index].id != id) return false;
    *value = entries_[index].value;
    entries_[index] = {};
    --count_;
    return true;
  }
  bool set(uint64_t id, const T& value) {
    std::unique_lock lock(mutex_);
    const uint32_t index = id & 0xffffff;
    if (id == 0 || index >= entries_.size() || entries_[index].id != id) return false;
    entries_[index].value = value;
    return true;
  }
  // Whether `id` could be added.
  bool has_room(uint64_t id) const {
    std::shared_lock lock(mutex_);
    const uint32_t index = id & 0xffffff;
    return id >> 40 == (0x51ceull << 8 | kind_) && index < limit_ &&
           (index >= entries_.size() || entries_[index].id == 0);
  }
  size_t count() const {
    std::shared_lock lock(mutex_);
    return count_;
  }
  template <class F>
  void for_each(F&& f) const {
    std::shared_lock lock(mutex_);
    for (const Entry& e : entries_)
      if (e.id) f(e.id, e.value);
  }

 private:
  struct Entry {
    uint64_t id = 0;
    T value{};
  };
  const uint8_t kind_;
  const uint32_t limit_;
  mutable std::shared_mutex mutex_;
  std::vector<Entry> entries_;
  size_t count_ = 0;
};

}  // namespace sluice::worker
