// SPDX-License-Identifier: Apache-2.0
// Host memory of the worker's for copies of graphs (wire::ShadowMake). Reading one waits and so
// runs beside the leader: whoever has found a shadow keeps its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace sluice::worker {

class Shadows {
 public:
  struct Memory {
    std::byte* at = nullptr;
    uint64_t bytes = 0;
    std::function<void()> release;
    ~Memory() {
      if (release) release();
    }
  };
  using Shadow = std::shared_ptr<Memory>;

  Shadow find(uint64_t id) const;
  // The shadow that an address lies in; 0: none.
  uint64_t holder(const void* at) const;
  bool room(uint64_t bytes) const;
  void add(uint64_t id, Shadow shadow);
  void drop(uint64_t id);

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, Shadow> all_;
  uint64_t held_ = 0;
};

}  // namespace sluice::worker
