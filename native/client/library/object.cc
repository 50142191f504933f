// SPDX-License-Identifier: Apache-2.0
#include "client/library/object.h"

#include <string>

#include "client/core/log.h"
#include "client/core/session.h"
#include "client/objects/device.h"

namespace sluice::client::library {

void Object::set(uint64_t what, const Key& value) {
  for (Slot& s : slots) {
    if (s.what != what) continue;
    content ^= s.value;
    content ^= value;
    s.value = value;
    return;
  }
  content ^= value;
  slots.push_back({what, value});
}

void Object::bring_up_to_date(Session* session, uint64_t id) {
  if (recipe) {
    std::vector<Told> all;
    KeptObjects::make(session, *recipe, id, &all);
    recipe.reset();
  }
  catch_up(session, id, wanted, &told);
}

bool is_near(Session* session, const Object& object, const Device& device) {
  if (!session->spans_nodes()) return true;
  const auto& devices = session->devices();
  if (devices[object.device]->place.node == device.place.node) return true;
  log_once(LogLevel::kError,
           "a library's handle or descriptor that was made on vGPU " +
               std::to_string(object.device) + " was used while vGPU " +
               std::to_string(device.index) +
               " of another node is current: make one on each (cudaSetDevice first)");
  return false;
}

// Never destroyed: other libraries' destructors may still call.
State& State::get() {
  static State* state = new State;
  return *state;
}

uint64_t id_of_number(int number) {
  return number < 1 ? 0 : State::get().objects.id_at(static_cast<uint32_t>(number) - 1);
}

}  // namespace sluice::client::library
