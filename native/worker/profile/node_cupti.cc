// SPDX-License-Identifier: Apache-2.0
#include "worker/profile/node_cupti.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "process/log.h"
#include "worker/library/library.h"

namespace sluice::worker {

namespace {

constexpr size_t kBufferBytes = 1 << 20;
// What CUPTI has to record so that it says which of our calls a record is of.
constexpr uint64_t kTold = cupti::bit(cupti::kDriver) | cupti::bit(cupti::kRuntime) |
                           cupti::bit(cupti::kExternalCorrelation);
// What a client can ask a node for.
constexpr uint64_t kOffered = cupti::bit(cupti::kMemcpy) | cupti::bit(cupti::kMemset) |
                              cupti::bit(cupti::kConcurrentKernel) | cupti::bit(cupti::kKernel) |
                              cupti::bit(cupti::kMemcpyPeer);
// A record may come before what says whose it is: so many fetches later it is nobody's.
constexpr uint32_t kWaits = 2;

void requested(uint8_t** buffer, size_t* size, size_t* most) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer ? kBufferBytes : 0;
  *most = 0;
}

void completed(void* context, uint32_t stream, uint8_t* buffer, size_t, size_t valid) {
  NodeCupti::get().take_buffer(context, stream, buffer, valid);
  std::free(buffer);
}

}  // namespace

// Lives for ever: CUPTI's threads may give buffers back while the process ends.
NodeCupti& NodeCupti::get() {
  static NodeCupti* one = new NodeCupti;
  return *one;
}

bool NodeCupti::take_functions(void* library) {
  bool whole = true;
#define SLUICE_CUPTI_FIND(type, name)                      \
  name##_ = reinterpret_cast<type>(dlsym(library, #name)); \
  whole = whole && name##_;
  SLUICE_CUPTI_FUNCTIONS(SLUICE_CUPTI_FIND)
#undef SLUICE_CUPTI_FIND
  return whole;
}

bool NodeCupti::load(const Driver& driver) {
  if (looked_) return version_ != 0;
  looked_ = true;
  bool whole = dlsym(driver.library, "cuptiActivityEnable") && take_functions(driver.library);
  for (const char* soname : {"libcupti.so.13", "libcupti.so.12"}) {
    if (whole) break;
    void* library = Libraries::get().open(soname);
    // Sluice's own client library has the same name, and asks a worker in its turn.
    whole = library && !dlsym(library, "sluice_cupti") && take_functions(library);
  }
  if (!whole || cuptiGetVersion_(&version_) != cupti::kSuccess ||
      cuptiActivityRegisterCallbacks_(requested, completed) != cupti::kSuccess) {
    version_ = 0;
    process::log_info(
        "no CUPTI on this node (libcupti.so.13 or .12): a client that profiles gets "
        "no records of the GPU");
    return false;
  }
  process::log_info("records the GPU's work for its client, by CUPTI " + std::to_string(version_));
  return true;
}

wire::ProfileState NodeCupti::set(const Driver& driver, uint64_t activities) {
  std::lock_guard lock(setting_);
  wire::ProfileState state{};
  if ((activities == 0 && !looked_) || !load(driver)) return state;
  state.version = version_;
  const uint64_t wanted = activities & kOffered;
  const uint64_t all = wanted ? wanted | kTold : 0;
  state.activities = wanted;
  for (uint32_t kind = 0; kind < 64; ++kind) {
    const uint64_t bit = uint64_t{1} << kind;
    if (!((all ^ enabled_) & bit)) continue;
    const int e = all & bit ? cuptiActivityEnable_(kind) : cuptiActivityDisable_(kind);
    if (e == cupti::kSuccess) {
      enabled_ ^= bit;
      continue;
    }
    if (!state.status) state.status = static_cast<uint32_t>(e);
    state.activities &= ~bit;
    process::log_error("CUPTI refuses activity kind " + std::to_string(kind) + ": CUptiResult " +
                       std::to_string(e));
  }
  on_ = enabled_ != 0;
  state.now = now();
  return state;
}

uint64_t NodeCupti::now() const {
  uint64_t at = 0;
  return cuptiGetTimestamp_ && cuptiGetTimestamp_(&at) == cupti::kSuccess ? at : 0;
}

bool NodeCupti::stream_id(CUcontext context, CUstream stream, uint32_t* id) const {
  return cuptiGetStreamIdEx_ && cuptiGetStreamIdEx_(context, stream, 0, id) == cupti::kSuccess;
}

NodeCupti::Noted::Noted(uint32_t correlation) {
  const NodeCupti& node = get();
  if (correlation && node.on())
    pushed_ = node.cuptiActivityPushExternalCorrelationId_(cupti::kCustom0, correlation) ==
              cupti::kSuccess;
}

NodeCupti::Noted::~Noted() {
  uint64_t last = 0;
  if (pushed_) get().cuptiActivityPopExternalCorrelationId_(cupti::kCustom0, &last);
}

NodeCupti::Apart::Apart() {
  const NodeCupti& node = get();
  popped_ = node.on() &&
            node.cuptiActivityPopExternalCorrelationId_(cupti::kCustom0, &call_) == cupti::kSuccess;
}

NodeCupti::Apart::~Apart() {
  if (popped_) get().cuptiActivityPushExternalCorrelationId_(cupti::kCustom0, call_);
}

void NodeCupti::take_buffer(void* context, uint32_t stream, uint8_t* buffer, size_t valid) {
  size_t lost = 0;
  if (cuptiActivityGetNumDroppedRecords_(context, stream, &lost) != cupti::kSuccess) lost = 0;
  std::lock_guard lock(mutex_);
  dropped_ += lost;
  const void* record = nullptr;
  while (buffer && valid && cuptiActivityGetNextRecord_(buffer, valid, &record) == cupti::kSuccess)
    take_record(record);
}

