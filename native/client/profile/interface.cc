// SPDX-License-Identifier: Apache-2.0
// What libcupti gets to know of the session; see client/profile/interface.h.
#include "client/profile/interface.h"

#include <mutex>

#include "client/core/enter.h"
#include "client/core/session.h"
#include "client/objects/context.h"
#include "client/objects/device.h"
#include "wire/bodies/commands.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

constexpr size_t kMostLibraries = 8;

struct Attached {
  std::mutex mutex;
  HookSlot* slots[kMostLibraries] = {};
  const ApiHooks* hooks = nullptr;
};
Attached& attached() {
  static auto* const one = new Attached;
  return *one;
}

Device* node_at(uint32_t node) {
  Session* s = Session::get();
  if (!s) return nullptr;
  const auto nodes = s->one_of_each_node();
  return node < nodes.size() ? nodes[node] : nullptr;
}

Device* device_in(CUcontext handle) {
  Session* s = Session::get();
  Device* device = nullptr;
  if (!handle) return enter(&s, &device) == CUDA_SUCCESS ? device : nullptr;
  const Context* context = s ? s->contexts.find(reinterpret_cast<uint64_t>(handle)) : nullptr;
  return context ? context->device : nullptr;
}

CUresult fetch(uint32_t node, const wire::ProfileFetch& ask, std::span<std::byte> to, size_t* got) {
  Device* device = node_at(node);
  if (!device) return CUDA_ERROR_NOT_INITIALIZED;
  return Session::get()->exchange(wire::kProfileFetch, ask, {}, to, got, nullptr,
                                  device->context());
}

CUresult stream_id(CUcontext context, CUstream handle, uint32_t* id) {
  Device* device = device_in(context);
  if (!device) return CUDA_ERROR_INVALID_CONTEXT;
  Session* s = Session::get();
  Stream* stream = nullptr;
  if (const CUresult e = resolve_stream(s, device, handle, &stream); e != CUDA_SUCCESS) return e;
  wire::ProfileStreamId answer{};
  const CUresult e =
      s->ask(*device, wire::kProfileStream, wire::ProfileStream{stream->wire_id}, &answer);
  *id = answer.id;
  return e;
}

const ProfileInterface kInterface = {
    [] { return Session::open(); },
    [] { return Session::get() != nullptr; },
    [](const ApiHooks* hooks) {
      std::lock_guard lock(attached().mutex);
      attached().hooks = hooks;
      for (HookSlot* slot : attached().slots)
        if (slot) slot->store(hooks, std::memory_order_release);
    },
    [](bool marks) {
      if (Session* s = Session::get()) s->marks_calls.store(marks, std::memory_order_relaxed);
    },
    [] { return &thread_state().call; },
    [] {
      Session* s = Session::get();
      return s ? static_cast<uint32_t>(s->one_of_each_node().size()) : 0u;
    },
    [](uint32_t node, const wire::ProfileSet& ask, wire::ProfileState* state) {
      Device* device = node_at(node);
      if (!device) return CUDA_ERROR_NOT_INITIALIZED;
      return Session::get()->ask(*device, wire::kProfileSet, ask, state);
    },
    fetch,
    [](uint32_t node, uint32_t index, uint32_t* ordinal) {
      const Device* there = node_at(node);
      if (!there) return false;
      for (const auto& device : Session::get()->devices())
        if (device->place.node == there->place.node && device->place.index == index) {
          *ordinal = device->index;
          return true;
        }
      return false;
    },
    [](CUcontext context, uint32_t* ordinal) {
      const Device* device = device_in(context);
      if (device) *ordinal = device->index;
      return device != nullptr;
    },
    [] {
      const ThreadState& thread = thread_state();
      return thread.depth ? reinterpret_cast<CUcontext>(thread.contexts[thread.depth - 1])
                          : nullptr;
    },
    stream_id,
};

}  // namespace

const ProfileInterface* sluice_profile_session() { return &kInterface; }

void sluice_profile_attach(HookSlot* slot) {
  std::lock_guard lock(attached().mutex);
  for (HookSlot*& place : attached().slots) {
    if (place == slot) return;
    if (place) continue;
    place = slot;
    slot->store(attached().hooks, std::memory_order_release);
    return;
  }
}
