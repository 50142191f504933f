// SPDX-License-Identifier: Apache-2.0
// Descriptors of cuDNN's backend API on the client: attributes are kept here until finalize, which
// sends the descriptor whole; a variant pack is only ever read by execute. What was built or
// executed once with the same content is sent without waiting, and so is what says nothing by
// itself: what cuDNN has against it comes with the first that is made of it and waited for.
#include "client/library/cudnn_backend.h"

#include <algorithm>
#include <map>

#include "client/core/addresses.h"
#include "client/core/session.h"
#include "client/library/cudnn_descriptors.h"
#include "client/library/object.h"
#include "client/library/outgoing.h"
#include "client/profile/driver_calls.h"
#include "library/objects.h"
#include "wire/cudnn_backend.h"

namespace sluice::client::library::cudnn {

namespace ids = sluice::library;

std::unordered_map<uint64_t, Descriptor>& descriptors() {
  static auto* all = new std::unordered_map<uint64_t, Descriptor>;
  return *all;
}

Descriptor* find(uint64_t id) {
  const auto it = descriptors().find(id);
  return it == descriptors().end() ? nullptr : &it->second;
}

int32_t post(Session* s, Device* d, uint16_t function, const std::vector<std::byte>& body,
             Stream* work) {
  return s->post(function, body.data(), body.size(), {}, work, d->context()) == CUDA_SUCCESS
             ? kSuccess
             : kExecutionFailed;
}

int32_t begin(Session** s, Device** d) {
  *s = Session::get();
  if (!*s) return kNotInitialized;
  return client::enter(s, d) == CUDA_SUCCESS ? kSuccess : kExecutionFailed;
}

namespace {

constexpr uint32_t value_bytes(int32_t data_type) {
  switch (data_type) {
    case 1:
    case 10:
    case 20:  // double, int64, complex of floats
      return 8;
    case 21:
      return 16;
    case 2:
    case 9:
      return 2;
    case 3:
    case 6:
    case 11:
    case 12:
    case 13:
    case 15:
      return 1;
    default:
      return 4;
  }
}

const Descriptor::Attribute* attribute(const Descriptor& d, int32_t name) {
  for (auto it = d.attributes.rbegin(); it != d.attributes.rend(); ++it)
    if (it->head.name == static_cast<uint32_t>(name)) return &*it;
  return nullptr;
}

template <class T>
T element(const Descriptor& d, int32_t name, T otherwise, size_t index = 0) {
  const auto* a = attribute(d, name);
  if (!a || a->elements.size() < (index + 1) * sizeof(T)) return otherwise;
  T value;
  std::memcpy(&value, a->elements.data() + index * sizeof(T), sizeof value);
  return value;
}

// The content of a finalized descriptor, and what it inherits from those in it. kSuccess, or what
// is wrong with an attribute.
int32_t seal(Session* s, const Device& device, Descriptor* d) {
  Key key;
  key.add(ids::id_sluiceCudnnBackendBuild);
  key.add(static_cast<uint64_t>(d->type));
  for (const auto& a : d->attributes) {
    key.add(uint64_t{a.head.name} << 32 | a.head.type);
    if (a.head.type != wire::kBackendHandle && a.head.type != wire::kBackendDescriptor) {
      key.add_bytes(a.elements.data(), a.elements.size());
      continue;
    }
    key.add(a.head.count);
    for (uint64_t i = 0; i < a.head.count; ++i) {
      uint64_t id;
      std::memcpy(&id, a.elements.data() + i * 8, 8);
      if (a.head.type == wire::kBackendHandle) {
        const Object* handle = State::get().objects.find(id);
        if (!handle || handle->type != ids::k_cudnn || !is_near(s, *handle, device))
          return kBadParam;
        key.add(handle->content);
        continue;
      }
      const Descriptor* child = find(id);
      if (!child) return kBadParam;
      if (!child->finalized) return kNotFinalized;
      const Object* made = State::get().objects.find(id);
      if (child->sent && made && !is_near(s, *made, device)) return kBadParam;
      key.add(child->content);
      for (const auto& v : child->by_value) d->by_value.insert(v);
    }
  }
  if (d->type == kTensor && element<uint8_t>(*d, kTensorIsByValue, 0) != 0)
    d->by_value[element<int64_t>(*d, kTensorUniqueId, 0)] =
        value_bytes(element<int32_t>(*d, kTensorDataType, 0));
  d->content = key;
  return kSuccess;
}

bool is_learned(const Key& key) {
  std::lock_guard lock(State::get().mutex);
  return State::get().learned.contains(key);
}

void learn(const Key& key) {
  std::lock_guard lock(State::get().mutex);
  State::get().learned.insert(key);
}

// Posts what is known to succeed; else asks, and learns from success.
int32_t post_or_ask_to_execute(Session* s, Device* d, const std::vector<std::byte>& body,
                               const Key& key, Stream* work) {
  constexpr uint16_t kFunction = ids::id_sluiceCudnnBackendExecute;
  if (is_learned(key)) return post(s, d, kFunction, body, work);
  int64_t status = kInternalError;
  size_t got = 0;
  const CUresult e =
      s->exchange(kFunction, body.data(), body.size(), {},
                  {reinterpret_cast<std::byte*>(&status), sizeof status}, &got, work, d->context());
  if (e != CUDA_SUCCESS || got < sizeof status) return kExecutionFailed;
  if (status == kSuccess) learn(key);
  return static_cast<int32_t>(status);
}

// Whether a program learns of a descriptor only that it was made. The others may be refused for
// what they ask of the node, or are asked what it found: engines and their configurations,
// heuristics, plans, knobs and layouts, kernel caches, the device's properties; and what is new.
constexpr bool says_nothing(int32_t type) {
  constexpr int32_t kFirstThatSays = 2, kLastThatSays = 9, kKernelCache = 34, kProperties = 38;
  constexpr int32_t kLastKnown = 43;
  return type >= 0 && type <= kLastKnown && (type < kFirstThatSays || type > kLastThatSays) &&
         type != kKernelCache && type != kProperties;
}

// Sends a descriptor whole. One that may be refused, and was not made before, is waited for: it is
// sent with what others of its kind were asked, and what it says is kept.
int32_t build(Session* s, Device* device, uint64_t id, int32_t type, std::vector<std::byte> body,
              const Key& key) {
  const bool ahead = (device->record.abilities & wire::kBuildsAhead) != 0;
  if ((ahead && says_nothing(type)) || is_learned(key))
    return post(s, device, ids::id_sluiceCudnnBackendBuild, body, nullptr);
  State& state = State::get();
  std::vector<wire::BackendQuestion> tree;
  if (ahead) {
    std::lock_guard lock(state.mutex);
    tree = questions().tree(type);
  }
  put_padded(&body, tree.data(), tree.size() * sizeof tree[0]);
  LongAnswer reply;
  size_t got = 0;
  if (s->exchange(ids::id_sluiceCudnnBackendBuild, body.data(), body.size(), {}, reply.all(), &got,
                  nullptr, device->context()) != CUDA_SUCCESS ||
      got < sizeof(int64_t))
    return kExecutionFailed;
  int64_t status;
  std::memcpy(&status, reply.first(got).data(), sizeof status);
  if (status != kSuccess) return static_cast<int32_t>(status);
  learn(key);
  std::lock_guard lock(state.mutex);
  Descriptor* const d = find(id);
  if (!d || tree.empty()) return kSuccess;
  keep_said(state, reply.first(got).subspan(sizeof status), tree, {&d->content, 1});
  d->looked = tree.size();
  return kSuccess;
}

}  // namespace

}  // namespace sluice::client::library::cudnn

