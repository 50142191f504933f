// SPDX-License-Identifier: Apache-2.0
#include "client/cupti/node.h"

#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "client/cupti/answer.h"
#include "client/cupti/calls.h"
#include "client/cupti/clock.h"
#include "client/cupti/recorder.h"
#include "client/cupti/session.h"
#include "cupti_abi.h"

namespace sluice::cupti {

namespace {

// Of exchanges with a node when it begins, for its clock.
constexpr int kExchanges = 5;
// Answers in a row to one question: more than a worker keeps records for.
constexpr int kMostAnswers = 256;

constexpr const char* kNoCupti =
    "the GPU's node has no CUPTI (libcupti.so.13 or .12 beside its CUDA libraries): a profiler "
    "gets this process's calls only, and nothing of the GPU";
constexpr const char* kSenseless =
    "the GPU's node answered a profiler with what no release of Sluice does: it is asked for no "
    "more records";
constexpr const char* kUnbelieved =
    "the GPU's node answered a profiler with nonsense before: nothing of the GPU is recorded";
constexpr const char* kEndless =
    "the GPU's node says without end that it has more records for a profiler: it is asked for no "
    "more";

// Copies that are pieces of one call's.
using PieceKey = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>;

// The records of one answer, on their way to the recorder.
class Taking {
 public:
  Taking(uint32_t node, const Answer& answer) : node_(node), names_(answer.names) {}
  // False: of a device that the node does not have, of no call of this process, of no time at which
  // it recorded.
  bool take(const wire::ProfileRecord& r);
  // What had to wait for the rest of its answer.
  void finish() {
    for (const auto& [key, copy] : copies_) Recorder::get().add(copy);
  }

 private:
  void add_kernel(const wire::ProfileRecord& r, uint32_t device);
  void add_copy(const wire::ProfileRecord& r, uint32_t device);
  bool add_peer_copy(const wire::ProfileRecord& r, uint32_t device);
  void add_fill(const wire::ProfileRecord& r, uint32_t device);
  template <class Record>
  void give_work(const wire::ProfileRecord& r, uint32_t device, Record* to) const;
  template <class Record>
  void give_copy(const wire::ProfileRecord& r, uint32_t device, Record* to) const;
  uint64_t time(uint64_t at) const { return Clock::get().of_node(node_, at); }

