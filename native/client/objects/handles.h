// SPDX-License-Identifier: Apache-2.0
// Handles that the client mints: the opaque pointers an application holds are ids, never addresses.
// An id names a kind, a slot of that kind's table and the slot's generation, so a destroyed,
// foreign or made-up handle is recognised and answered with CUDA's error. Objects stay at their
// address for ever (slots are reused), so a lookup takes no lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "wire/command_registry.h"

namespace sluice::client {

using Kind = wire::HandleKind;

// tag:16 | kind:8 | generation:16 | index:24
inline constexpr uint64_t kHandleTag = 0x51ceull << 48;

template <class T>
class HandleTable {
 public:
  explicit HandleTable(Kind kind) : kind_(kind) {}
  ~HandleTable() {
    for (auto& chunk : chunks_) delete chunk.load();
  }

  // A blank object and its id; the caller fills it before it gives the id away.
  T* create(uint64_t* id) {
    std::lock_guard lock(mutex_);
    uint32_t index;
    if (free_.empty()) {
      index = used_;
      if (index >= kChunks * kChunkSize) return nullptr;
      if (index % kChunkSize == 0) chunks_[index / kChunkSize].store(new Chunk());
      ++used_;
    } else {
      index = free_.back();
      free_.pop_back();
    }
    Entry& e = (*chunks_[index / kChunkSize].load())[index % kChunkSize];
    ++e.generation;
    *id = kHandleTag | uint64_t(kind_) << 40 | uint64_t(e.generation) << 24 | index;
    e.value = T{};
    e.id.store(*id, std::memory_order_release);
    return &e.value;
  }

  T* find(uint64_t id) const {
    const uint32_t index = id & 0xffffff;
    if (id >> 40 != (kHandleTag >> 40 | uint64_t(kind_)) || index >= kChunks * kChunkSize)
      return nullptr;
    Chunk* chunk = chunks_[index / kChunkSize].load(std::memory_order_acquire);
    if (!chunk) return nullptr;
    Entry& e = (*chunk)[index % kChunkSize];
    return e.id.load(std::memory_order_acquire) == id ? &e.value : nullptr;
  }
  template <class Handle>
  T* find(Handle handle) const {
    return find(reinterpret_cast<uint64_t>(handle));
  }

  // The id of the object in this slot, 0 when there is none: for APIs whose handles are small
  // numbers.
  uint64_t id_at(uint32_t index) const {
    if (index >= kChunks * kChunkSize) return 0;
    Chunk* chunk = chunks_[index / kChunkSize].load(std::memory_order_acquire);
    return chunk ? (*chunk)[index % kChunkSize].id.load(std::memory_order_acquire) : 0;
  }

  // Nobody finds it any more; its slot waits for recycle(). In between the worker is told, so that
  // it hears of the end before it hears of the slot's next object, whichever thread makes that.
  bool retire(uint64_t id) {
    std::lock_guard lock(mutex_);
    if (!find(id)) return false;
    entry(id).id.store(0);
    return true;
  }
  void recycle(uint64_t id) {
    std::lock_guard lock(mutex_);
    // A slot that has used up its generations rests for ever: an old handle must not come to life
    // again.
    if (entry(id).generation != 0xffff) free_.push_back(id & 0xffffff);
  }
  // Both, for objects that the worker does not know.
  bool destroy(uint64_t id) {
    if (!retire(id)) return false;
    recycle(id);
    return true;
  }

  template <class F>
  void for_each(F&& f) {
    std::lock_guard lock(mutex_);
    for (uint32_t i = 0; i < used_; ++i) {
      Entry& e = (*chunks_[i / kChunkSize].load())[i % kChunkSize];
      if (const uint64_t id = e.id.load()) f(id, e.value);
    }
  }

 private:
  static constexpr uint32_t kChunkSize = 1024, kChunks = 1024;
  struct Entry {
    std::atomic<uint64_t> id{0};
    uint16_t generation = 0;
    T value{};
  };
  using Chunk = std::array<Entry, kChunkSize>;

  Entry& entry(uint64_t id) {
    const uint32_t index = id & 0xffffff;
    return (*chunks_[index / kChunkSize].load())[index % kChunkSize];
  }

  const Kind kind_;
  std::mutex mutex_;
  uint32_t used_ = 0;
  std::vector<uint32_t> free_;
  std::array<std::atomic<Chunk*>, kChunks> chunks_{};
};

}  // namespace sluice::client
