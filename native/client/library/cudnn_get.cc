// SPDX-License-Identifier: Apache-2.0
// Reading cuDNN's descriptors: what was asked once of a descriptor with the same content is known;
// what was asked of others of its kind is looked at together (cudnn_look.h).
#include <algorithm>

#include "client/core/addresses.h"
#include "client/library/cudnn_backend.h"
#include "client/library/cudnn_descriptors.h"
#include "client/library/cudnn_look.h"
#include "client/objects/device.h"
#include "library/objects.h"

namespace sluice::client::library::cudnn {

namespace {

namespace ids = sluice::library;

// Some 100 bytes each; a plan's heuristics say thousands.
constexpr size_t kMostSaid = 1 << 18;

// A program of ever new shapes asks for ever; then it asks again. Under State's mutex.
void make_room(State& state) {
  if (state.said.size() >= kMostSaid) state.said.clear();
}

// One call of cudnnBackendGetAttribute.
struct Get {
  static constexpr int32_t kUnknown = -1;
  void* descriptor;
  void* elements;
  wire::BackendQuestion question;
  std::vector<uint64_t> targets;  // of descriptors: those that the program has made for them
  Key key;

  bool wants_objects() const {
    return question.type == wire::kBackendDescriptor && question.requested > 0;
  }

  // kSuccess with `elements` filled, but for objects; a status; or kUnknown.
  int32_t from_known(Session* s, Device* device, int64_t* filled) {
    State& state = State::get();
    bool is_new;  // nobody has asked it of one of this kind
    {
      std::lock_guard lock(state.mutex);
      Descriptor* d = find(id_of(descriptor));
      if (!d) return kBadParam;
      if (!d->finalized) return kNotFinalized;
      if (d->type == kVariantPack) return kNotSupported;
      if (wants_objects()) {
        targets.resize(static_cast<size_t>(question.requested));
        std::memcpy(targets.data(), elements, targets.size() * 8);
        for (const uint64_t t : targets) {
          const Descriptor* target = find(t);
          if (!target || target->finalized || target->sent) return kBadParam;
          question.target_type = static_cast<uint32_t>(target->type);
        }
      }
      key = question_key(d->content, question);
      if (take_known(state, filled)) return kSuccess;
      is_new = !questions().expects(d->type, question);
      const bool will_be_asked = !is_new || questions().asked(d->type, question);
      if (!(device->record.abilities & wire::kAnswersLooks) || !will_be_asked) return kUnknown;
    }
    look(s, device, is_new);
    std::lock_guard lock(state.mutex);
    return take_known(state, filled) ? kSuccess : kUnknown;
  }

  // The same as others like it were asked, of this one and of all that came with it; only this
  // question, if no other was asked it.
  void look(Session* s, Device* device, bool only_this) {
    State& state = State::get();
    std::vector<wire::BackendQuestion> tree;
    std::vector<uint64_t> all;
    std::vector<Key> contents;
    {
      std::lock_guard lock(state.mutex);
      Descriptor* d = find(id_of(descriptor));
      if (!d) return;
      tree = only_this ? questions().tree_of(question) : questions().tree(d->type);
      const std::vector<uint64_t> alone{id_of(descriptor)};
      for (const uint64_t id : d->siblings ? *d->siblings : alone) {
        Descriptor* one = find(id);
        if (!one || !one->sent || !one->finalized || one->type != d->type ||
            all.size() == wire::kMaxBackendLooks)
          continue;
        if (!only_this) {
          if (one->looked >= tree.size()) continue;
          one->looked = tree.size();
        }
        all.push_back(id);
        contents.push_back(one->content);
      }
    }
    if (all.empty()) return;
    std::vector<std::byte> body;
    LongAnswer reply;
    put(&body,
        wire::BackendLook{static_cast<uint32_t>(all.size()), static_cast<uint32_t>(tree.size())});
    put_padded(&body, all.data(), all.size() * 8);
    put_padded(&body, tree.data(), tree.size() * sizeof tree[0]);
    size_t got = 0;
    if (s->exchange(ids::id_sluiceCudnnBackendLook, body.data(), body.size(), {}, reply.all(), &got,
                    nullptr, device->context()) != CUDA_SUCCESS)
      return;
    std::lock_guard lock(state.mutex);
    keep_said(state, reply.first(got), tree, contents);
  }

  // What is known to give objects.
  int32_t post(Session* s, Device* device) const {
    return cudnn::post(s, device, ids::id_sluiceCudnnBackendGet, body(), nullptr);
  }

