// SPDX-License-Identifier: Apache-2.0
#include "worker/merge/library_states.h"

#include <cstring>

#include "library/objects.h"
#include "worker/merge/recogniser.h"

namespace sluice::worker::merge {

namespace {

namespace ids = sluice::library;

constexpr size_t kMostSettings = 256;  // of one object

std::vector<std::byte> whole(const Command& c) {
  std::vector<std::byte> frame(sizeof c.header + c.body.size());
  std::memcpy(frame.data(), &c.header, sizeof c.header);
  std::memcpy(frame.data() + sizeof c.header, c.body.data(), c.body.size());
  return frame;
}

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

void LibraryStates::State::put(uint64_t what, uint64_t value) {
  take(what);
  settings[what] = value;
  sum ^= mix(what, value);
}

void LibraryStates::State::take(uint64_t what) {
  const auto at = settings.find(what);
  if (at == settings.end()) return;
  sum ^= mix(what, at->second);
  settings.erase(at);
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

// cublasSetStream takes the workspace away.
void LibraryStates::set(uint64_t id, uint64_t what, const wire::FunctionSpec& f, const Command& c) {
  State* s = find(id);
  if (!s) return;
  if (s->settings.size() >= kMostSettings) {
    s->settings.clear();
    s->sum = 0;
    s->number = ++numbers_;
  }
  const auto key = [](uint64_t function, uint64_t of) { return mix(function, of); };
  if (f.remember.stream >= 0) {
    s->take(key(ids::id_cublasSetWorkspace_v2, 0));
    s->told = {whole(c), {}, 0};
    const auto at = static_cast<size_t>(f.remember.stream) * 8;
    if (at + 8 <= c.body.size()) std::memcpy(&s->told.stream_id, c.body.data() + at, 8);
  } else if (f.id == ids::id_cublasSetWorkspace_v2) {
    s->told.workspace = whole(c);
  }
  s->put(key(f.id, what), hash_of(c.body, c.header.context));
}

uint64_t LibraryStates::of(uint64_t id) const {
  const auto at = all_.find(id);
  return at == all_.end() ? 0 : mix(at->second.number, at->second.sum);
}

const LibraryStates::Told* LibraryStates::told(uint64_t id) const {
  const auto at = all_.find(id);
  return at == all_.end() ? nullptr : &at->second.told;
}

}  // namespace sluice::worker::merge
