// SPDX-License-Identifier: Apache-2.0
#include "worker/session_plan.h"

#include <algorithm>
#include <charconv>
#include <cstddef>

#include "process/control.h"
#include "wire/protocol.h"

namespace sluice::worker {

namespace {

// A word of the OpenSession, which the message has in hexadecimal digits; 0 where it has none.
uint32_t word_of(const std::string& request, size_t offset) {
  uint32_t value = 0;
  for (size_t i = 0; i < sizeof value; ++i) {
    const size_t at = 2 * (offset + i);
    unsigned byte = 0;
    if (request.size() < at + 2 ||
        std::from_chars(&request[at], &request[at] + 2, byte, 16).ptr != &request[at] + 2)
      return 0;
    value |= byte << (8 * i);
  }
  return value;
}

}  // namespace

SessionPlan read_plan(const process::Message& m) {
  SessionPlan plan{m.text("id"), m.text("grant"), m.text("channel"), {}};
  m.number("grant_vgpus", &plan.grant_vgpus);
  m.number("windows", &plan.windows);
  m.number("first_window", &plan.first_window);
  plan.cuda_version = word_of(m.text("request"), offsetof(wire::OpenSession, cuda_version));
  const uint32_t flags = word_of(m.text("request"), offsetof(wire::OpenSession, flags));
  if (m.text("merge_launches") == "auto" && flags & wire::kMergeLaunches)
    plan.merging = flags & wire::kMergeAtOnce ? Merging::kForce : Merging::kAuto;
  uint64_t grace = 0, closed_grace = 0, vgpus = 0;
  m.number("network_grace_seconds", &grace);
  m.number("closed_grace_seconds", &closed_grace);
  plan.network_grace_seconds = static_cast<uint32_t>(grace);
  plan.closed_grace_seconds = static_cast<uint32_t>(std::min(grace, closed_grace));
  m.number("vgpus", &vgpus);
  for (uint64_t i = 0; i < vgpus; ++i) {
    const std::string key = "vgpu." + std::to_string(i) + ".";
    uint64_t mib = 0, percent = 100, place = i;
    m.number(key + "memory_mib", &mib);
    m.number(key + "compute_percent", &percent);
    m.number(key + "place", &place);
    plan.vgpus.push_back({m.text(key + "device"), mib, static_cast<uint32_t>(percent),
                          static_cast<uint32_t>(place)});
  }
  return plan;
}

}  // namespace sluice::worker