  int32_t ask(Session* s, Device* device, uint32_t bytes, int64_t* filled) const {
    const bool objects = question.type == wire::kBackendDescriptor;
    const std::vector<std::byte> body = this->body();
    std::vector<std::byte> reply(16 +
                                 (objects ? 0 : static_cast<size_t>(question.requested) * bytes));
    size_t got = 0;
    const CUresult e = s->exchange(ids::id_sluiceCudnnBackendGet, body.data(), body.size(), {},
                                   reply, &got, nullptr, device->context());
    if (e != CUDA_SUCCESS || got < 16) return kExecutionFailed;
    int64_t status;
    std::memcpy(&status, reply.data(), 8);
    std::memcpy(filled, reply.data() + 8, 8);
    if (status != kSuccess) return static_cast<int32_t>(status);
    if (wants_objects()) return kSuccess;
    got = std::min(got, reply.size());
    if (question.requested > 0) std::memcpy(elements, reply.data() + 16, got - 16);
    State& state = State::get();
    std::lock_guard lock(state.mutex);
    make_room(state);
    const auto end = reply.begin() + static_cast<ptrdiff_t>(got);
    state.said.emplace(key, std::vector<std::byte>(reply.begin() + 8, end));
    return kSuccess;
  }

  // The worker has made them all, those beyond `filled` unused.
  void have_objects(int64_t filled) const {
    std::lock_guard lock(State::get().mutex);
    const Descriptor* from = find(id_of(descriptor));
    const auto inherited = from ? from->by_value : std::map<int64_t, uint32_t>{};
    const auto siblings = std::make_shared<std::vector<uint64_t>>();
    for (size_t i = 0; i < targets.size(); ++i) {
      Descriptor* target = find(targets[i]);
      if (!target) continue;
      target->sent = true;
      if (static_cast<int64_t>(i) >= filled) continue;
      target->finalized = true;
      target->by_value = inherited;
      target->content = answered_key(key, i);
      target->siblings = siblings;
      siblings->push_back(targets[i]);
    }
  }

 private:
  bool take_known(State& state, int64_t* filled) const {
    const auto it = state.said.find(key);
    if (it == state.said.end()) return false;
    ++state.hits;
    std::memcpy(filled, it->second.data(), 8);
    if (!wants_objects() && question.requested > 0)
      std::memcpy(elements, it->second.data() + 8, it->second.size() - 8);
    return true;
  }

  std::vector<std::byte> body() const {
    std::vector<std::byte> all;
    put(&all, wire::BackendGet{id_of(descriptor), question.name, question.type, question.requested,
                               static_cast<uint32_t>(targets.size()), question.target_type});
    put_padded(&all, targets.data(), targets.size() * 8);
    return all;
  }
};

}  // namespace

LearnedQuestions& questions() {
  static auto* all = new LearnedQuestions;
  return *all;
}

void keep_said(State& state, std::span<const std::byte> reply,
               std::span<const wire::BackendQuestion> tree, std::span<const Key> contents) {
  make_room(state);
  read_look(reply, tree, contents, [&](const Key& of, std::span<const std::byte> answer) {
    state.said.emplace(of, std::vector<std::byte>(answer.begin(), answer.end()));
  });
}

}  // namespace sluice::client::library::cudnn

using namespace sluice::client;
using namespace sluice::client::library;
using namespace sluice::client::library::cudnn;
namespace wire = sluice::wire;

extern "C" {

int32_t sluice_library_backend_get(void* descriptor, int32_t name, int32_t type, int64_t requested,
                                   int64_t* count, void* elements) {
  const uint32_t bytes = wire::backend_element_bytes(static_cast<uint32_t>(type));
  if (bytes == 0) return kNotSupported;
  if (requested < 0 || requested > 1 << 20) return kBadParam;
  Session* s;
  Device* device;
  if (const int32_t e = begin(&s, &device); e != kSuccess) return e;
  Get get{descriptor, elements, {}, {}, {}};
  get.question = {static_cast<uint32_t>(name), static_cast<uint32_t>(type),
                  elements ? requested : 0, 0, 0};
  int64_t filled = 0;
  const int32_t answer = get.from_known(s, device, &filled);
  if (answer > 0) return answer;
  if (answer == Get::kUnknown) {
    if (const int32_t e = get.ask(s, device, bytes, &filled); e != kSuccess) return e;
  } else if (get.wants_objects()) {
    if (const int32_t e = get.post(s, device); e != kSuccess) return e;
  }
  if (count) *count = filled;
  if (get.wants_objects()) get.have_objects(filled);
  return kSuccess;
}

}  // extern "C"
