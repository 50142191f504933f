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

void tell(std::vector<Told>* all, const Told& now) {
  std::erase_if(*all, [&](const Told& t) { return t.what == now.what; });
  all->push_back(now);
}

Key exact_of(Session* session, const Settings& all) {
  Key ordered, others;
  bool gone;
  for (const Setting& s : all) {
    if (s.function->commutes)
      others ^= s.as_of_now(session, &gone);
    else
      ordered.add(s.as_of_now(session, &gone));
  }
  ordered.add(others);
  return ordered;
}

Key shape_of(const Settings& all) {
  Key ordered, others;
  for (const Setting& s : all) {
    Key one = s.value;
    one.add(s.what);
    if (s.function->commutes)
      others ^= one;
    else
      ordered.add(one);
  }
  ordered.add(others);
  return ordered;
}

namespace {

const Told* find(const std::vector<Told>& told, uint64_t what) {
  for (const Told& t : told)
    if (t.what == what) return &t;
  return nullptr;
}

// Of the settings whose order counts, whether telling those of `wanted` from `from` on is enough.
bool is_enough(Session* session, const Settings& wanted, size_t from,
               const std::vector<Told>& told) {
  const auto next = [&](size_t at) {
    while (at < from && wanted[at].function->commutes) ++at;
    return at;
  };
  size_t kept = next(0);
  for (const Told& t : told) {
    if (t.commutes) continue;
    const auto same = [&](const Setting& s) { return s.what == t.what; };
    if (std::any_of(wanted.begin() + static_cast<ptrdiff_t>(from), wanted.end(), same)) continue;
    bool gone;
    if (kept == from || wanted[kept].what != t.what ||
        wanted[kept].as_of_now(session, &gone) != t.exact)
      return false;
    kept = next(kept + 1);
  }
  return kept == from;
}

}  // namespace

bool catch_up(Session* session, uint64_t id, const Settings& wanted, std::vector<Told>* told) {
  for (const Told& t : *told)
    if (std::none_of(wanted.begin(), wanted.end(),
                     [&](const Setting& s) { return s.what == t.what; }))
      return false;
  size_t from = wanted.size();
  while (!is_enough(session, wanted, from, *told)) --from;  // all of them are enough
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Setting& s = wanted[i];
    bool gone;
    const Key exact = s.as_of_now(session, &gone);
    const Told* before = find(*told, s.what);
    if (s.function->commutes ? before && before->exact == exact : i < from) continue;
    tell(told, {s.what, exact, s.function->commutes});
    if (gone) continue;
    std::vector<std::byte> body = s.body;
    std::memcpy(body.data(), &id, sizeof id);
    session->post(s.function->id, body.data(), body.size(), {}, nullptr, s.context);
  }
  return true;
}

}  // namespace sluice::client::library
