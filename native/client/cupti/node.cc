// SPDX-License-Identifier: Apache-2.0
#include "client/cupti/node.h"

#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <tuple>
#include <vector>

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
    "gets "
    "this process's calls only, and nothing of the GPU";

// Copies that are pieces of one call's.
using PieceKey = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>;

class Answer {
 public:
  Answer(uint32_t node, std::span<const std::byte> bytes) : node_(node) {
    if (bytes.size() < sizeof head_) return;
    std::memcpy(&head_, bytes.data(), sizeof head_);
    bytes = bytes.subspan(sizeof head_);
    if (head_.count > wire::kProfileRecords || head_.name_bytes > wire::kProfileNameBytes) return;
    const size_t records = size_t{head_.count} * sizeof(wire::ProfileRecord);
    // A frame is a multiple of 8 bytes.
    const size_t all = records + head_.name_bytes;
    if (bytes.size() < all || bytes.size() >= all + 8) return;
    records_.resize(head_.count);
    if (head_.count) std::memcpy(records_.data(), bytes.data(), records);
    names_ = {reinterpret_cast<const char*>(bytes.data()) + records, head_.name_bytes};
    whole_ = names_.empty() || names_.back() == '\0';
  }
  bool whole() const { return whole_; }
  const wire::ProfileRecords& head() const { return head_; }
  // Into the recorder. How many made no sense.
  size_t take();

 private:
  bool fits(const wire::ProfileRecord& r) const;
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
  bool whole_ = false;
  wire::ProfileRecords head_{};
  std::vector<wire::ProfileRecord> records_;
  std::span<const char> names_;
  std::map<PieceKey, CopyRecord> copies_;
};

bool Answer::fits(const wire::ProfileRecord& r) const {
  const bool kernel = r.kind == kKernel || r.kind == kConcurrentKernel;
  const bool other = r.kind == kMemcpy || r.kind == kMemset || r.kind == kMemcpyPeer;
  return (kernel || other) && (!kernel || r.name < names_.size()) && r.start <= r.end &&
         Calls::get().knows(r.correlation);
}

// What records of all kinds of work have.
template <class Record>
void Answer::give_work(const wire::ProfileRecord& r, uint32_t device, Record* to) const {
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
void Answer::give_copy(const wire::ProfileRecord& r, uint32_t device, Record* to) const {
  give_work(r, device, to);
  to->copy_kind = static_cast<uint8_t>(r.copy_kind);
  to->from_kind = static_cast<uint8_t>(r.from_kind);
  to->to_kind = static_cast<uint8_t>(r.to_kind);
  to->flags = static_cast<uint8_t>(r.flags);
  to->bytes = r.bytes;
}

void Answer::add_kernel(const wire::ProfileRecord& r, uint32_t device) {
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
void Answer::add_copy(const wire::ProfileRecord& r, uint32_t device) {
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

bool Answer::add_peer_copy(const wire::ProfileRecord& r, uint32_t device) {
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

void Answer::add_fill(const wire::ProfileRecord& r, uint32_t device) {
  FillRecord f{};
  give_work(r, device, &f);
  f.kind = kMemset;
  f.value = r.value;
  f.bytes = r.bytes;
  f.flags = static_cast<uint16_t>(r.flags);
  f.memory_kind = static_cast<uint16_t>(r.to_kind);
  Recorder::get().add(f);
}

size_t Answer::take() {
  size_t wild = 0;
  for (const wire::ProfileRecord& r : records_) {
    uint32_t device = 0;
    if (!fits(r) || !session()->device(node_, r.device, &device)) {
      ++wild;
    } else if (r.kind == kMemcpy) {
      add_copy(r, device);
    } else if (r.kind == kMemset) {
      add_fill(r, device);
    } else if (r.kind == kMemcpyPeer) {
      wild += !add_peer_copy(r, device);
    } else {
      add_kernel(r, device);
    }
  }
  for (const auto& [key, copy] : copies_) Recorder::get().add(copy);
  return wild;
}

CUresult exchange(uint32_t node, uint64_t activities, wire::ProfileState* state) {
  const uint64_t sent = real_ns();
  const CUresult e = session()->set(node, wire::ProfileSet{activities}, state);
  if (e == CUDA_SUCCESS) Clock::get().exchanged(node, sent, state->now, real_ns());
  return e;
}

void fetch_node(uint32_t node, bool forced, std::vector<std::byte>& room) {
  for (int i = 0; i < kMostAnswers; ++i) {
    size_t got = 0;
    const uint64_t sent = real_ns();
    const wire::ProfileFetch ask{forced, 0};
    if (session()->fetch(node, ask, room, &got) != CUDA_SUCCESS) return;
    const uint64_t received = real_ns();
    Answer answer(node, std::span<const std::byte>(room).first(std::min(got, room.size())));
    if (!answer.whole() || got > room.size())
      return say_once("the GPU's node answered a profiler with records that make no sense");
    Clock::get().exchanged(node, sent, answer.head().now, received);
    Recorder::get().drop(answer.head().dropped);
    if (const size_t wild = answer.take()) {
      Recorder::get().drop(wild);
      say_once("the GPU's node sent records of work that this process did not give it: left out");
    }
    if (!answer.head().more) return;
  }
}

}  // namespace

bool set_nodes(uint64_t activities, std::string* why) {
  const auto* s = session();
  if (!s || !s->is_open()) {
    *why = "there is no session";
    return activities == 0;
  }
  bool all = true;
  const uint32_t nodes = s->nodes();
  for (uint32_t node = 0; node < nodes; ++node) {
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
  return all;
}

void fetch_nodes(bool forced) {
  const auto* s = session();
  if (!s || !s->is_open()) return;
  static std::mutex mutex;
  static auto* const room = new std::vector<std::byte>;
  std::lock_guard lock(mutex);
  room->resize(sizeof(wire::ProfileRecords) +
               size_t{wire::kProfileRecords} * sizeof(wire::ProfileRecord) +
               wire::kProfileNameBytes);
  Clock::get().look();
  const uint32_t nodes = s->nodes();
  for (uint32_t node = 0; node < nodes; ++node) fetch_node(node, forced, *room);
}

}  // namespace sluice::cupti
