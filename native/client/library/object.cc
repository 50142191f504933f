// SPDX-License-Identifier: Apache-2.0
#include "client/library/object.h"

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

// Never destroyed: other libraries' destructors may still call.
State& State::get() {
  static State* state = new State;
  return *state;
}

uint64_t id_of_number(int number) {
  return number < 1 ? 0 : State::get().objects.id_at(static_cast<uint32_t>(number) - 1);
}

}  // namespace sluice::client::library