// Under the mutex, as all below.
const std::string* NodeCupti::kept_name(const char* name) {
  const std::string text(name ? name : "", name ? strnlen(name, wire::kProfileOneName) : 0);
  const auto known = names_.find(text);
  if (known != names_.end()) return &*known;
  if (names_.size() >= kMostNames || name_bytes_ + text.size() > kMostNameBytes) return nullptr;
  name_bytes_ += text.size();
  return &*names_.insert(text).first;
}

void NodeCupti::keep(const wire::ProfileRecord& record, const char* name) {
  if (kept_.size() >= kMostRecords) {
    ++dropped_;
    return;
  }
  kept_.push_back({record, name ? kept_name(name) : nullptr, 0});
}

void NodeCupti::note(uint32_t node, uint32_t client) {
  if (!notes_.insert_or_assign(node, client).second) return;
  notes_order_.push_back(node);
  if (notes_order_.size() <= kMostNotes) return;
  notes_.erase(notes_order_.front());
  notes_order_.pop_front();
}

namespace {

// What records of all kinds of work have.
template <class Record>
void take_work(const Record& from, wire::ProfileRecord* r) {
  r->start = from.start;
  r->end = from.end;
  r->graph_node = from.graph_node;
  r->correlation = from.correlation;
  r->device = from.device;
  r->stream = from.stream;
  r->graph = from.graph;
  r->channel = from.channel;
  r->channel_type = from.channel_type;
}

template <class Record>
void take_copy(const Record& from, wire::ProfileRecord* r) {
  take_work(from, r);
  r->bytes = from.bytes;
  r->copy_kind = from.copy_kind;
  r->from_kind = from.from_kind;
  r->to_kind = from.to_kind;
  r->flags = from.flags;
}

}  // namespace

void NodeCupti::take_record(const void* record) {
  wire::ProfileRecord r{};
  std::memcpy(&r.kind, record, sizeof r.kind);
  switch (r.kind) {
    case cupti::kExternalCorrelation: {
      const auto& x = *static_cast<const cupti::ExternalRecord*>(record);
      if (x.external_kind == cupti::kCustom0)
        note(x.correlation, static_cast<uint32_t>(x.external));
      return;
    }
    case cupti::kKernel:
    case cupti::kConcurrentKernel: {
      const auto& k = *static_cast<const cupti::KernelRecord*>(record);
      take_work(k, &r);
      r.grid_id = static_cast<uint64_t>(k.grid_id);
      r.local_total = k.local_total_wide;
      r.registers = k.registers;
      for (int i = 0; i < 3; ++i) {
        r.grid[i] = static_cast<uint32_t>(k.grid[i]);
        r.block[i] = static_cast<uint32_t>(k.block[i]);
        r.cluster[i] = k.cluster[i];
      }
      r.static_shared = static_cast<uint32_t>(k.static_shared);
      r.dynamic_shared = static_cast<uint32_t>(k.dynamic_shared);
      r.shared_executed = k.shared_executed;
      r.local_per_thread = k.local_per_thread;
      r.launch_type = k.launch_type;
      return keep(r, k.name ? k.name : "");
    }
    case cupti::kMemcpy: {
      const auto& c = *static_cast<const cupti::CopyRecord*>(record);
      take_copy(c, &r);
      return keep(r, nullptr);
    }
    case cupti::kMemcpyPeer: {
      const auto& c = *static_cast<const cupti::PeerCopyRecord*>(record);
      take_copy(c, &r);
      // A peer copy has no grid: these say between which devices.
      r.grid[0] = c.from_device;
      r.grid[1] = c.to_device;
      return keep(r, nullptr);
    }
    case cupti::kMemset: {
      const auto& f = *static_cast<const cupti::FillRecord*>(record);
      take_work(f, &r);
      r.bytes = f.bytes;
      r.value = f.value;
      r.flags = f.flags;
      r.to_kind = f.memory_kind;
      return keep(r, nullptr);
    }
    default:  // calls of the worker's, which the client has records of its own for
      return;
  }
}

NodeCupti::Fetched NodeCupti::fetch(bool forced) {
  Fetched answer;
  {
    std::lock_guard lock(setting_);
    if (!version_) return answer;
    cuptiActivityFlushAll_(forced ? cupti::kFlushForced : 0);
  }
  std::lock_guard lock(mutex_);
  std::unordered_map<const std::string*, uint32_t> placed;
  std::deque<Kept> rest;
  while (!kept_.empty() && answer.records.size() < wire::kProfileRecords) {
    Kept& one = kept_.front();
    const auto whose = notes_.find(one.record.correlation);
    if (whose != notes_.end()) {
      const std::string none;
      const std::string& name = one.name ? *one.name : none;
      auto [at, fresh] = placed.try_emplace(one.name, static_cast<uint32_t>(answer.names.size()));
      if (fresh) {
        if (answer.names.size() + name.size() + 1 > wire::kProfileNameBytes) break;
        answer.names.insert(answer.names.end(), name.c_str(), name.c_str() + name.size() + 1);
      }
      one.record.name = at->second;
      one.record.correlation = whose->second;
      answer.records.push_back(one.record);
    } else if (++one.age <= kWaits) {
      rest.push_back(one);
    }
    kept_.pop_front();
  }
  const bool more = !kept_.empty();
  kept_.insert(kept_.end(), rest.begin(), rest.end());
  answer.head.more = more;
  answer.head.dropped = std::exchange(dropped_, 0);
  answer.head.count = static_cast<uint32_t>(answer.records.size());
  answer.head.name_bytes = static_cast<uint32_t>(answer.names.size());
  return answer;
}

}  // namespace sluice::worker
