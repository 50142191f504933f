// SPDX-License-Identifier: Apache-2.0
// Records on their way to the profiler. add() takes them from any thread and never calls the
// profiler; deliver() fills its buffers, on a thread that asked for it or on Sluice's own, with no
// lock held that add() needs. What finds no room is dropped and counted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "cupti_abi.h"

namespace sluice::cupti {

// Bytes of a record of a kind that Sluice makes; 0: it makes none.
size_t record_bytes(uint32_t kind);

class Recorder {
 public:
  static Recorder& get();

  void use(BufferRequested requested, BufferCompleted completed);
  bool has_buffers() const { return requested_.load() != nullptr; }

  // The record may be behind another that belongs before it.
  template <class T>
  void add(const T& record) {
    add(&record, sizeof record);
  }
  void drop(size_t records);
  // Whether so much waits that somebody should deliver.
  bool much_waits();

  // Hands full buffers back; `all`: one that is not full, too.
  void deliver(bool all);
  // Records that were dropped since somebody asked.
  size_t take_dropped() { return dropped_.exchange(0); }

  // A text that lives as long as the process, as records point at it.
  const char* kept(const char* text);

 private:
  void add(const void* record, size_t bytes);
  // Profilers flush only if they were asked for a buffer since the last time, as by CUPTI, which
  // asks when it makes a record.
  void take_buffer();
  void ask();
  void fill(const std::vector<std::byte>& records);
  void complete();

  // What waits at most, and texts that are kept at most.
  static constexpr size_t kMostBytes = 64 << 20, kMuchBytes = 1 << 20;
  static constexpr size_t kMostTexts = 1 << 16, kMostTextBytes = 64 << 20;

  std::atomic<BufferRequested> requested_{nullptr};
  std::atomic<BufferCompleted> completed_{nullptr};
  std::atomic<size_t> dropped_{0};

  std::mutex mutex_;  // of what waits
  std::vector<std::byte> waiting_;

  std::mutex delivering_;  // of the profiler's buffer that is being filled
  std::atomic<uint8_t*> buffer_{nullptr};
  size_t size_ = 0, used_ = 0, most_ = 0, count_ = 0;

  std::mutex texts_mutex_;
  std::unordered_set<std::string> texts_;
  size_t text_bytes_ = 0;
};

}  // namespace sluice::cupti
