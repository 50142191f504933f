// SPDX-License-Identifier: Apache-2.0
// A map from addresses in the program (kernel stubs, shadow variables) to what was registered for
// them. Written at registration, under a lock; read on every kernel launch without one.
// A table is never freed once published: all tables that it outgrew are together smaller than the
// last, and a reader may still be walking one. Constant-initialised and never destroyed, since
// static constructors and exit handlers of the program use it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace sluice::cudart {

template <typename Value>
class PointerMap {
 public:
  constexpr PointerMap() = default;
  PointerMap(const PointerMap&) = delete;
  PointerMap& operator=(const PointerMap&) = delete;

  Value* find(const void* key) const {
    const Table* table = table_.load(std::memory_order_acquire);
    if (table == nullptr || key == nullptr) return nullptr;
    for (size_t i = hash(key);; ++i) {
      const Entry& entry = table->entries[i & table->mask];
      const void* found = entry.key.load(std::memory_order_acquire);
      if (found == key) return entry.value.load(std::memory_order_acquire);
      if (found == nullptr) return nullptr;
    }
  }

  void insert(const void* key, Value* value) {
    std::lock_guard lock(mutex_);
    Table* table = table_.load(std::memory_order_relaxed);
    if (table == nullptr || (table->used + 1) * 2 > table->mask + 1) table = grow(table);
    place(*table, key, value);
  }

  // Forgets a key if it still stands for `value`. The slot keeps its key: it is reused when the
  // library comes back at the same address, which it usually does.
  void erase(const void* key, const Value* value) {
    std::lock_guard lock(mutex_);
    Table* table = table_.load(std::memory_order_relaxed);
    if (table == nullptr || key == nullptr) return;
    for (size_t i = hash(key);; ++i) {
      Entry& entry = table->entries[i & table->mask];
      const void* found = entry.key.load(std::memory_order_relaxed);
      if (found == nullptr) return;
      if (found == key) {
        if (entry.value.load(std::memory_order_relaxed) == value) {
          entry.value.store(nullptr, std::memory_order_release);
        }
        return;
      }
    }
  }

 private:
  struct Entry {
    std::atomic<const void*> key{nullptr};
    std::atomic<Value*> value{nullptr};
  };
  struct Table {
    size_t mask;
    size_t used = 0;
    Entry* entries;
  };

  static size_t hash(const void* key) {
    return static_cast<size_t>((reinterpret_cast<uintptr_t>(key) * 0x9e3779b97f4a7c15ULL) >> 32);
  }

  static void place(Table& table, const void* key, Value* value) {
    for (size_t i = hash(key);; ++i) {
      Entry& entry = table.entries[i & table.mask];
      const void* found = entry.key.load(std::memory_order_relaxed);
      if (found != nullptr && found != key) continue;
      entry.value.store(value, std::memory_order_release);
      if (found == nullptr) {
        entry.key.store(key, std::memory_order_release);
        ++table.used;
      }
      return;
    }
  }

  Table* grow(const Table* old) {
    const size_t capacity = old == nullptr ? 256 : (old->mask + 1) * 2;
    auto* table = new Table{capacity - 1, 0, new Entry[capacity]};
    for (size_t i = 0; old != nullptr && i <= old->mask; ++i) {
      Value* value = old->entries[i].value.load(std::memory_order_relaxed);
      if (value != nullptr) {
        place(*table, old->entries[i].key.load(std::memory_order_relaxed), value);
      }
    }
    table_.store(table, std::memory_order_release);
    return table;
  }

  std::atomic<Table*> table_{nullptr};
  std::mutex mutex_;
};

}  // namespace sluice::cudart
