// SPDX-License-Identifier: Apache-2.0
// What cuDNN's descriptors say, for a client that has asked the same of others like them before:
// all of it in one answer. Descriptors that are got on the way are the worker's own; those of the
// client's descriptors are kept for it, the others do not outlive the command.
#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "library/objects.h"
#include "wire/cudnn_backend.h"
#include "worker/library/cudnn_backend.h"
#include "worker/library/cudnn_got.h"
#include "worker/library/library.h"

namespace sluice::worker {

namespace {

constexpr int64_t kMostNested = 256;  // descriptors, or elements, of one answer in a look
constexpr int64_t kSuccess = 0;
constexpr auto kNotLooked = static_cast<int64_t>(wire::kBackendNotLooked);

class Look {
 public:
  Look(const Backend& backend, std::span<const wire::BackendQuestion> questions, Reply& reply)
      : backend_(backend), questions_(questions), reply_(reply) {}

  // What is asked of one of the client's.
  void at(const LibraryObject& one) {
    if (one.refused != kSuccess) return refuse(one.refused);
    Got got;
    at(one.pointer, 0, &got);
    // The one that it will ask for is not known; most have one.
    if (!got.empty()) keep_with(*one.life, got.front());
  }

 private:
  // Descriptors that were got of one.
  using Got = std::vector<std::shared_ptr<GotDescriptors>>;

  // What hangs by `parent` (from 1; 0: by none), of one descriptor.
  void at(BackendDescriptor from, uint32_t parent, Got* got) {
    for (uint32_t i = parent; i < questions_.size() && !over_; ++i) {  // behind that one
      const wire::BackendQuestion& q = questions_[i];
      if (q.parent != parent) continue;
      if (q.type == wire::kBackendDescriptor && q.requested != 0)
        nested(from, q, i + 1, got);
      else
        plain(from, q);
    }
  }

  void refuse(int64_t status) {
    for (const wire::BackendQuestion& q : questions_) {
      if (q.parent != 0 || over_) continue;
      if (!has_room(0)) return over();
      put(status, 0);
    }
  }

  bool has_room(size_t bytes) {
    bytes_ += 16 + wire::round_up(bytes, 8);
    return ++answers_ <= wire::kMaxBackendAnswers && bytes_ + 16 < wire::kMaxAnswer;
  }
  void put(int64_t status, int64_t count) {
    reply_.put(status);
    reply_.put(count);
  }

  void plain(BackendDescriptor from, const wire::BackendQuestion& q) {
    const uint32_t element = wire::backend_element_bytes(q.type);
    // A handle is an address of this process's.
    const bool asks = element != 0 && q.type != wire::kBackendHandle && bounded(q);
    const size_t room = asks ? static_cast<size_t>(q.requested) * element : 0;
    // With the last answer that there is room for it says so, and the client stops there.
    if (!has_room(room)) return over();
    if (!asks) return put(kNotLooked, 0);
    std::vector<std::byte> values(std::max<size_t>(wire::round_up(room, 8), 8));
    int64_t count = 0;
    const int64_t status =
        backend_.get(from, static_cast<int32_t>(q.name), static_cast<int32_t>(q.type), q.requested,
                     &count, room ? values.data() : nullptr);
    put(status, count);
    if (status != kSuccess) return;
    const auto filled = static_cast<size_t>(std::clamp<int64_t>(count, 0, q.requested)) * element;
    std::fill(values.begin() + static_cast<ptrdiff_t>(filled), values.end(), std::byte{0});
    reply_.put_bytes(values.data(), wire::round_up(filled, 8));
  }

  void nested(BackendDescriptor from, const wire::BackendQuestion& q, uint32_t self, Got* got) {
    if (!has_room(0)) return over();
    if (!bounded(q) || depth_ == kDeepest) return put(kNotLooked, 0);
    const GotDescriptors* const answer = find(from, q, got);
    if (!answer) return put(kNotLooked, 0);
    put(answer->status(), answer->count());
    if (answer->status() != kSuccess) return;
    ++depth_;
    const auto all = answer->all();
    for (size_t i = 0; i < std::min(all.size(), static_cast<size_t>(q.requested)) && !over_; ++i) {
      Got below;
      at(all[i], self, &below);
    }
    --depth_;
  }

