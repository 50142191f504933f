// SPDX-License-Identifier: Apache-2.0
#include "client/library/nccl.h"

#include <algorithm>
#include <cstring>

#include "client/library/group.h"
#include "client/library/outgoing.h"
#include "client/profile/driver_calls.h"
#include "library/objects.h"

namespace sluice::client::library {

namespace {

namespace ids = sluice::library;

enum : int32_t {
  kSuccess = 0,
  kCudaError = 1,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kInProgress = 7,
};
constexpr wire::LibraryStatus kStatus{kCudaError, kInvalidArgument, kInvalidArgument, kCudaError,
                                      kInvalidUsage};

constexpr bool went_well(int64_t status) { return status == kSuccess || status == kInProgress; }

struct Group {
  int depth = 0;
  int32_t error = kSuccess;
  bool learnable = true;
  Key key;
  std::vector<GroupedCall> calls;
};

Group& open_group() {
  static thread_local Group group;
  return group;
}

template <class T>
void put(std::vector<std::byte>* body, const T& value) {
  const auto* at = reinterpret_cast<const std::byte*>(&value);
  body->insert(body->end(), at, at + sizeof value);
}

void put_padded(std::vector<std::byte>* body, const void* data, size_t n) {
  const auto* at = static_cast<const std::byte*>(data);
  body->insert(body->end(), at, at + n);
  body->resize(padded(body->size()));
}

// A communicator that was not made after all. The worker does not know it.
void unmake(const GroupedCall& c) {
  if (c.made == 0) return;
  *c.target = nullptr;
  State::get().objects.destroy(c.made);
}

void settle(const GroupedCall& c) {
  std::lock_guard lock(State::get().mutex);
  if (Object* o = State::get().objects.find(c.made)) o->pending = false;
  *c.target = reinterpret_cast<void*>(c.made);
}

int32_t give_up(const std::vector<GroupedCall>& calls, int32_t status) {
  // What a call of it would have ended stays with the worker; its id is not used again.
  for (const GroupedCall& c : calls) unmake(c);
  return status;
}

// What of a group goes to one node's worker.
struct Part {
  const Device* device = nullptr;
  uint32_t context = 0;
  std::vector<const GroupedCall*> calls;
  std::vector<std::byte> body;
  size_t makes = 0;
  Session::Exchange exchange;
  std::vector<std::byte> reply;
};

// The group's calls by the nodes of their devices; an empty group's are none.
std::vector<Part> parts_of(Session* session, const Device& current,
                           const std::vector<GroupedCall>& calls, bool grouped) {
  std::vector<Part> parts;
  for (const GroupedCall& c : calls) {
    const Device& device = c.context ? *session->devices()[c.context - 1] : current;
    auto part = std::find_if(parts.begin(), parts.end(), [&](const Part& p) {
      return p.device->place.node == device.place.node;
    });
    if (part == parts.end()) {
      part = parts.insert(parts.end(), Part{});
      part->device = &device;
      // The current device's context where it is that node's: the worker goes back to it.
      const bool here = device.place.node == current.place.node;
      part->context = (here ? current : device).context();
    }
    part->calls.push_back(&c);
    if (c.function == 0) ++part->makes;
  }
  for (Part& part : parts) {
    put(&part.body, wire::NcclGroup{static_cast<uint32_t>(part.calls.size()), grouped ? 1u : 0u});
    for (const GroupedCall* c : part.calls) {
      const uint32_t context = c->context ? session->devices()[c->context - 1]->place.index + 1 : 0;
      put(&part.body, wire::NcclCall{c->function, 0, context, c->body.size()});
      put_padded(&part.body, c->body.data(), c->body.size());
    }
    part.reply.resize(8 + part.makes * 8);
  }
  return parts;
}

// Sends all and waits for all: ranks on several nodes wait for one another. False: some node has
// not answered.
bool ask(Session* session, std::vector<Part>* parts) {
  size_t begun = 0;
  bool whole = true;
  for (Part& part : *parts) {
    // Whoever holds a lane may wait for what this group is to send.
    if (begun > 0 && !session->has_room(&part.exchange)) break;
    if (session->begin_exchange(&part.exchange, ids::id_sluiceNcclGroup, part.body.data(),
                                part.body.size(), {}, part.reply, nullptr,
                                part.context) != CUDA_SUCCESS)
      break;
    ++begun;
  }
  whole = begun == parts->size();
  for (size_t i = 0; i < begun; ++i) {
    Part& part = (*parts)[i];
    size_t got = 0;
    const CUresult e = session->end_exchange(part.exchange, &got);
    if (e == CUDA_ERROR_SHARED_OBJECT_INIT_FAILED || e == CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND)
      say_lacking(e, "libnccl.so.2", "ncclGroupEnd");
    whole &= e == CUDA_SUCCESS && got >= part.reply.size();
  }
  return whole;
}

int32_t send(Group g, bool grouped) {
  if (g.error != kSuccess) return give_up(g.calls, g.error);
  if (g.calls.empty()) return kSuccess;
  Session* session;
  Device* device;
  if (const int32_t e = enter_library(kStatus, &session, &device); e != kSuccess)
    return give_up(g.calls, e);
  std::vector<Part> parts = parts_of(session, *device, g.calls, grouped);
  for (const Part& part : parts)
    if (part.body.size() + sizeof(wire::FrameHeader) > wire::kMaxFrameBytes)
      return give_up(g.calls, kInvalidUsage);
  State& state = State::get();
  g.key.add(ids::id_sluiceNcclGroup);
  bool known = false;
  if (g.learnable) {
    std::lock_guard lock(state.mutex);
    known = state.learned.contains(g.key);
  }
  int64_t status = kSuccess;
  for (const GroupedCall& c : g.calls)
    if (c.work) {
      if (session->managed.any() && session->managed.before_work(*c.work) != CUDA_SUCCESS)
        return give_up(g.calls, kCudaError);
      session->fences.join(c.work);
    }
  if (known) {
    for (const Part& part : parts)
      if (session->post(ids::id_sluiceNcclGroup, part.body.data(), part.body.size(), {}, nullptr,
                        part.context) != CUDA_SUCCESS)
        status = kCudaError;
  } else {
    if (!ask(session, &parts)) return give_up(g.calls, kCudaError);
    for (const Part& part : parts) {
      int64_t said;
      std::memcpy(&said, part.reply.data(), 8);
      if (went_well(status)) status = said == kSuccess ? status : said;
      size_t at = 8;
      for (const GroupedCall* c : part.calls) {
        if (c->function != 0) continue;
        uint64_t made;
        std::memcpy(&made, part.reply.data() + at, 8);
        at += 8;
        if (c->made != 0 && made != 0)
          settle(*c);
        else
          unmake(*c);
      }
    }
    if (status == kSuccess && g.learnable) {
      std::lock_guard lock(state.mutex);
      state.learned.insert(g.key);
    }
  }
  if (!went_well(status)) forget_who_was_well();
  for (const GroupedCall& c : g.calls) {
    if (c.work) session->work().add(*c.work);
    // Where the group failed the worker may still have it; its id is not used again then.
    if (c.ended != 0 && went_well(status)) state.objects.recycle(c.ended);
  }
  return static_cast<int32_t>(status);
}

// The configuration and its texts, behind a NcclMake. False: it is none.
bool put_config(const void* config, wire::NcclMake* make, std::vector<std::byte>* body,
                bool* blocking) {
  if (!config) return true;
  uint64_t size;
  std::memcpy(&size, config, sizeof size);
  if (size < wire::kNcclConfigLeast || size > 1 << 16) return false;
  // What a newer NCCL has added behind its end is left at its default.
  size = std::min<uint64_t>(size, wire::kNcclConfigBytes) & ~7ull;
  const auto* at = static_cast<const char*>(config);
  make->config_bytes = static_cast<uint32_t>(size);
  put_padded(body, at, size);
  int32_t flag;
  std::memcpy(&flag, at + wire::kNcclConfigBlocking, sizeof flag);
  *blocking = flag != 0;
  const auto text = [&](uint32_t offset, uint32_t* length) {
    const char* s = nullptr;
    if (offset + sizeof s > size) return true;
    std::memcpy(&s, at + offset, sizeof s);
    if (!s) return true;
    const size_t n = strnlen(s, wire::kNcclMostText);
    if (n == wire::kNcclMostText) return false;
    *length = static_cast<uint32_t>(n + 1);
    put_padded(body, s, n + 1);
    return true;
  };
  return text(wire::kNcclConfigNetName, &make->net_bytes) &&
         text(wire::kNcclConfigName, &make->name_bytes);
}

int32_t make(const sluice_library_nccl_making& m) {
  using wire::NcclHow;
  Session* session;
  Device* device;
  if (const int32_t e = enter_library(kStatus, &session, &device); e != kSuccess) return e;
  if (m.device >= 0) {
    if (static_cast<size_t>(m.device) >= session->devices().size()) return kInvalidArgument;
    device = session->devices()[static_cast<size_t>(m.device)].get();
  }
  const bool ranks = m.how == NcclHow::kShrink;
  if (!m.target || (m.count != 0 && !m.list) ||
      m.count > (ranks ? wire::kNcclMostRanks : wire::kNcclMostIds))
    return kInvalidArgument;
  wire::NcclMake head{0,     m.parent, m.how,   m.ranks, m.rank, m.color,
                      m.key, m.flags,  m.count, 0,       0,      0};
  std::vector<std::byte> rest;
  put_padded(&rest, m.list, size_t{m.count} * (ranks ? 4 : wire::kNcclIdBytes));
  bool blocking = true;
  if (!put_config(m.config, &head, &rest, &blocking)) return kInvalidArgument;
  State& state = State::get();
  GroupedCall call;
  call.context = device->context();
  call.target = m.target;
  {
    std::lock_guard lock(state.mutex);
    const Object* parent = nullptr;
    if (m.how == NcclHow::kSplit || ranks) {
      parent = state.objects.find(m.parent);
      if (!parent || parent->type != ids::k_nccl || parent->pending) return kInvalidArgument;
    }
    // A rank without a color takes part and gets nothing.
    if (m.how != NcclHow::kSplit || m.color >= 0) {
      Object* object = state.objects.create(&head.id);
      if (!object) return kCudaError;
      object->type = ids::k_nccl;
      object->pending = true;
      object->device = device->index;
      object->unlearned = !blocking || (parent && !m.config && parent->unlearned);
      // The first call of each kind makes connections with the other ranks and must be waited for,
      // for each communicator again: so none has the content of another.
      object->content.add(ids::id_sluiceNcclGroup);
      object->content.add(++state.computed);
    }
  }
  *m.target = reinterpret_cast<void*>(head.id);
  call.made = head.id;
  put(&call.body, head);
  call.body.insert(call.body.end(), rest.begin(), rest.end());
  if (group_is_open()) return group_add(std::move(call), Key{}, false), kSuccess;
  Group alone;
  alone.learnable = false;
  alone.calls.push_back(std::move(call));
  return sluice::client::profiled_library_call("ncclGroupEnd",
                                               [&] { return send(std::move(alone), false); });
}

}  // namespace

bool group_is_open() { return open_group().depth > 0; }

void group_add(GroupedCall call, const Key& key, bool learnable) {
  Group& g = open_group();
  g.key.add(key);
  g.key.add(call.context);
  g.learnable &= learnable;
  g.calls.push_back(std::move(call));
}

void group_fail(int32_t status) {
  Group& g = open_group();
  if (g.error == kSuccess) g.error = status;
}

}  // namespace sluice::client::library

using namespace sluice::client::library;
namespace ids = sluice::library;

extern "C" {

int32_t sluice_library_nccl_make(const sluice_library_nccl_making* making) {
  const int32_t status = make(*making);
  if (!went_well(status) && group_is_open()) group_fail(status);
  return status;
}

int32_t sluice_library_nccl_group_start() {
  ++open_group().depth;
  return kSuccess;
}

int32_t sluice_library_nccl_group_end(bool run) {
  Group& g = open_group();
  if (g.depth == 0) return kInvalidUsage;
  if (--g.depth > 0) return kSuccess;
  Group whole;
  std::swap(whole, g);
  if (!run) return give_up(whole.calls, kSuccess);
  return sluice::client::profiled_library_call("ncclGroupEnd",
                                               [&] { return send(std::move(whole), true); });
}

int32_t sluice_library_nccl_device(uint64_t communicator, int32_t* device) {
  State& state = State::get();
  std::lock_guard lock(state.mutex);
  const Object* o = state.objects.find(communicator);
  if (!o || o->type != ids::k_nccl || !device) return kInvalidArgument;
  *device = static_cast<int32_t>(o->device);
  return kSuccess;
}

}  // extern "C"
