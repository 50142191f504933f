// SPDX-License-Identifier: Apache-2.0
#include "client/library/kept.h"

#include <algorithm>

#include "client/core/session.h"
#include "client/library/object.h"

namespace sluice::client::library {

namespace {

Key exact_of(Session* session, const Recipe& recipe) {
  Key key = recipe.made;
  key.add(exact_of(session, recipe.settings));
  return key;
}

Key shape_of(const Recipe& recipe) {
  Key key = recipe.made;
  key.add(shape_of(recipe.settings));
  return key;
}

}  // namespace

KeptObjects::Entry* KeptObjects::find(Session* session, const Recipe& recipe, Key* exact) {
  *exact = exact_of(session, recipe);
  const auto it = by_content_.find(*exact);
  return it == by_content_.end() ? nullptr : it->second.get();
}

void KeptObjects::make(Session* session, const Recipe& recipe, uint64_t id,
                       std::vector<Told>* told) {
  std::vector<std::byte> body = recipe.body;
  std::memcpy(body.data() + recipe.mint * 8, &id, sizeof id);
  session->post(recipe.creator->id, body.data(), body.size(), {}, nullptr, recipe.context);
  told->clear();
  catch_up(session, id, recipe.settings, told);
}

std::unique_ptr<KeptObjects::Entry> KeptObjects::build(Session* session, const Recipe& recipe) {
  auto entry = std::make_unique<Entry>();
  // An object without a type: no handle of the application's names it.
  if (!State::get().objects.create(&entry->id)) return nullptr;
  entry->end = recipe.end;
  entry->context = recipe.context;
  make(session, recipe, entry->id, &entry->told);
  return entry;
}

std::unique_ptr<KeptObjects::Entry> KeptObjects::remove(Entry* entry) {
  std::vector<Entry*>& alike = alike_[entry->shape];
  std::erase(alike, entry);
  if (alike.empty()) alike_.erase(entry->shape);
  const auto it = by_content_.find(entry->exact);
  std::unique_ptr<Entry> out = std::move(it->second);
  by_content_.erase(it);
  return out;
}

KeptObjects::Entry* KeptObjects::insert(std::unique_ptr<Entry> entry) {
  Entry* e = entry.get();
  e->used = ++clock_;
  alike_[e->shape].push_back(e);
  by_content_.emplace(e->exact, std::move(entry));
  return e;
}

void KeptObjects::end(Session* session, std::unique_ptr<Entry> entry) {
  auto& objects = State::get().objects;
  if (!objects.retire(entry->id)) return;
  std::vector<std::byte> body(size_t{entry->end->params} * 8);
  std::memcpy(body.data(), &entry->id, 8);
  session->post(entry->end->id, body.data(), body.size(), {}, nullptr, entry->context);
  objects.recycle(entry->id);
}

// The quarter that has rested longest goes at once, so that the table is seldom looked through.
void KeptObjects::make_room(Session* session) {
  if (by_content_.size() < kMost) return;
  std::vector<Entry*> idle;
  for (const auto& [key, entry] : by_content_)
    if (entry->pins == 0) idle.push_back(entry.get());
  const size_t n = std::min(idle.size(), kMost / 4);
  std::nth_element(idle.begin(), idle.begin() + static_cast<ptrdiff_t>(n), idle.end(),
                   [](const Entry* a, const Entry* b) { return a->used < b->used; });
  for (size_t i = 0; i < n; ++i) end(session, remove(idle[i]));
}

void KeptObjects::clear(Session* session) {
  std::vector<Entry*> idle;
  for (const auto& [key, entry] : by_content_)
    if (entry->pins == 0) idle.push_back(entry.get());
  for (Entry* e : idle) end(session, remove(e));
}

KeptObjects::Entry* KeptObjects::take(Session* session, const Recipe& recipe) {
  Key exact;
  Entry* entry = find(session, recipe, &exact);
  if (!entry) {
    std::unique_ptr<Entry> mine;
    const Key shape = shape_of(recipe);
    if (const auto it = alike_.find(shape); it != alike_.end() && it->second.size() >= kMostAlike) {
      Entry* oldest = nullptr;
      for (Entry* e : it->second)
        if (e->pins == 0 && (!oldest || e->used < oldest->used)) oldest = e;
      if (oldest) mine = remove(oldest);
      if (mine && !catch_up(session, mine->id, recipe.settings, &mine->told)) {
        end(session, std::move(mine));
        mine = nullptr;
      }
    }
    if (!mine) {
      make_room(session);
      mine = build(session, recipe);
    }
    if (!mine) return nullptr;
    mine->exact = exact;
    mine->shape = shape;
    entry = insert(std::move(mine));
  }
  entry->used = ++clock_;
  ++entry->pins;
  return entry;
}

std::unique_ptr<KeptObjects::Entry> KeptObjects::take_out(Session* session, const Recipe& recipe) {
  Key exact;
  Entry* entry = find(session, recipe, &exact);
  return entry && entry->pins == 0 ? remove(entry) : build(session, recipe);
}

void KeptObjects::put(Session* session, std::unique_ptr<Entry> entry, const Recipe& recipe) {
  if (find(session, recipe, &entry->exact)) return end(session, std::move(entry));
  entry->shape = shape_of(recipe);
  make_room(session);
  insert(std::move(entry));
}

}  // namespace sluice::client::library