  uint32_t node_;
  std::span<const char> names_;
  std::map<PieceKey, CopyRecord> copies_;
};

// What records of all kinds of work have.
template <class Record>
void Taking::give_work(const wire::ProfileRecord& r, uint32_t device, Record* to) const {
  to->start = time(r.start);
  to->end = time(r.end);
  to->device = device;
  to->context = device + 1;
  to->stream = r.stream;
  to->correlation = r.correlation;
  to->graph_node = r.graph_node;
  to->graph = r.graph;
  to->channel = r.channel;
  to->channel_type = r.channel_type;
}

template <class Record>
void Taking::give_copy(const wire::ProfileRecord& r, uint32_t device, Record* to) const {
  give_work(r, device, to);
  to->copy_kind = static_cast<uint8_t>(r.copy_kind);
  to->from_kind = static_cast<uint8_t>(r.from_kind);
  to->to_kind = static_cast<uint8_t>(r.to_kind);
  to->flags = static_cast<uint8_t>(r.flags);
  to->bytes = r.bytes;
}

void Taking::add_kernel(const wire::ProfileRecord& r, uint32_t device) {
  KernelRecord k{};
  give_work(r, device, &k);
  k.kind = r.kind;
  k.registers = static_cast<uint16_t>(r.registers);
  k.completed = k.end;
  for (int i = 0; i < 3; ++i) {
    k.grid[i] = static_cast<int32_t>(r.grid[i]);
    k.block[i] = static_cast<int32_t>(r.block[i]);
    k.cluster[i] = r.cluster[i];
  }
  k.static_shared = static_cast<int32_t>(r.static_shared);
  k.dynamic_shared = static_cast<int32_t>(r.dynamic_shared);
  k.shared_executed = r.shared_executed;
  k.local_per_thread = r.local_per_thread;
  k.local_total_wide = r.local_total;
  k.local_total = static_cast<uint32_t>(r.local_total);
  k.grid_id = static_cast<int64_t>(r.grid_id);
  k.name = Recorder::get().kept(names_.data() + r.name);
  k.launch_type = static_cast<uint8_t>(r.launch_type);
  Recorder::get().add(k);
}

// A copy of pageable memory goes to the node in pieces, and out of memory that is pinned there: the
// profiler is shown the call's one copy, with the memory that the call named.
void Taking::add_copy(const wire::ProfileRecord& r, uint32_t device) {
  const uint8_t flags = Calls::get().flags(r.correlation);
  CopyRecord c{};
  give_copy(r, device, &c);
  c.kind = kMemcpy;
  const uint8_t host = flags & Calls::kPageableCopy ? kPageable : kPinned;
  if (!(flags & Calls::kOfLibrary) && r.graph_node == 0) {
    if (c.copy_kind == kToDevice) c.from_kind = host;
    if (c.copy_kind == kToHost) c.to_kind = host;
  }
  c.copies = 1;
  const bool pieces = (c.copy_kind == kToDevice || c.copy_kind == kToHost) && r.graph_node == 0 &&
                      flags & Calls::kPageableCopy && !(flags & Calls::kOfLibrary);
  if (!pieces) return Recorder::get().add(c);
  const auto [at, fresh] = copies_.try_emplace({r.correlation, r.copy_kind, r.device, r.stream}, c);
  if (fresh) return;
  CopyRecord& whole = at->second;
  whole.bytes += c.bytes;
  whole.start = std::min<uint64_t>(whole.start, c.start);
  whole.end = std::max<uint64_t>(whole.end, c.end);
}

bool Taking::add_peer_copy(const wire::ProfileRecord& r, uint32_t device) {
  PeerCopyRecord c{};
  give_copy(r, device, &c);
  uint32_t from = 0, to = 0;
  if (!session()->device(node_, r.grid[0], &from) || !session()->device(node_, r.grid[1], &to))
    return false;
  c.kind = kMemcpyPeer;
  c.from_device = from;
  c.from_context = from + 1;
  c.to_device = to;
  c.to_context = to + 1;
  Recorder::get().add(c);
  return true;
}

void Taking::add_fill(const wire::ProfileRecord& r, uint32_t device) {
  FillRecord f{};
  give_work(r, device, &f);
  f.kind = kMemset;
  f.value = r.value;
  f.bytes = r.bytes;
  f.flags = static_cast<uint16_t>(r.flags);
  f.memory_kind = static_cast<uint16_t>(r.to_kind);
  Recorder::get().add(f);
}

bool Taking::take(const wire::ProfileRecord& r) {
  uint32_t device = 0;
  if (!Calls::get().knows(r.correlation) || !Clock::get().saw(node_, r.start, r.end) ||
      !session()->device(node_, r.device, &device))
    return false;
  switch (r.kind) {
    case kMemcpy:
      add_copy(r, device);
      return true;
    case kMemset:
      add_fill(r, device);
      return true;
    case kMemcpyPeer:
      return add_peer_copy(r, device);
    default:
      add_kernel(r, device);
      return true;
  }
}

// Under `fetching`: what was ever asked for, since a kind's last records come after it was given
// up, and nodes that answered what no worker of ours does. They are asked for nothing until a
// profiler is done and begins again.
struct Nodes {
  std::mutex fetching;
  uint64_t asked = 0;
  std::set<uint32_t> unbelieved;
  std::vector<std::byte> room;
};
Nodes& nodes() {
  static auto* const one = new Nodes;
  return *one;
}

CUresult exchange(uint32_t node, uint64_t activities, wire::ProfileState* state) {
  const uint64_t sent = real_ns();
  const CUresult e = session()->set(node, wire::ProfileSet{activities}, state);
  if (e == CUDA_SUCCESS) Clock::get().exchanged(node, sent, state->now, real_ns());
  return e;
}

void believe_no_more(uint32_t node, const char* why) {
  say_once(why);
  nodes().unbelieved.insert(node);
  wire::ProfileState state{};
  session()->set(node, wire::ProfileSet{0}, &state);
}

void take_answer(uint32_t node, Answer& answer) {
  Recorder::get().drop(answer.head.dropped);
  Taking taking(node, answer);
  size_t wild = 0;
  for (wire::ProfileRecord& r : answer.records)
    wild += !(credible(answer, nodes().asked, &r) && taking.take(r));
  taking.finish();
  if (!wild) return;
  Recorder::get().drop(wild);
  say_once(
      "the GPU's node sent a profiler records that make no sense, or of work that this process did "
      "not give it: they are left out");
}

void fetch_node(uint32_t node, bool forced) {
  std::vector<std::byte>& room = nodes().room;
  for (int i = 0; i < kMostAnswers; ++i) {
    size_t got = 0;
    const uint64_t sent = real_ns();
    const wire::ProfileFetch ask{forced, 0};
    if (session()->fetch(node, ask, room, &got) != CUDA_SUCCESS) return;
    const uint64_t received = real_ns();
    Answer answer;
    if (got > room.size() || !read_answer(std::span<const std::byte>(room).first(got), &answer))
      return believe_no_more(node, kSenseless);
    Clock::get().exchanged(node, sent, answer.head.now, received);
    take_answer(node, answer);
    if (!answer.head.more) return;
  }
  believe_no_more(node, kEndless);
}

}  // namespace

bool set_nodes(uint64_t activities, std::string* why) {
  const auto* s = session();
  if (!s || !s->is_open()) {
    *why = "there is no session";
    return activities == 0;
  }
  bool all = true;
  std::lock_guard lock(nodes().fetching);
  nodes().asked |= activities;
  const uint32_t count = s->nodes();
  for (uint32_t node = 0; node < count; ++node) {
    if (nodes().unbelieved.contains(node)) {
      *why = kUnbelieved;
      all = activities == 0 && all;
      continue;
    }
    wire::ProfileState state{};
    if (exchange(node, activities, &state) != CUDA_SUCCESS) {
      *why = "the GPU's node does not know how to record (its release is older), or is lost";
      all = activities == 0 && all;
      continue;
    }
    if (activities && !state.version) {
      *why = kNoCupti;
      all = false;
    } else if ((state.activities & activities) != activities) {
      *why = "CUPTI of the GPU's node refused to record: CUptiResult " +
             std::to_string(state.status) +
             " (another profiler there, or the node's settings, may be in the way)";
      all = false;
    }
    for (int i = 1; activities && all && i < kExchanges; ++i) exchange(node, activities, &state);
  }
  if (activities == 0) nodes().unbelieved.clear();
  return all;
}

void fetch_nodes(bool forced) {
  const auto* s = session();
  if (!s || !s->is_open()) return;
  std::lock_guard lock(nodes().fetching);
  nodes().room.resize(sizeof(wire::ProfileRecords) +
                      size_t{wire::kProfileRecords} * sizeof(wire::ProfileRecord) +
                      wire::kProfileNameBytes);
  Clock::get().look();
  const uint32_t count = s->nodes();
  for (uint32_t node = 0; node < count; ++node)
    if (!nodes().unbelieved.contains(node)) fetch_node(node, forced);
}

}  // namespace sluice::cupti
