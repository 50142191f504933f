// SPDX-License-Identifier: Apache-2.0
// What a call leaves with the client instead of sending it: recipes of objects that are kept by
// content (kept.h), and settings that wait until their object is used (settings.h).
#include <algorithm>

#include "client/library/outgoing.h"
#include "wire/library_sizes.h"

namespace sluice::client::library {

using wire::CallClass;
using wire::CallState;
using wire::ParamKind;

namespace {

// Whether the call says all that it sets by itself, and nothing comes back.
bool is_plain(const wire::FunctionSpec& f) {
  if (f.state != CallState::kSets || f.launches || f.changes[0] >= 0 || f.computes >= 0 ||
      f.outputs_always || f.params == 0 || f.param[0].kind != ParamKind::kHandle)
    return false;
  return std::all_of(f.param + 1, f.param + f.params, [](const wire::ParamSpec& p) {
    switch (p.kind) {
      case ParamKind::kValue:
      case ParamKind::kIn:
      case ParamKind::kString:
      case ParamKind::kAttribute:
      case ParamKind::kAddress:
      case ParamKind::kStream:
      case ParamKind::kNothing:
        return true;
      default:
        return false;
    }
  });
}

}  // namespace

Call::~Call() {
  if (pins_.empty()) return;
  State& state = State::get();
  std::lock_guard lock(state.mutex);
  for (KeptObjects::Entry* e : pins_) state.kept.release(e);
}

// The key under which the call is known to be valid, once it was.
Key Call::question() const {
  if (f_.call != CallClass::kAsync) return key_;
  Key key;  // whether the node has the function at all
  key.add(f_.id);
  return key;
}

// Under the lock of State.
bool Call::is_known() const {
  return !f_.cached && learnable_ && f_.call != CallClass::kAnswered &&
         State::get().learned.contains(question());
}

// Puts the id that the node knows the object by into the command, and sees to it that the node's
// object holds what the application's does.
int32_t Call::name(int index, Object* object, uint64_t id, uint64_t* on_node) {
  *on_node = id;
  const bool about = index == 0;
  if (about && f_.state == CallState::kDestroys) return 0;
  if (about && (object->recipe || f_.deferred) && is_plain(f_)) {
    waits_ = true;
    return 0;
  }
  const bool only_reads = !(about && f_.state == CallState::kSets) && !f_.may_change(index) &&
                          index != f_.computes && f_.param[index].kind == ParamKind::kHandle;
  if (!object->recipe || !only_reads) return object->bring_up_to_date(session_, id), 0;
  KeptObjects::Entry* entry = State::get().kept.take(session_, *object->recipe);
  if (!entry) return library_.status.failed;
  if (pins_.empty()) pins_.reserve(8);
  pins_.push_back(entry);
  *on_node = entry->id;
  return 0;
}

Setting Call::setting() {
  Setting s;
  s.function = &f_;
  s.what = what_is_set();
  s.context = device_->context();
  s.value = setting_;
  s.exact.add(f_.id);
  s.exact.add(s.context);
  s.exact.add_bytes(body_.data() + 8, body_.size() - 8);
  for (int i = 1; i < f_.params; ++i) {
    const wire::ParamSpec& p = f_.param[i];
    uint64_t address = 0;
    if (p.kind == ParamKind::kAddress) address = args_[i];
    if (p.kind == ParamKind::kAttribute && args_[i] != 0 && wire::carries_address(p, args_))
      std::memcpy(&address, pointer<const void>(args_[i]), 8);
    if (address != 0) s.addresses.push_back(address);
    if (p.kind == ParamKind::kStream) std::memcpy(&s.stream, body_.data() + i * 8, 8);
  }
  s.body = std::move(body_);
  return s;
}

std::unique_ptr<Recipe> Call::recipe() const {
  auto r = std::make_unique<Recipe>();
  r->creator = &f_;
  r->end = &library_.functions[f_.kept_end];
  r->context = device_->context();
  while (f_.param[r->mint].kind != ParamKind::kMint) ++r->mint;
  r->body = body_;
  std::memset(r->body.data() + r->mint * 8, 0, 8);
  r->made.add(f_.id);
  r->made.add(r->context);
  r->made.add_bytes(r->body.data(), r->body.size());
  return r;
}

// Under the lock of State. The status, if nothing has to be sent; otherwise the command is made to
// name the object that it is tried on.
std::optional<int32_t> Call::settle() {
  State& state = State::get();
  if (f_.state == CallState::kDestroys) {
    if (!main_ || !main_->recipe) return std::nullopt;
    main_->recipe.reset();
    state.objects.destroy(main_id_);
    return 0;
  }
  if (f_.kept_end >= 0) {
    recipe_ = recipe();
    if (is_known()) {
      settled(true);
      return 0;
    }
    asked_ = std::make_unique<KeptObjects::Entry>();
    if (!state.objects.create(&asked_->id)) {
      take_back();
      return library_.status.failed;
    }
    asked_->end = recipe_->end;
    asked_->context = recipe_->context;
    std::memcpy(body_.data() + recipe_->mint * 8, &asked_->id, 8);
    return std::nullopt;
  }
  if (!waits_) return std::nullopt;
  if (is_known()) {
    settled(true);
    return 0;
  }
  if (!main_->recipe) {
    main_->bring_up_to_date(session_, main_id_);
    return std::nullopt;
  }
  asked_ = state.kept.take_out(session_, *main_->recipe);
  if (!asked_) return library_.status.failed;
  std::memcpy(body_.data(), &asked_->id, 8);
  return std::nullopt;
}

// Under the lock of State: the call is known to be good, or was made and is good or not.
void Call::settled(bool stands) {
  KeptObjects& kept = State::get().kept;
  if (recipe_) {
    if (asked_ && !stands) State::get().objects.destroy(asked_->id);
    if (asked_ && stands) kept.put(session_, std::move(asked_), *recipe_);
    if (stands) minted_->recipe = std::move(recipe_);
    asked_.reset();
  } else if (waits_ && stands) {
    Setting s = setting();
    if (main_->recipe) {
      if (asked_) tell(&asked_->told, {s.what, s.exact, f_.commutes});
      set(&main_->recipe->settings, std::move(s));
    } else {
      if (sent_) tell(&main_->told, {s.what, s.exact, f_.commutes});
      set(&main_->wanted, std::move(s));
    }
  }
  if (asked_ && main_->recipe) kept.put(session_, std::move(asked_), *main_->recipe);
  if (stands) remember();
}

}  // namespace sluice::client::library
