// SPDX-License-Identifier: Apache-2.0
#include "worker/merge/library_states.h"

#include <cstring>

#include "library/objects.h"
#include "worker/merge/recogniser.h"

namespace sluice::worker::merge {

namespace {

namespace ids = sluice::library;

constexpr size_t kMostSettings = 256;  // of one object

void put_whole(const Command& c, std::vector<std::byte>* frame) {
  frame->resize(sizeof c.header + c.body.size());
  std::memcpy(frame->data(), &c.header, sizeof c.header);
  std::memcpy(frame->data() + sizeof c.header, c.body.data(), c.body.size());
}

std::vector<std::byte> whole(const Command& c) {
  std::vector<std::byte> frame;
  put_whole(c, &frame);
  return frame;
}

uint64_t setting_of(uint16_t function, uint64_t what) { return mix(function, what); }

}  // namespace

uint64_t hash_of(std::span<const std::byte> bytes, uint64_t seed) {
  uint64_t sum = mix(seed, bytes.size());
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    sum = mix(sum, word);
  }
  if (at < bytes.size()) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, bytes.size() - at);
    sum = mix(sum, word);
  }
  return sum;
}

void LibraryStates::put(State* s, uint64_t what, uint64_t value, const Command* frame) {
  const auto [at, fresh] = s->settings.try_emplace(what);
  Setting& setting = at->second;
  if (!fresh) s->sum ^= mix(what, setting.value);
  setting.value = value;
  s->sum ^= mix(what, value);
  bytes_ -= setting.frame.size();
  const size_t size = frame ? sizeof frame->header + frame->body.size() : 0;
  if (size > 0 && bytes_ + size <= kMostBytes)
    put_whole(*frame, &setting.frame);
  else
    setting.frame.clear();
  bytes_ += setting.frame.size();
}

void LibraryStates::take(State* s, uint64_t what) {
  const auto at = s->settings.find(what);
  if (at == s->settings.end()) return;
  s->sum ^= mix(what, at->second.value);
  bytes_ -= at->second.frame.size();
  s->settings.erase(at);
}

void LibraryStates::forget(State* s) {
  for (const auto& [what, setting] : s->settings) bytes_ -= setting.frame.size();
  s->settings.clear();
  s->sum = 0;
}

LibraryStates::State* LibraryStates::find(uint64_t id) {
  if (const auto at = all_.find(id); at != all_.end()) return &at->second;
  if (full_ || all_.size() >= kMost) {
    full_ = true;
    return nullptr;
  }
  State& s = all_[id];
  s.number = ++numbers_;
  return &s;
}

void LibraryStates::made(uint64_t id) {
  gone(id);
  find(id);
}

void LibraryStates::gone(uint64_t id) {
  const auto at = all_.find(id);
  if (at == all_.end()) return;
  forget(&at->second);
  all_.erase(at);
}

// cublasSetStream takes the workspace away.
void LibraryStates::set(uint64_t id, uint64_t what, const wire::FunctionSpec& f, const Command& c,
                        bool again) {
  State* s = find(id);
  if (!s) return;
  if (s->settings.size() >= kMostSettings) {
    forget(s);
    s->number = ++numbers_;
  }
  if (f.remember.stream >= 0) {
    take(s, setting_of(ids::id_cublasSetWorkspace_v2, 0));
    s->told = {whole(c), {}, 0};
    const auto at = static_cast<size_t>(f.remember.stream) * 8;
    if (at + 8 <= c.body.size()) std::memcpy(&s->told.stream_id, c.body.data() + at, 8);
  } else if (f.id == ids::id_cublasSetWorkspace_v2) {
    s->told.workspace = whole(c);
  }
  if (c.answered())
    put(s, setting_of(f.id, what), mix(++numbers_, f.id), nullptr);
  else
    put(s, setting_of(f.id, what), hash_of(c.body, c.header.context), again ? &c : nullptr);
}

void LibraryStates::changed(uint64_t id) {
  if (State* s = find(id)) s->number = ++numbers_;
}

uint64_t LibraryStates::of(uint64_t id) const {
  const auto at = all_.find(id);
  return at == all_.end() ? 0 : mix(at->second.number, at->second.sum);
}

uint64_t LibraryStates::number_of(uint64_t id) const {
  const auto at = all_.find(id);
  return at == all_.end() ? 0 : at->second.number;
}

std::span<const std::byte> LibraryStates::last(uint64_t id, uint64_t what,
                                               uint16_t function) const {
  const auto at = all_.find(id);
  if (at == all_.end()) return {};
  const auto setting = at->second.settings.find(setting_of(function, what));
  if (setting == at->second.settings.end()) return {};
  return setting->second.frame;
}

void LibraryStates::all_of(uint64_t id, Frames* to) const {
  const auto at = all_.find(id);
  if (at == all_.end()) return;
  for (const auto& [what, setting] : at->second.settings)
    if (!setting.frame.empty()) to->add(command_of(setting.frame), 0);
}

LibraryStates LibraryStates::some(const std::set<uint64_t>& ids) const {
  LibraryStates found;
  found.numbers_ = numbers_;
  for (const uint64_t id : ids) {
    const auto at = all_.find(id);
    if (at == all_.end()) continue;
    for (const auto& [what, setting] : at->second.settings) found.bytes_ += setting.frame.size();
    found.all_[id] = at->second;
  }
  return found;
}

const LibraryStates::Told* LibraryStates::told(uint64_t id) const {
  const auto at = all_.find(id);
  return at == all_.end() ? nullptr : &at->second.told;
}

}  // namespace sluice::worker::merge
