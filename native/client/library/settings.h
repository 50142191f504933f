// SPDX-License-Identifier: Apache-2.0
// What a library's object is to hold, and what the node's object was told of it: the last setting
// of each kind, in the order in which they were made. Whoever makes the same settings again and
// again (PyTorch does before each matrix product) sends nothing, as the two lists are the same.
// The order counts among settings that do not commute: a new stream takes cuBLAS's workspace away.
#pragma once

#include <cstdint>
#include <vector>

#include "client/library/key.h"
#include "wire/library_spec.h"

namespace sluice::client {
class Session;
}

namespace sluice::client::library {

// A call that sets something, which was seen to succeed and need not be made at once.
struct Setting {
  const wire::FunctionSpec* function = nullptr;
  uint64_t what = 0;  // two settings of the same thing replace one another
  uint32_t context = 0;
  Key value{};  // addresses by their alignment only
  Key exact{};
  std::vector<uint64_t> addresses;  // device memory that it names
  uint64_t stream = 0;              // the stream that it names, 0: none that can end
  std::vector<std::byte> body;      // the command; its first word is for the object's id

  // What tells it from others today: a setting whose stream has ended, or whose memory's module was
  // unloaded, is nothing that the node can be told.
  Key as_of_now(Session* session, bool* gone) const;
};

using Settings = std::vector<Setting>;
void set(Settings* all, Setting setting);

struct Told {
  uint64_t what;
  Key exact;
  bool commutes;
};
void tell(std::vector<Told>* all, const Told& now);

// All of it as one key.
Key exact_of(Session* session, const Settings& all);
// The same without the values of addresses.
Key shape_of(const Settings& all);

// Sends the object `id` the fewest settings that bring it from `told` to `wanted`. False when
// nothing does: it was told something that nobody wants. Under the lock of State, so that nobody
// uses the object in between.
bool catch_up(Session* session, uint64_t id, const Settings& wanted, std::vector<Told>* told);

}  // namespace sluice::client::library
