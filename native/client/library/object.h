// SPDX-License-Identifier: Apache-2.0
// What the client knows of a library's object (a handle, a descriptor, a plan): enough to say
// whether a call with it was seen to be valid before, and which stream its work goes to.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "client/library/kept.h"
#include "client/library/key.h"
#include "client/objects/handles.h"

namespace sluice::client {
struct Device;
}

namespace sluice::client::library {

struct Object {
  uint8_t type = 0;     // ObjectType of generated/library/objects.h
  uint64_t stream = 0;  // the application's CUstream
  int pointer_mode = 0;
  int data_type = 0;
  Key content{};
  // NCCL's: made at the end of a group that is still open; asked each time.
  bool pending = false, unlearned = false;
  uint32_t device = 0;  // that was current when it was made; NCCL's: its rank's
  struct Slot {
    uint64_t what;
    Key value;
  };
  std::vector<Slot> slots;
  // Of an object that is kept by content: the node has none of this id.
  std::unique_ptr<Recipe> recipe;
  // Of another one whose settings may wait until it is used.
  Settings wanted;
  std::vector<Told> told;

  // Something was set; it replaces what was set there before.
  void set(uint64_t what, const Key& value);
  // The object on the node, for a command that is written by hand: all that waited is sent, and
  // what was a recipe is an object of this id from now on. Under the lock of State.
  void bring_up_to_date(Session* session, uint64_t id);
};

struct State {
  std::mutex mutex;  // everything here, and the fields of objects
  HandleTable<Object> objects{Kind::kLibraryObject};
  std::unordered_set<Key, KeyHash> learned;
  std::unordered_map<Key, std::vector<std::byte>, KeyHash> answers;
  // Questions that were answered with "all is well", and until when that holds.
  std::unordered_map<Key, uint64_t, KeyHash> well_until_ns;
  // What cuDNN's descriptors said (cudnn_get.cc), apart: a plan's are thousands.
  std::unordered_map<Key, std::vector<std::byte>, KeyHash> said;
  KeptObjects kept;
  uint64_t hits = 0;
  uint64_t computed = 0;  // counts results that no key can know

  static State& get();
};

// Whether the object is known where the device is: an object is of one node. Says once if not.
bool is_near(Session* session, const Object& object, const Device& device);

// Some libraries' handles are ints (cufftHandle): the slot of the table, from 1.
uint64_t id_of_number(int number);
inline int number_of_id(uint64_t id) { return static_cast<int>(id & 0xffffff) + 1; }

}  // namespace sluice::client::library
