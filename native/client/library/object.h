// SPDX-License-Identifier: Apache-2.0
// What the client knows of a library's object (a handle, a descriptor, a plan): enough to say
// whether a call with it was seen to be valid before, and which stream its work goes to.
#pragma once

#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "client/core/handles.h"
#include "client/library/key.h"

namespace sluice::client::library {

struct Object {
  uint8_t type = 0;     // ObjectType of generated/library/objects.h
  uint64_t stream = 0;  // the application's CUstream
  int pointer_mode = 0;
  int data_type = 0;
  Key content{};
  // NCCL's: made at the end of a group that is still open; asked each time; on which vGPU.
  bool pending = false, unlearned = false;
  uint32_t device = 0;
  struct Slot {
    uint64_t what;
    Key value;
  };
  std::vector<Slot> slots;

  // Something was set; it replaces what was set there before.
  void set(uint64_t what, const Key& value);
};

struct State {
  std::mutex mutex;  // everything here, and the fields of objects
  HandleTable<Object> objects{Kind::kLibraryObject};
  std::unordered_set<Key, KeyHash> learned;
  std::unordered_map<Key, std::vector<std::byte>, KeyHash> answers;
  uint64_t hits = 0;
  uint64_t computed = 0;  // counts results that no key can know

  static State& get();
};

// Some libraries' handles are ints (cufftHandle): the slot of the table, from 1.
uint64_t id_of_number(int number);
inline int number_of_id(uint64_t id) { return static_cast<int>(id & 0xffffff) + 1; }

}  // namespace sluice::client::library