  static bool bounded(const wire::BackendQuestion& q) {
    return q.requested >= 0 && q.requested <= kMostNested;
  }

  // cuDNN is asked once where it would say the same again: for as many as anybody asks for first,
  // as that answers all that ask for more than there are. nullptr: it makes too many.
  const GotDescriptors* find(BackendDescriptor from, const wire::BackendQuestion& q, Got* got) {
    const auto known = [&]() -> const GotDescriptors* {
      for (const auto& each : *got)
        if (each->answers(q)) return each.get();
      return nullptr;
    };
    if (const GotDescriptors* const answer = known()) return answer;
    wire::BackendQuestion most = q;
    for (const wire::BackendQuestion& other : questions_)
      if (other.parent == q.parent && wire::same_attribute(other, q) && bounded(other))
        most.requested = std::max(most.requested, other.requested);
    for (const wire::BackendQuestion& ask : {most, q}) {
      if ((made_ += ask.requested) > kMostMade) return nullptr;
      got->push_back(std::make_shared<GotDescriptors>(backend_, from, ask));
      if (const GotDescriptors* const answer = known()) return answer;
    }
    return nullptr;
  }

  void over() {
    put(kNotLooked, -1);
    over_ = true;
  }

  static constexpr int kDeepest = 4;
  static constexpr int64_t kMostMade = 16384;
  const Backend& backend_;
  const std::span<const wire::BackendQuestion> questions_;
  Reply& reply_;
  size_t bytes_ = 0;
  uint32_t answers_ = 0;
  int64_t made_ = 0;
  int depth_ = 0;
  bool over_ = false;
};

}  // namespace

bool take_questions(Session& s, std::span<const std::byte> raw,
                    std::vector<wire::BackendQuestion>* questions) {
  questions->resize(raw.size() / sizeof(wire::BackendQuestion));
  if (questions->size() > wire::kMaxBackendLooks || raw.size() % sizeof(wire::BackendQuestion) != 0)
    return s.reject("a descriptor of cuDNN's is asked more, or less, than whole questions"), false;
  if (!raw.empty()) std::memcpy(questions->data(), raw.data(), raw.size());
  for (uint32_t i = 0; i < questions->size(); ++i) {
    const uint32_t parent = (*questions)[i].parent;
    if (parent > i || (parent && (*questions)[parent - 1].type != wire::kBackendDescriptor))
      return s.reject("a descriptor of cuDNN's is asked what hangs by no question before it"),
             false;
  }
  return true;
}

void look_at(const LibraryObject& one, std::span<const wire::BackendQuestion> questions,
             Reply& reply) {
  Look(Backend::get_all(), questions, reply).at(one);
}

void look_at_backend(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& request = d.fixed<wire::BackendLook>();
  if (!d.ok() || request.descriptors > wire::kMaxBackendLooks ||
      request.questions > wire::kMaxBackendLooks)
    return s.reject("BackendLook makes no sense");
  const auto ids = d.bytes(uint64_t{request.descriptors} * 8);
  const auto asked = d.bytes(uint64_t{request.questions} * sizeof(wire::BackendQuestion));
  if (!d.ok()) return s.reject("BackendLook is cut short");
  std::vector<wire::BackendQuestion> questions;
  if (!take_questions(s, asked, &questions)) return;
  std::vector<LibraryObject> all;
  for (uint32_t i = 0; i < request.descriptors; ++i) {
    uint64_t id;
    std::memcpy(&id, ids.data() + size_t{i} * 8, 8);
    LibraryObject one;
    if (!Libraries::get().objects.get(id, &one) || one.type != library::k_cudnn_backend)
      return s.reject("BackendLook names a descriptor that the session does not have");
    all.push_back(one);
  }
  if (!s.use_context(c.header.context)) return;
  const Backend& b = Backend::get_all();
  if (!b.whole) return reply.put(kNotLooked);
  Look look(b, questions, reply);
  for (const LibraryObject& one : all) look.at(one);
}

}  // namespace sluice::worker
