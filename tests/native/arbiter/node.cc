// SPDX-License-Identifier: Apache-2.0
#include "tests/native/arbiter/node.h"

#include <algorithm>
#include <stdexcept>

namespace sluice::test {

uint32_t Node::add(const Program& program) {
  const uint32_t tenant = next_++;
  if (!schedule.add(tenant, program.tenancy, now)) throw std::invalid_argument("tenancy");
  Running r;
  r.program = program;
  r.wakes = std::max(now, program.first);
  programs_.emplace(tenant, r);
  return tenant;
}

void Node::remove(uint32_t tenant) {
  schedule.remove(tenant, now);
  programs_.erase(tenant);
}

void Node::launch(Running& r) {
  const auto longer = r.program.long_one.find(r.launched++);
  Nanoseconds length = longer == r.program.long_one.end() ? r.program.kernel : longer->second;
  if (r.program.work) length = std::min(length, r.left);
  r.left -= length;
  r.done += length;
  r.ends = length == kForever ? kForever : now + length;
}

// Whether the schedule was told.
bool Node::ended(uint32_t tenant, Running& r) {
  r.ends = kForever;
  if (r.program.work && r.left <= 0) {
    r.answers.push_back(now - r.asked);
    schedule.gives_back(tenant, false, now);
    const double mean = static_cast<double>(r.program.pause);
    const double pause =
        r.program.random_pauses ? std::exponential_distribution<>(1 / mean)(random_) : mean;
    r.wakes = now + static_cast<Nanoseconds>(pause);
  } else if (r.called_back || (r.until != kForever && now + r.program.kernel > r.until)) {
    schedule.gives_back(tenant, true, now);
  } else {
    launch(r);
    return false;
  }
  return true;
}

void Node::run(Nanoseconds until) {
  Nanoseconds look_again = now;
  while (true) {
    Nanoseconds next = look_again;
    for (const auto& [id, r] : programs_) next = std::min({next, r.ends, r.wakes});
    if (next > until) break;
    now = std::max(now, next);
    bool told = look_again <= now;
    for (auto& [id, r] : programs_) {
      if (r.wakes <= now) {
        r.wakes = kForever;
        r.asked = now;
        r.left = r.program.work;
        schedule.wants(id, now);
        told = true;
      }
      if (r.ends <= now) told |= ended(id, r);
    }
    if (!told) continue;
    const arbiter::Decision decision = schedule.step(now);
    look_again = decision.look_again;
    for (const uint32_t id : decision.call_back) programs_.at(id).called_back = true;
    for (const arbiter::Turn& t : decision.limit) programs_.at(t.tenant).until = t.until;
    for (const arbiter::Turn& t : decision.begin) {
      Running& r = programs_.at(t.tenant);
      r.called_back = false;
      r.until = t.until;
      launch(r);
    }
    look();
  }
  now = until;
}

void Node::look() {
  uint64_t gpus = 0;
  for (const auto& [id, r] : programs_) gpus |= r.program.tenancy.gpus;
  for (uint64_t gpu = 1; gpu & gpus; gpu <<= 1) {
    size_t holders = 0;
    for (const auto& [id, r] : programs_)
      holders += (r.program.tenancy.gpus & gpu) && schedule.holds(id);
    most_at_once = std::max(most_at_once, holders);
  }
}

void Node::mark() {
  marked_ = now;
  for (auto& [id, r] : programs_) r.marked = r.done;
}

double Node::part(uint32_t tenant) const {
  const Running& r = programs_.at(tenant);
  return 100.0 * static_cast<double>(r.done - r.marked) / static_cast<double>(now - marked_);
}

double Node::busy() const {
  double all = 0;
  for (const auto& [id, r] : programs_) all += part(id);
  return all;
}

}  // namespace sluice::test