using namespace sluice::client;
using namespace sluice::client::library;
using namespace sluice::client::library::cudnn;
namespace wire = sluice::wire;
namespace ids = sluice::library;

extern "C" {

int32_t sluice_library_backend_create(int32_t type, void** descriptor) {
  if (!descriptor) return kBadParamNull;
  State& state = State::get();
  uint64_t id;
  Object* object = state.objects.create(&id);
  if (!object) return kInternalError;
  object->type = ids::k_cudnn_backend;
  std::lock_guard lock(state.mutex);
  descriptors()[id].type = type;
  *descriptor = reinterpret_cast<void*>(id);
  return kSuccess;
}

int32_t sluice_library_backend_destroy(void* descriptor) {
  const uint64_t id = id_of(descriptor);
  State& state = State::get();
  bool sent;
  uint32_t made_on = 0;
  {
    std::lock_guard lock(state.mutex);
    const Descriptor* d = find(id);
    if (!d) return kBadParam;
    sent = d->sent;
    if (const Object* object = state.objects.find(id)) made_on = object->device;
    descriptors().erase(id);
    state.objects.retire(id);
  }
  if (sent)
    if (Session* s = Session::get()) {
      Device* device;
      if (sluice::client::enter(&s, &device) == CUDA_SUCCESS) {
        if (s->spans_nodes()) device = s->devices()[made_on].get();
        s->post(ids::id_sluiceCudnnBackendDestroy, wire::BackendDestroy{id}, {}, nullptr,
                device->context());
      }
    }
  state.objects.recycle(id);
  return kSuccess;
}

int32_t sluice_library_backend_set(void* descriptor, int32_t name, int32_t type, int64_t count,
                                   const void* elements) {
  const uint32_t bytes = wire::backend_element_bytes(static_cast<uint32_t>(type));
  if (bytes == 0) return kNotSupported;
  if (count < 0 || count > 1 << 20) return kBadParam;
  if (count > 0 && !elements) return kBadParamNull;
  std::lock_guard lock(State::get().mutex);
  Descriptor* d = find(id_of(descriptor));
  if (!d || d->finalized) return kBadParam;
  const auto* at = static_cast<const std::byte*>(elements);
  d->attributes.push_back(
      {{static_cast<uint32_t>(name), static_cast<uint32_t>(type), static_cast<uint64_t>(count)},
       {at, at + static_cast<uint64_t>(count) * bytes}});
  return kSuccess;
}

int32_t sluice_library_backend_finalize(void* descriptor) {
  const uint64_t id = id_of(descriptor);
  Session* s;
  Device* device;
  if (const int32_t e = begin(&s, &device); e != kSuccess) return e;
  std::vector<std::byte> body;
  Key key;
  int32_t type;
  {
    std::lock_guard lock(State::get().mutex);
    Descriptor* d = find(id);
    if (!d || d->finalized) return kBadParam;
    type = d->type;
    if (const int32_t e = seal(s, *device, d); e != kSuccess) return e;
    if (d->type == kVariantPack) {
      d->finalized = true;
      return kSuccess;
    }
    put(&body, wire::BackendBuild{id, static_cast<uint32_t>(d->type),
                                  static_cast<uint32_t>(d->attributes.size())});
    for (const auto& a : d->attributes) {
      put(&body, a.head);
      put_padded(&body, a.elements.data(), a.elements.size());
    }
    key = d->content;
    key.add(device->index);
  }
  const int32_t status = build(s, device, id, type, std::move(body), key);
  std::lock_guard lock(State::get().mutex);
  if (Descriptor* d = find(id); d && status == kSuccess) {
    d->finalized = d->sent = true;
    if (Object* object = State::get().objects.find(id)) object->device = device->index;
  }
  return status;
}

static int32_t execute(void* handle, void* plan, void* pack) {
  Session* s;
  Device* device;
  if (const int32_t e = begin(&s, &device); e != kSuccess) return e;
  std::vector<std::byte> body, values;
  Key key;
  Stream* work;
  {
    State& state = State::get();
    std::lock_guard lock(state.mutex);
    Object* h = state.objects.find(id_of(handle));
    if (!h || h->type != ids::k_cudnn || !is_near(s, *h, *device)) return kBadParam;
    const Object* made = state.objects.find(id_of(plan));
    if (made && !is_near(s, *made, *device)) return kBadParam;
    const Descriptor *p = find(id_of(plan)), *v = find(id_of(pack));
    if (!p || !v || v->type != kVariantPack) return kBadParam;
    if (!p->finalized || !v->finalized) return kNotFinalized;
    if (attribute(*v, kPackIntermediates)) return kNotSupported;
    const auto *uids = attribute(*v, kPackUniqueIds), *pointers = attribute(*v, kPackPointers);
    const size_t n = pointers ? pointers->head.count : 0;
    if (!pointers || !uids || uids->head.count != n) return kBadParam;
    if (stream_for_work(s, device, reinterpret_cast<CUstream>(h->stream), &work) != CUDA_SUCCESS)
      return kBadParam;
    h->bring_up_to_date(s, id_of(handle));
    const auto workspace = element<uint64_t>(*v, kPackWorkspace, 0);
    key = p->content;
    key.add(ids::id_sluiceCudnnBackendExecute);
    key.add(device->index);
    key.add(n);
    key.add(workspace == 0 ? 0 : 1 + (workspace & 127));
    std::vector<uint64_t> words(n);
    std::memcpy(words.data(), pointers->elements.data(), n * 8);
    for (size_t i = 0; i < n; ++i) {
      int64_t uid;
      std::memcpy(&uid, uids->elements.data() + i * 8, 8);
      key.add(static_cast<uint64_t>(uid));
      const bool device_memory = words[i] == 0 || names_memory(s, words[i]);
      const auto by_value = p->by_value.find(uid);
      if (by_value != p->by_value.end()) {
        if (words[i] == 0) return kBadParamNull;
        if (device_of_address(s, words[i])) return kBadParam;  // cuDNN reads it on the CPU
        const auto* at = reinterpret_cast<const std::byte*>(words[i]);
        words[i] = wire::kCarried | values.size();
        put_padded(&values, at, by_value->second);
        key.add(3);
      } else if (!device_memory) {
        return kBadParam;
      } else {
        key.add(words[i] & 127);
      }
    }
    put(&body, wire::BackendExecute{id_of(handle), id_of(plan), workspace, static_cast<uint32_t>(n),
                                    static_cast<uint32_t>(values.size())});
    put_padded(&body, uids->elements.data(), n * 8);
    put_padded(&body, words.data(), n * 8);
    put_padded(&body, values.data(), values.size());
  }
  return post_or_ask_to_execute(s, device, body, key, work);
}

int32_t sluice_library_backend_execute(void* handle, void* plan, void* pack) {
  return sluice::client::profiled_library_call("cudnnBackendExecute",
                                               [&] { return execute(handle, plan, pack); });
}

}  // extern "C"
