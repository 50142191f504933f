// SPDX-License-Identifier: Apache-2.0
// Objects that are nothing but what was put into them: descriptors of matrices and tensors. A
// program makes, fills and destroys them around each call; here they are recipes in the client, and
// the node keeps an object for each recipe that a call needed, made when it is first needed. So a
// call with descriptors that were seen before is one command.
//
// The node's objects are found by all that they hold, device addresses too. Where many differ by
// addresses alone, the one that has rested longest is told the other addresses instead of another
// being made. Everything here is under the lock of State; what a call on its way out names is
// pinned, so that no other thread's call changes or ends it before.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "client/library/settings.h"

namespace sluice::client::library {

// How an object of the application's is made, as commands.
struct Recipe {
  const wire::FunctionSpec* creator = nullptr;
  const wire::FunctionSpec* end = nullptr;  // what destroys it
  int mint = 0;                             // the word of `body` that is for its id
  uint32_t context = 0;
  Key made{};  // by what it was created
  std::vector<std::byte> body;
  Settings settings;
};

class KeptObjects {
 public:
  // The node's objects that stay, and those that differ by addresses alone.
  static constexpr size_t kMost = 4096, kMostAlike = 32;

  struct Entry {
    uint64_t id = 0;
    const wire::FunctionSpec* end = nullptr;
    uint32_t context = 0;
    Key exact{}, shape{};
    std::vector<Told> told;
    uint64_t used = 0;
    int pins = 0;
  };

  // The node's object for what `recipe` says now, pinned; nullptr when there are no ids left.
  Entry* take(Session* session, const Recipe& recipe);
  void release(Entry* entry) { --entry->pins; }
  // The same for a call that may change it: nobody else finds it until it is put back as what it
  // then holds.
  std::unique_ptr<Entry> take_out(Session* session, const Recipe& recipe);
  void put(Session* session, std::unique_ptr<Entry> entry, const Recipe& recipe);
  // Makes what `recipe` says on the node under an id of the caller's.
  static void make(Session* session, const Recipe& recipe, uint64_t id, std::vector<Told>* told);
  // Ends those that nobody is using, for tests.
  void clear(Session* session);
  size_t count() const { return by_content_.size(); }

 private:
  Entry* find(Session* session, const Recipe& recipe, Key* exact);
  std::unique_ptr<Entry> build(Session* session, const Recipe& recipe);
  std::unique_ptr<Entry> remove(Entry* entry);
  Entry* insert(std::unique_ptr<Entry> entry);
  void end(Session* session, std::unique_ptr<Entry> entry);
  void make_room(Session* session);

  std::unordered_map<Key, std::unique_ptr<Entry>, KeyHash> by_content_;
  std::unordered_map<Key, std::vector<Entry*>, KeyHash> alike_;
  uint64_t clock_ = 0;
};

}  // namespace sluice::client::library
