// SPDX-License-Identifier: Apache-2.0
// What cuDNN's descriptors say, for a client that has asked the same of others like them before:
// all of it in one answer. Descriptors that are got on the way are the worker's own and do not
// outlive the command.
#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "library/objects.h"
#include "wire/cudnn_backend.h"
#include "worker/library/cudnn_backend.h"
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

  // What hangs by `parent` (from 1; 0: by none), of one descriptor.
  void at(BackendDescriptor from, uint32_t parent) {
    for (uint32_t i = parent; i < questions_.size() && !over_; ++i) {  // behind that one
      const wire::BackendQuestion& q = questions_[i];
      if (q.parent != parent) continue;
      if (q.type == wire::kBackendDescriptor && q.requested != 0)
        nested(from, q, i + 1);
      else
        plain(from, q);
    }
  }

 private:
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
    const bool bounded = element != 0 && q.type != wire::kBackendHandle && q.requested >= 0 &&
                         q.requested <= kMostNested;
    const size_t room = bounded ? static_cast<size_t>(q.requested) * element : 0;
    // With the last answer that there is room for it says so, and the client stops there.
    if (!has_room(room)) return over();
    if (!bounded) return put(kNotLooked, 0);
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

  void nested(BackendDescriptor from, const wire::BackendQuestion& q, uint32_t self) {
    if (!has_room(0)) return over();
    if (q.requested < 0 || q.requested > kMostNested || depth_ == kDeepest ||
        (made_ += q.requested) > kMostMade)
      return put(kNotLooked, 0);
    const Made made(backend_, q);
    int64_t count = 0, status = made.status;
    if (status == kSuccess)
      status = backend_.get(from, static_cast<int32_t>(q.name), static_cast<int32_t>(q.type),
                            q.requested, &count, const_cast<BackendDescriptor*>(made.all.data()));
    put(status, count);
    if (status != kSuccess) return;
    ++depth_;
    for (int64_t i = 0; i < std::clamp<int64_t>(count, 0, q.requested) && !over_; ++i)
      at(made.all[static_cast<size_t>(i)], self);
    --depth_;
  }

  void over() {
    put(kNotLooked, -1);
    over_ = true;
  }

  struct Made {
    Made(const Backend& b, const wire::BackendQuestion& q) : backend(b) {
      for (int64_t i = 0; i < q.requested && status == kSuccess; ++i) {
        BackendDescriptor one = nullptr;
        status = b.create(static_cast<int32_t>(q.target_type), &one);
        if (status == kSuccess) all.push_back(one);
      }
    }
    ~Made() {
      for (BackendDescriptor one : all) backend.destroy(one);
    }
    Made(const Made&) = delete;
    Made& operator=(const Made&) = delete;
    const Backend& backend;
    std::vector<BackendDescriptor> all;
    int64_t status = kSuccess;
  };

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

void look_at_backend(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& request = d.fixed<wire::BackendLook>();
  if (!d.ok() || request.descriptors > wire::kMaxBackendLooks ||
      request.questions > wire::kMaxBackendLooks)
    return s.reject("BackendLook makes no sense");
  const auto ids = d.bytes(uint64_t{request.descriptors} * 8);
  const auto asked = d.bytes(uint64_t{request.questions} * sizeof(wire::BackendQuestion));
  if (!d.ok()) return s.reject("BackendLook is cut short");
  std::vector<wire::BackendQuestion> questions(request.questions);
  if (!asked.empty()) std::memcpy(questions.data(), asked.data(), asked.size());
  for (uint32_t i = 0; i < questions.size(); ++i) {
    const uint32_t parent = questions[i].parent;
    if (parent > i || (parent && questions[parent - 1].type != wire::kBackendDescriptor))
      return s.reject("BackendLook has a question that hangs by none before it");
  }
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
  for (const LibraryObject& one : all) look.at(one.pointer, 0);
}

}  // namespace sluice::worker
