// SPDX-License-Identifier: Apache-2.0
#include "worker/session_status.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "abi/function_ids.h"
#include "channel/futex.h"
#include "library/objects.h"
#include "wire/merge_figures.h"
#include "worker/session.h"

namespace sluice::worker {

std::string channel_of(Session& session) {
  const std::string& planned = session.plan.channel;
  return planned == "rdma" && !session.endpoint().over_rdma() ? "tcp" : planned;
}

namespace {

constexpr size_t kNamed = 8;  // functions

std::string name_of(uint16_t function) {
  if (const wire::CommandSpec* command = wire::find_command(function)) return command->name;
  const char* name = abi::function_name(function);
  if (!name) name = library::function_name(function);
  return name ? name : "command " + std::to_string(function);
}

// In the status, as native/api/control.yaml has them.
constexpr std::pair<wire::LeftSingle, const char*> kLeftNames[] = {
    {wire::LeftSingle::kLate, "merged_late"},
    {wire::LeftSingle::kDiffering, "merged_differing"},
    {wire::LeftSingle::kCutShort, "merged_cut_short"},
    {wire::LeftSingle::kNotMade, "merged_not_made"},
    {wire::LeftSingle::kUnseen, "merged_unseen"},
    {wire::LeftSingle::kAnswered, "merged_answered"},
    {wire::LeftSingle::kLibrary, "merged_library"},
    {wire::LeftSingle::kOther, "merged_other"},
};
static_assert(std::size(kLeftNames) == wire::kLeftReasons);

// Those that most commands were of.
std::string most_of(const MergingFigures& figures) {
  std::vector<std::pair<uint32_t, uint16_t>> all;
  for (size_t i = 0; figures.single && i < figures.single->size(); ++i)
    if (const uint32_t n = (*figures.single)[i].load()) all.emplace_back(n, i);
  const size_t count = std::min(all.size(), kNamed);
  std::ranges::partial_sort(all, all.begin() + static_cast<ptrdiff_t>(count), std::greater{});
  std::string text;
  for (size_t i = 0; i < count; ++i)
    text += (i ? ", " : "") + std::to_string(all[i].first) + " " + name_of(all[i].second);
  return text;
}

}  // namespace

std::string merging_text(const Session& session) {
  const MergingFigures& f = session.figures.merging;
  const auto n = [](const std::atomic<uint64_t>& figure) { return std::to_string(figure.load()); };
  std::string left;
  for (size_t i = 0; i < wire::kLeftReasons; ++i) {
    const auto why = static_cast<wire::LeftSingle>(i);
    left += std::string(i ? ", " : "") + std::to_string(f.left_by(why)) + " " + wire::text_of(why);
  }
  return n(f.replayed) + " commands in " + n(f.launches) + " graphs; left single: " + left +
         "; pieces made " + n(f.made) + ", refused " + n(f.refused) + ", ended " + n(f.ended) +
         ", told otherwise " + n(f.stale) + ", beside a capture " + n(f.busy) +
         "; no piece goes over " + most_of(f);
}

std::map<std::string, std::string> session_status(Session* session) {
  std::map<std::string, std::string> v;
  v["pid"] = std::to_string(getpid());
  v["state"] = session ? "running" : "idle";
  if (!session) return v;
  v["id"] = session->plan.id;
  v["grant"] = session->plan.grant;
  v["channel"] = channel_of(*session);
  v["commands"] = std::to_string(session->figures.commands.load());
  v["round_trips"] = std::to_string(session->figures.round_trips.load());
  const MergingFigures& merging = session->figures.merging;
  v["merged"] = std::to_string(merging.replayed.load());
  v["merged_launches"] = std::to_string(merging.launches.load());
  for (const auto& [why, name] : kLeftNames) v[name] = std::to_string(merging.left_by(why));
  v["pieces_made"] = std::to_string(merging.made.load());
  v["pieces_refused"] = std::to_string(merging.refused.load());
  v["pieces_ended"] = std::to_string(merging.ended.load());
  v["bytes_in"] = std::to_string(session->bytes_in());
  v["bytes_out"] = std::to_string(session->bytes_out());
  double busy = 0;
  bool held = false;
  for (size_t i = 0; i < session->vgpus.size(); ++i) {
    Vgpu& g = *session->vgpus[i];
    const std::string key = "vgpu." + std::to_string(i) + ".";
    v[key + "device"] = uuid_text(g.gpu->uuid);
    v[key + "uuid"] = uuid_text(g.uuid);
    v[key + "memory_mib"] = std::to_string(g.memory.bytes() >> 20);
    // Whoever holds it may be waiting for the GPU, and this thread must not: then it is as it was.
    if (std::unique_lock lock(g.mutex, std::try_to_lock); lock) {
      g.shown_used = g.memory.used();
      g.shown_library = g.memory.taken(MemoryUse::kLibrary);
    }
    v[key + "used_mib"] = std::to_string((g.shown_used + (1 << 20) - 1) >> 20);
    v[key + "library_mib"] = std::to_string((g.shown_library + (1 << 20) - 1) >> 20);
    const double busy_ms = g.gate->gpu_busy_ms();
    v[key + "busy_us"] = std::to_string(static_cast<uint64_t>(busy_ms * 1000));
    busy += busy_ms;
    held |= g.gate->held();
  }
  v["gpu_busy_ms"] = std::to_string(static_cast<uint64_t>(busy));
  v["held"] = held ? "1" : "0";
  const auto broken = static_cast<uint64_t>(session->endpoint().broken_since());
  v["disconnected_ms"] = std::to_string(broken ? (channel::now_ns() - broken) / 1'000'000 : 0);
  return v;
}

}  // namespace sluice::worker
