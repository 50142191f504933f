// SPDX-License-Identifier: Apache-2.0
// NCCL's groups on the worker: everything of a command is checked, then one thread runs it between
// ncclGroupStart and ncclGroupEnd. Communicators are made here, because unique ids travel by value
// and configurations point to texts.
#include "wire/bodies/nccl.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <optional>

#include "library/objects.h"
#include "process/log.h"
#include "worker/library/call.h"

namespace sluice::worker {

namespace {

namespace ids = sluice::library;

constexpr int64_t kSuccess = 0, kInternalError = 3, kInvalidArgument = 4, kInvalidUsage = 5,
                  kInProgress = 7;
constexpr uint32_t kMostCalls = 1 << 16;

using Comm = void*;
struct UniqueId {
  std::byte bytes[wire::kNcclIdBytes];
};

struct Nccl {
  int32_t (*group_start)() = nullptr;
  int32_t (*group_end)() = nullptr;
  int32_t (*init_rank)(Comm*, int, UniqueId, int) = nullptr;
  int32_t (*init_rank_config)(Comm*, int, UniqueId, int, void*) = nullptr;
  int32_t (*init_rank_scalable)(Comm*, int, int, int, UniqueId*, void*) = nullptr;
  int32_t (*split)(Comm, int, int, Comm*, void*) = nullptr;
  int32_t (*shrink)(Comm, int*, int, Comm*, void*, int) = nullptr;
  int32_t (*count)(Comm, int*) = nullptr;
  int32_t (*user_rank)(Comm, int*) = nullptr;

  // Looked up at the first use.
  static const Nccl& get() {
    static const Nccl all = [] {
      Nccl n;
      const auto look = [](const char* name, auto* f) {
        *f = reinterpret_cast<std::remove_pointer_t<decltype(f)>>(
            Libraries::get().symbol("nccl", name));
      };
      look("ncclGroupStart", &n.group_start);
      look("ncclGroupEnd", &n.group_end);
      look("ncclCommInitRank", &n.init_rank);
      look("ncclCommInitRankConfig", &n.init_rank_config);
      look("ncclCommInitRankScalable", &n.init_rank_scalable);
      look("ncclCommSplit", &n.split);
      look("ncclCommShrink", &n.shrink);
      look("ncclCommCount", &n.count);
      look("ncclCommUserRank", &n.user_rank);
      return n;
    }();
    return all;
  }
};

constexpr bool went_well(int64_t status) { return status == kSuccess || status == kInProgress; }

// A call that makes a communicator.
class Making {
 public:
  Making(Session& session, uint32_t context) : session_(session), context_(context) {}

  bool prepare(std::span<const std::byte> body);
  bool has_function() const;
  int64_t issue();
  // 1: the communicator is there and belongs to the id.
  uint64_t finish(bool well);
  uint64_t parent() const { return m_.how > wire::NcclHow::kScalable ? m_.parent : 0; }

 private:
  void take_config(std::span<const std::byte> raw);
  int rank() const;
  bool ranks_are_good() const;
  bool reject(const char* why) {
    session_.reject(std::string("NcclMake ") + why);
    return false;
  }
  // NCCL may write there later, from a thread of its own, for a communicator that does not block:
  // such a place is never given back.
  static Comm* place() {
    static std::mutex mutex;
    static auto* places = new std::deque<Comm>;  // what is in one does not move
    std::lock_guard lock(mutex);
    return &places->emplace_back(nullptr);
  }

