// SPDX-License-Identifier: Apache-2.0
// What the objects of libraries were told, as far as a call with them depends on it: a call with
// the same bytes is the same call only while its handle, descriptors and plans are in the same
// state. An object that is made gets a number that none had before, so an id that is used again
// names another state; settings count by the last of each kind.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "wire/library_spec.h"
#include "worker/dispatch.h"

namespace sluice::worker::merge {

class LibraryStates {
 public:
  // Objects that are remembered; with more, no call is merged any more.
  static constexpr size_t kMost = 1 << 16;

  void made(uint64_t id);
  void gone(uint64_t id) { all_.erase(id); }
  // A call that sets something on the object: `what` is what, and the command says to what.
  void set(uint64_t id, uint64_t what, const wire::FunctionSpec& function, const Command& c);
  bool full() const { return full_; }

  uint64_t of(uint64_t id) const;
  // The last commands by which its stream, and then its workspace, were set; empty: none.
  struct Told {
    std::vector<std::byte> stream, workspace;
    uint64_t stream_id = 0;
  };
  const Told* told(uint64_t id) const;
  uint64_t stream_of(uint64_t id) const {
    const Told* t = told(id);
    return t ? t->stream_id : 0;
  }

 private:
  struct State {
    uint64_t number = 0;
    uint64_t sum = 0;  // of the settings
    std::map<uint64_t, uint64_t> settings;
    Told told;
    void put(uint64_t what, uint64_t value);
    void take(uint64_t what);
  };
  State* find(uint64_t id);

  std::unordered_map<uint64_t, State> all_;
  uint64_t numbers_ = 0;
  bool full_ = false;
};

// Of some bytes, for keys.
uint64_t hash_of(std::span<const std::byte> bytes, uint64_t seed);

}  // namespace sluice::worker::merge
