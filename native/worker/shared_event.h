// SPDX-License-Identifier: Apache-2.0
// Events between processes, without the driver's: each is a few words of memory that the workers of
// both processes share and that their GPUs write and wait for. A session has one region of them,
// made at its first such event; the key under which the server passes it on names them all.
//
// An event is eight words: how often it was recorded, and seven marks. Record n has its stream
// write n into mark n % 7; to wait for the event is to wait until the mark of the newest record
// shows that record's number. So a record that is overtaken by a later one, on another stream or in
// another process, hides nothing.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "worker/broker.h"

namespace sluice::worker {

class EventRegion {
 public:
  static constexpr uint32_t kEvents = 4096;
  static constexpr uint32_t kMarks = 7;
  static constexpr size_t kBytes = kEvents * (kMarks + 1) * sizeof(uint64_t);

  // The descriptor stays the caller's. nullptr with `error`.
  static std::unique_ptr<EventRegion> make(const Driver& driver, int fd, CUresult* error);

  ~EventRegion();
  CUresult record(const Driver& driver, CUstream stream, uint32_t index);
  CUresult wait(const Driver& driver, CUstream stream, uint32_t index);
  bool done(uint32_t index) const;
  // Nobody will write what is still missing: whoever made the region is gone.
  void release_all();

 private:
  EventRegion(std::atomic<uint64_t>* words, CUdeviceptr device) : words_(words), device_(device) {}
  static uint32_t mark_of(uint64_t record) { return 1 + record % kMarks; }
  std::atomic<uint64_t>& word(uint32_t index, uint32_t at) const {
    return words_[index * (kMarks + 1) + at];
  }
  CUdeviceptr address(uint32_t index, uint32_t at) const {
    return device_ + (index * (kMarks + 1) + at) * sizeof(uint64_t);
  }

  std::atomic<uint64_t>* words_;
  CUdeviceptr device_;
};

// The regions of one session: its own, and those of others that it has opened.
class SharedEvents {
 public:
  explicit SharedEvents(Session& s) : s_(s) {}
  ~SharedEvents();

  CUresult create(SharedEventObject* event);
  void destroy(const SharedEventObject& event);
  // Under which key and index another process finds an event of this session's own region.
  CUresult share(const SharedEventObject& event, wire::SharedEvent* shared);
  CUresult open(const wire::SharedEvent& shared, SharedEventObject* event);
  // The server says that the session which shared this is gone.
  void gone(const std::string& key);

 private:
  Session& s_;
  std::mutex mutex_;
  std::unique_ptr<EventRegion> own_;
  int own_fd_ = -1;
  bool offered_ = false;
  wire::ShareKey own_key_{};
  uint32_t used_ = 0;
  std::vector<uint32_t> free_;
  std::map<wire::ShareKey, std::unique_ptr<EventRegion>> others_;
};

}  // namespace sluice::worker
