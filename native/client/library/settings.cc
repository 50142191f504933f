// SPDX-License-Identifier: Apache-2.0
#include "client/library/settings.h"

#include <algorithm>

#include "client/core/session.h"
#include "client/library/outgoing.h"

namespace sluice::client::library {

Key Setting::as_of_now(Session* session, bool* gone) const {
  *gone = stream != 0 && !session->streams.find(stream);
  for (const uint64_t a : addresses) *gone = *gone || !names_memory(session, a);
  if (!*gone) return exact;
  Key none;
  none.add(what);
  return none;
}

void set(Settings* all, Setting setting) {
  const auto same = [&](const Setting& s) { return s.what == setting.what; };
  if (const auto it = std::find_if(all->begin(), all->end(), same); it != all->end())
    all->erase(it);
  all->push_back(std::move(setting));
}

void told(std::vector<Told>* all, uint64_t what, const Key& exact) {
  const auto same = [&](const Told& t) { return t.what == what; };
  if (const auto it = std::find_if(all->begin(), all->end(), same); it != all->end())
    all->erase(it);
  all->push_back({what, exact});
}

namespace {

// Whether telling the last settings of `wanted`, from `from` on, is enough.
bool is_enough(Session* session, const Settings& wanted, size_t from,
               const std::vector<Told>& told) {
  size_t kept = 0;
  for (const Told& t : told) {
    const auto same = [&](const Setting& s) { return s.what == t.what; };
    if (std::any_of(wanted.begin() + static_cast<ptrdiff_t>(from), wanted.end(), same)) continue;
    bool gone;
    if (kept == from || wanted[kept].what != t.what ||
        wanted[kept].as_of_now(session, &gone) != t.exact)
      return false;
    ++kept;
  }
  return kept == from;
}

}  // namespace

bool catch_up(Session* session, uint64_t id, const Settings& wanted, std::vector<Told>* told) {
  size_t from = wanted.size();
  while (!is_enough(session, wanted, from, *told)) {
    if (from == 0) return false;
    --from;
  }
  for (; from < wanted.size(); ++from) {
    const Setting& s = wanted[from];
    bool gone;
    library::told(told, s.what, s.as_of_now(session, &gone));
    if (gone) continue;
    std::vector<std::byte> body = s.body;
    std::memcpy(body.data(), &id, sizeof id);
    session->post(s.function->id, body.data(), body.size(), {}, nullptr, s.context);
  }
  return true;
}

}  // namespace sluice::client::library
