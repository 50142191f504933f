// SPDX-License-Identifier: Apache-2.0
// The node's CUPTI, for the one session of this worker: loaded when its client first profiles and
// never before, so that nobody else pays for it. The driver library may bring one itself (the
// software GPU does); else NVIDIA's is looked for where its other libraries are. Its records are
// turned into those of the wire as buffers come back from it, and kept until they are fetched, with
// the correlation id of the client's call that caused them: around each command that a client
// marked, the executor has CUPTI note that id (Noted). What no client's call caused is Sluice's own
// work, and left out.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cupti_abi.h"
#include "wire/bodies/profiling.h"
#include "worker/driver.h"

namespace sluice::worker {

class NodeCupti {
 public:
  static NodeCupti& get();

  // Records what is asked for from now on, as far as the node can.
  wire::ProfileState set(const Driver& driver, uint64_t activities);
  bool on() const { return on_.load(std::memory_order_relaxed); }
  // The node's time, nanoseconds; 0 without CUPTI.
  uint64_t now() const;
  // A stream's number in records. False: there is none.
  bool stream_id(CUcontext context, CUstream stream, uint32_t* id) const;

  struct Fetched {
    wire::ProfileRecords head{};
    std::vector<wire::ProfileRecord> records;
    std::vector<char> names;
  };
  // The oldest that are kept, at most wire::kProfileRecords. A record's device is CUDA's ordinal.
  Fetched fetch(bool forced);

  // While one lives, what this thread gives the GPU is the client's call's.
  class Noted {
   public:
    explicit Noted(uint32_t correlation);
    ~Noted();
    Noted(const Noted&) = delete;
    Noted& operator=(const Noted&) = delete;

   private:
    bool pushed_ = false;
  };

  // While one lives, what this thread gives the GPU is Sluice's own, within a call of the client's.
  class Apart {
   public:
    Apart();
    ~Apart();
    Apart(const Apart&) = delete;
    Apart& operator=(const Apart&) = delete;

   private:
    uint64_t call_ = 0;
    bool popped_ = false;
  };

  // What CUPTI gives back. Public for its callback, and for tests.
  void take_buffer(void* context, uint32_t stream, uint8_t* buffer, size_t valid);

 private:
  struct Kept {
    wire::ProfileRecord record;  // `correlation` is the node's
    const std::string* name = nullptr;
    uint32_t age = 0;  // fetches that did not know whose it is
  };

  NodeCupti() = default;
  bool load(const Driver& driver);
  bool take_functions(void* library);
  const std::string* kept_name(const char* name);
  void keep(const wire::ProfileRecord& record, const char* name);
  void take_record(const void* record);
  void note(uint32_t node, uint32_t client);

  // Bounds of what a client that never fetches makes grow.
  static constexpr size_t kMostRecords = 1 << 18, kMostNotes = 1 << 20;
  static constexpr size_t kMostNames = 1 << 16, kMostNameBytes = 32 << 20;

#define SLUICE_CUPTI_POINTER(type, name) decltype(static_cast<type>(nullptr)) name##_ = nullptr;
  SLUICE_CUPTI_FUNCTIONS(SLUICE_CUPTI_POINTER)
#undef SLUICE_CUPTI_POINTER

  std::mutex setting_;  // of set(), and of loading
  bool looked_ = false;
  uint32_t version_ = 0;
  uint64_t enabled_ = 0;  // kinds that CUPTI was told
  std::atomic<bool> on_{false};

  std::mutex mutex_;  // of what follows
  std::deque<Kept> kept_;
  uint64_t dropped_ = 0;
  std::unordered_map<uint32_t, uint32_t> notes_;  // the client's id by the node's
  std::deque<uint32_t> notes_order_;
  std::unordered_set<std::string> names_;
  size_t name_bytes_ = 0;
};

}  // namespace sluice::worker
