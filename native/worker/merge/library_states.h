// SPDX-License-Identifier: Apache-2.0
// What the objects of libraries were told, as far as a call with them depends on it: a call with
// the same bytes is the same call only while its handle, descriptors and plans are in the same
// state. An object that is made gets a number that none had before, so an id that is used again
// names another state; settings count by the last of each kind. A setting whose caller waited for
// its answer may have failed, so it counts as one that never was before.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "wire/library_spec.h"
#include "worker/dispatch.h"
#include "worker/merge/frames.h"

namespace sluice::worker::merge {

class LibraryStates {
 public:
  // Objects that are remembered; with more, no call is merged any more.
  static constexpr size_t kMost = 1 << 16;

  // Bytes of settings that can be made once more; of others it is only known which they were.
  static constexpr size_t kMostBytes = 4 << 20;

  void made(uint64_t id);
  void gone(uint64_t id);
  // A call that sets something on the object: `what` is what, and the command says to what.
  // `again`: it may be made once more.
  void set(uint64_t id, uint64_t what, const wire::FunctionSpec& function, const Command& c,
           bool again);
  // Another object's call has changed it.
  void changed(uint64_t id);
  bool full() const { return full_; }

  uint64_t of(uint64_t id) const;
  // Which object it is, whatever it was told; 0: none that is known.
  uint64_t number_of(uint64_t id) const;
  // The command by which it was told that last. Empty: that is not known any more.
  std::span<const std::byte> last(uint64_t id, uint64_t what, uint16_t function) const;
  // Adds all commands by which it was told what it is, as far as they can be made once more.
  void all_of(uint64_t id, Frames* to) const;
  // The same objects, to try on what a few commands would make of them.
  LibraryStates some(const std::set<uint64_t>& ids) const;
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
  struct Setting {
    uint64_t value = 0;
    std::vector<std::byte> frame;  // empty: not to be made once more
  };
  struct State {
    uint64_t number = 0;
    uint64_t sum = 0;  // of the settings
    std::map<uint64_t, Setting> settings;
    Told told;
  };
  State* find(uint64_t id);
  void put(State* s, uint64_t what, uint64_t value, const Command* frame);
  void take(State* s, uint64_t what);
  void forget(State* s);

  std::unordered_map<uint64_t, State> all_;
  uint64_t numbers_ = 0;
  size_t bytes_ = 0;  // of frames
  bool full_ = false;
};

// Of some bytes, for keys.
uint64_t hash_of(std::span<const std::byte> bytes, uint64_t seed);

}  // namespace sluice::worker::merge