  Session& session_;
  const uint32_t context_;
  wire::NcclMake m_{};
  LibraryObject parent_;
  std::vector<UniqueId> unique_;
  std::vector<int32_t> excluded_;
  alignas(8) std::array<std::byte, wire::kNcclConfigBytes> config_{};
  std::vector<char> net_, name_;
  Comm* made_ = nullptr;
  uint64_t common_ = 0;  // the name that all ranks of it count under
};

bool Making::prepare(std::span<const std::byte> body) {
  using wire::NcclHow;
  std::span<const std::byte> rest = body;
  bool whole = true;
  const auto take = [&](size_t n) {
    const size_t most = std::min(wire::round_up(n, 8), rest.size());
    whole &= most >= n;
    const auto at = rest.first(std::min(n, most));
    rest = rest.subspan(most);
    return at;
  };
  const auto head = take(sizeof m_);
  if (!whole) return reject("is cut short");
  std::memcpy(&m_, head.data(), sizeof m_);
  const bool ranks = m_.how == NcclHow::kShrink, child = ranks || m_.how == NcclHow::kSplit;
  if (m_.how > NcclHow::kShrink || m_.count > (ranks ? wire::kNcclMostRanks : wire::kNcclMostIds) ||
      (m_.how == NcclHow::kRank && m_.count != 1) ||
      (m_.how == NcclHow::kScalable && m_.count == 0) ||
      (m_.how == NcclHow::kSplit && m_.count != 0))
    return reject("makes no sense");
  if ((m_.id == 0 && !(m_.how == NcclHow::kSplit && m_.color < 0)) ||
      (m_.id != 0 && !Libraries::get().objects.has_room(m_.id)))
    return reject("mints an id that is taken or none");
  if (child) {
    if (!Libraries::get().objects.get(m_.parent, &parent_) || parent_.type != ids::k_nccl)
      return reject("names a communicator that the session does not have");
  }
  if (m_.config_bytes != 0 &&
      (m_.config_bytes < wire::kNcclConfigLeast || m_.config_bytes > wire::kNcclConfigBytes ||
       m_.config_bytes % 8 != 0))
    return reject("has a configuration of a wrong size");
  if (m_.net_bytes > wire::kNcclMostText || m_.name_bytes > wire::kNcclMostText)
    return reject("has a text that is too long");
  const auto list = take(size_t{m_.count} * (ranks ? 4 : wire::kNcclIdBytes));
  const auto config = take(m_.config_bytes), net = take(m_.net_bytes), name = take(m_.name_bytes);
  if (!whole) return reject("is cut short");
  if (ranks) excluded_.resize(m_.count);
  if (!ranks && !list.empty()) unique_.resize(m_.count);
  void* const kept = ranks ? static_cast<void*>(excluded_.data()) : unique_.data();
  if (!list.empty()) std::memcpy(kept, list.data(), list.size());
  if (config.empty()) return true;
  take_config(config);
  // Its pointers are those of this process, or none.
  const auto text = [&](std::span<const std::byte> raw, std::vector<char>* kept, uint32_t offset) {
    const char* at = nullptr;
    if (!raw.empty()) {
      if (raw.back() != std::byte{0}) return reject("has a text without an end");
      const auto* first = reinterpret_cast<const char*>(raw.data());
      kept->assign(first, first + raw.size());
      at = kept->data();
    }
    std::memcpy(config_.data() + offset, &at, sizeof at);
    return true;
  };
  return text(net, &net_, wire::kNcclConfigNetName) && text(name, &name_, wire::kNcclConfigName);
}

// NCCL's own struct, whole, whatever the client's is as large as: numbers that came, and what
// stands for its default otherwise. No byte of a pointer is the client's.
void Making::take_config(std::span<const std::byte> raw) {
  constexpr uint64_t kSize = wire::kNcclConfigBytes;
  constexpr int32_t kUndefined = std::numeric_limits<int32_t>::min();
  for (uint32_t at = sizeof kSize; at < kSize; at += sizeof kUndefined) {
    const bool came = at + sizeof kUndefined <= raw.size();
    std::memcpy(config_.data() + at,
                came ? raw.data() + at : reinterpret_cast<const std::byte*>(&kUndefined),
                sizeof kUndefined);
  }
  std::memcpy(config_.data(), &kSize, sizeof kSize);
}

// Ranks of the parent's, each once, and not all of them: NCCL counts what is left by how many came.
bool Making::ranks_are_good() const {
  int ranks = 0;
  if (!Nccl::get().count || Nccl::get().count(parent_.pointer, &ranks) != kSuccess) return false;
  if (excluded_.size() >= static_cast<size_t>(std::max(ranks, 0))) return false;
  std::vector<bool> seen(static_cast<size_t>(ranks));
  for (const int32_t r : excluded_) {
    if (r < 0 || r >= ranks || seen[static_cast<size_t>(r)]) return false;
    seen[static_cast<size_t>(r)] = true;
  }
  return true;
}

bool Making::has_function() const {
  const Nccl& n = Nccl::get();
  switch (m_.how) {
    case wire::NcclHow::kRank:
      return m_.config_bytes ? n.init_rank_config != nullptr : n.init_rank != nullptr;
    case wire::NcclHow::kScalable:
      return n.init_rank_scalable != nullptr;
    case wire::NcclHow::kSplit:
      return n.split != nullptr;
    case wire::NcclHow::kShrink:
      return n.shrink != nullptr;
  }
  return false;
}

// Workers of other grants are other users, who cannot open what NCCL's ranks on one host leave for
// one another in /dev/shm, and it takes that for a failure of the system. A communicator of more
// ranks than the grant has vGPUs has such ranks: NCCL is told before it first asks. Between GPUs
// that reach one another it needs no files. What the operator has set counts.
void keep_ranks_apart(const Session& s, int32_t ranks) {
  const uint64_t own = s.plan.grant_vgpus;
  if (own == 0 || ranks < 0 || static_cast<uint64_t>(ranks) <= own) return;
  static std::once_flag once;
  std::call_once(once, [] {
    setenv("NCCL_SHM_DISABLE", "1", 0);
    setenv("NCCL_PXN_DISABLE", "1", 0);  // a rank that works for others does so through a file
    process::log_info("NCCL makes no files in /dev/shm: ranks of other grants take part");
  });
}

int64_t Making::issue() {
  if (!session_.use_context(context_)) return kInternalError;
  const Nccl& n = Nccl::get();
  keep_ranks_apart(session_, m_.ranks);
  if (m_.ranks != 1) session_.ties.tie(Tie::kCommunicator);
  void* config = m_.config_bytes ? config_.data() : nullptr;
  made_ = place();
  // All that take part come here, with one color or none, whatever becomes of it.
  if (m_.how == wire::NcclHow::kSplit)
    common_ = session_.collectives.split(m_.parent, m_.color);
  else if (m_.how == wire::NcclHow::kShrink)
    common_ = session_.collectives.shrunk(m_.parent, excluded_);
  else
    common_ = Collectives::named(std::as_bytes(std::span(unique_)));
  switch (m_.how) {
    case wire::NcclHow::kRank:
      return config ? n.init_rank_config(made_, m_.ranks, unique_[0], m_.rank, config)
                    : n.init_rank(made_, m_.ranks, unique_[0], m_.rank);
    case wire::NcclHow::kScalable:
      return n.init_rank_scalable(made_, m_.ranks, m_.rank, static_cast<int>(m_.count),
                                  unique_.data(), config);
    case wire::NcclHow::kSplit:
      return n.split(parent_.pointer, m_.color, m_.key, made_, config);
    case wire::NcclHow::kShrink:
      if (!ranks_are_good()) return kInvalidArgument;
      return n.shrink(parent_.pointer, excluded_.data(), static_cast<int>(m_.count), made_, config,
                      m_.flags);
  }
  return kInternalError;
}

// -1: not known, as of one that is still being made.
int Making::rank() const {
  if (m_.how == wire::NcclHow::kRank || m_.how == wire::NcclHow::kScalable) return m_.rank;
  int rank = -1;
  const auto ask = Nccl::get().user_rank;
  return ask && ask(*made_, &rank) == kSuccess ? rank : -1;
}

uint64_t Making::finish(bool well) {
  if (!well || !made_ || !*made_ || m_.id == 0) return 0;
  if (!Libraries::get().objects.add(m_.id, {ids::k_nccl, *made_})) return 0;
  session_.collectives.made(m_.id, common_, rank());
  return 1;
}

// One member of a group: a function of the table, or a communicator to be made.
struct Member {
  Command command{};
  std::optional<LibraryCall> call;
  std::optional<Making> making;
  bool issued = false;
};

bool read_members(Session& s, const Command& c, std::deque<Member>* members, bool* grouped,
                  CUresult* lacking) {
  Decoder d(c.body);
  const auto& head = d.fixed<wire::NcclGroup>();
  if (!d.ok() || head.calls == 0 || head.calls > kMostCalls)
    return s.reject("NcclGroup makes no sense"), false;
  *grouped = head.grouped != 0;
  for (uint32_t i = 0; i < head.calls; ++i) {
    wire::NcclCall one;
    const auto raw = d.bytes(sizeof one);
    if (!d.ok()) return s.reject("NcclGroup is cut short"), false;
    std::memcpy(&one, raw.data(), sizeof one);
    if (one.bytes > c.body.size()) return s.reject("NcclGroup is cut short"), false;
    const auto body = d.bytes(wire::round_up(one.bytes, 8));
    if (!d.ok()) return s.reject("NcclGroup is cut short"), false;
    Member& m = members->emplace_back();
    m.command.header = c.header;
    m.command.header.function = one.function;
    m.command.header.context = one.context;
    m.command.body = body;
    if (one.function == 0) {
      if (!s.use_context(one.context)) return false;
      m.making.emplace(s, one.context);
      if (!m.making->prepare(body)) return false;
      if (!m.making->has_function()) *lacking = CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;
      continue;
    }
    Libraries::Entry* entry = Libraries::get().find(one.function);
    if (!entry || !entry->spec->grouped)
      return s.reject("NcclGroup holds a function that is none of NCCL's"), false;
    m.call.emplace(s, m.command, *entry);
    if (!m.call->prepare(lacking)) return false;
  }
  return true;
}

// Whether a communicator that a member ends is named by another one, too.
bool ends_what_is_used(const std::deque<Member>& members) {
  std::map<uint64_t, size_t> named;  // those that are ended, and how often they are named
  for (const Member& m : members)
    if (m.call && m.call->ends() != 0) named[m.call->ends()] = 0;
  if (named.empty()) return false;
  const auto count = [&](uint64_t id) {
    if (const auto it = named.find(id); it != named.end()) ++it->second;
  };
  for (const Member& m : members) {
    if (m.call)
      m.call->for_each_object(count);
    else
      count(m.making->parent());
  }
  return std::any_of(named.begin(), named.end(), [](const auto& n) { return n.second > 1; });
}

void group(Session& s, const Command& c, Reply& reply) {
  if (!Nccl::get().group_start || !Nccl::get().group_end) {
    reply.status = CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    return;
  }
  std::deque<Member> members;  // which stay where they are
  bool grouped = false;
  if (!read_members(s, c, &members, &grouped, &reply.status) || reply.status != CUDA_SUCCESS)
    return;
  if (ends_what_is_used(members)) {
    if (c.answered()) reply.put(int64_t{kInvalidUsage});
    for (const Member& m : members)
      if (!m.call && c.answered()) reply.put(uint64_t{0});
    if (!c.answered()) reply.status = CUDA_ERROR_UNKNOWN;
    return;
  }
  int64_t status = grouped ? Nccl::get().group_start() : kSuccess;
  for (Member& m : members) {
    if (!went_well(status)) break;
    m.issued = true;
    const int64_t one = m.call ? m.call->issue() : m.making->issue();
    if (s.rejected()) break;
    if (one != kSuccess) status = one;
  }
  if (grouped) {
    const int64_t end = Nccl::get().group_end();
    if (went_well(status) && end != kSuccess) status = end;
  }
  if (s.rejected()) return;
  if (c.answered()) reply.put(status);
  for (Member& m : members) {
    if (m.call) {
      if (m.issued) m.call->finish(status);
    } else {
      const uint64_t made = m.making->finish(went_well(status));
      if (c.answered()) reply.put(made);
    }
  }
  if (!c.answered() && !went_well(status)) {
    process::log_error("a group of NCCL calls returned " + std::to_string(status) +
                       " after its caller had gone on");
    reply.status = CUDA_ERROR_UNKNOWN;
  }
}

}  // namespace

void add_nccl_handlers(DispatchTable& t) { t[ids::id_sluiceNcclGroup].run = group; }

}  // namespace sluice::worker
