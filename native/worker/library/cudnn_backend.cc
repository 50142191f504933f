// SPDX-License-Identifier: Apache-2.0
// cuDNN's backend descriptors on the worker: made whole from one command, read, executed.
#include "worker/library/cudnn_backend.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

#include "library/objects.h"
#include "process/log.h"
#include "wire/cudnn_backend.h"
#include "worker/dispatch.h"
#include "worker/library/cudnn_got.h"
#include "worker/library/library.h"

namespace sluice::worker {

// Tensors of which an execution's variant pack holds the value's place in host memory, by their
// unique ids, as the descriptors below one say. cuDNN reads those on the CPU, all others on the
// GPU.
struct ByValue {
  std::set<int64_t> tensors;
};

std::shared_ptr<const ByValue> by_value(const std::vector<int64_t>& tensors) {
  auto all = std::make_shared<ByValue>();
  all->tensors.insert(tensors.begin(), tensors.end());
  return all;
}

const Backend& Backend::get_all() {
  static const Backend all = [] {
    Backend b;
    const auto look = [](const char* name, auto* f) {
      *f = reinterpret_cast<std::remove_pointer_t<decltype(f)>>(
          Libraries::get().symbol("cudnn", name));
      return *f != nullptr;
    };
    b.whole = look("cudnnBackendCreateDescriptor", &b.create);
    b.whole &= look("cudnnBackendDestroyDescriptor", &b.destroy);
    b.whole &= look("cudnnBackendFinalize", &b.finalize);
    b.whole &= look("cudnnBackendSetAttribute", &b.set);
    b.whole &= look("cudnnBackendGetAttribute", &b.get);
    b.whole &= look("cudnnBackendExecute", &b.execute);
    return b;
  }();
  return all;
}

namespace {

namespace ids = sluice::library;
using Descriptor = BackendDescriptor;

constexpr int64_t kSuccess = 0, kNotSupported = 3000;
constexpr int64_t kBadParam = 2000, kInternalError = 4000;
constexpr uint32_t kVariantPack = 16, kTensor = 17;
enum : uint32_t {
  kTensorDimensions = 902,
  kTensorUniqueId = 906,
  kTensorIsByValue = 908,
  // Plans, kernels and properties as texts of cuDNN's own: it follows what is in them, and no plan
  // of such a text says which of its tensors are passed by value.
  kPlanJson = 405,
  kKernelCacheJson = 2402,
  kPropertiesJson = 2702,
};
enum : int32_t { kPackUniqueIds = 1000, kPackPointers = 1001, kPackWorkspace = 1003 };
constexpr uint32_t kMost = 4096;  // attributes, elements of handles, pointers

void answer(const Command& c, int64_t status, const char* what, Reply& reply) {
  if (c.answered()) return reply.put(status);
  if (status == kSuccess) return;
  process::log_error(std::string(what) + " returned " + std::to_string(status) +
                     " after its caller had gone on");
  reply.status = CUDA_ERROR_UNKNOWN;
}

// A piece of the body, with its padding taken off.
std::span<const std::byte> piece(Decoder& d, uint64_t n) {
  const auto at = d.bytes(n);
  d.bytes(wire::round_up(n, 8) - n);
  return at;
}

bool object(uint64_t id, uint8_t type, LibraryObject* found) {
  return Libraries::get().objects.get(id, found) && found->type == type;
}

// What one descriptor says of tensors by value: its own attributes and all that it holds.
class Sealing {
 public:
  explicit Sealing(uint32_t type) : is_tensor_(type == kTensor) {}

  void add(const LibraryObject& child) {
    if (refused_ == kSuccess) refused_ = child.refused;
    if (!child.by_value) return;
    all_.tensors.insert(child.by_value->tensors.begin(), child.by_value->tensors.end());
  }
  void add(const wire::BackendAttribute& a, std::span<const std::byte> raw) {
    understood_ &= a.name != kPlanJson && a.name != kKernelCacheJson && a.name != kPropertiesJson;
    if (!is_tensor_) return;
    if (a.name == kTensorIsByValue && !raw.empty()) by_value_ = raw[0] != std::byte{0};
    const auto number = [&](size_t i) {
      int64_t n;
      std::memcpy(&n, raw.data() + i * sizeof n, sizeof n);
      return n;
    };
    if (a.name == kTensorUniqueId && raw.size() >= sizeof(int64_t)) id_ = number(0);
    if (a.name != kTensorDimensions) return;
    one_ = true;
    for (size_t i = 0; i < raw.size() / sizeof(int64_t); ++i) one_ = one_ && number(i) == 1;
  }
  // Whether it can be told cuDNN at all.
  bool sound() const { return understood_ && refused_ == kSuccess; }
  // The status of what is in it and was not made, or of itself as far as it is known beforehand.
  int64_t status() const {
    return refused_ != kSuccess ? refused_ : fits() ? kSuccess : kNotSupported;
  }
  std::shared_ptr<const ByValue> seal() {
    if (is_tensor_ && by_value_) all_.tensors.insert(id_);
    if (all_.tensors.empty()) return nullptr;
    return std::make_shared<const ByValue>(std::move(all_));
  }

 private:
  // A value has room for one number; a tensor of more by value would be read beyond it.
  bool fits() const { return understood_ && (!is_tensor_ || !by_value_ || one_); }

  const bool is_tensor_;
  bool by_value_ = false, one_ = true, understood_ = true;
  int64_t id_ = 0, refused_ = kSuccess;
  ByValue all_;
};

// Elements as cuDNN takes them: ids become objects, addresses are checked.
bool elements(Session& s, const wire::BackendAttribute& a, std::span<const std::byte> raw,
              std::vector<std::byte>* out, Sealing* sealing) {
  out->assign(raw.begin(), raw.end());
  out->resize(raw.size() + 8);  // texts end, whether their count includes that or not
  sealing->add(a, raw);
  if (a.type != wire::kBackendHandle && a.type != wire::kBackendDescriptor &&
      a.type != wire::kBackendPointer)
    return true;
  for (uint64_t i = 0; i < a.count; ++i) {
    uint64_t word;
    std::memcpy(&word, raw.data() + i * 8, 8);
    if (a.type == wire::kBackendPointer) {
      if (word != 0 && !s.device_range(word, 1)) return false;
      continue;
    }
    LibraryObject child;
    const uint8_t type = a.type == wire::kBackendHandle ? ids::k_cudnn : ids::k_cudnn_backend;
    if (!object(word, type, &child)) return false;
    sealing->add(child);
    std::memcpy(out->data() + i * 8, &child.pointer, 8);
  }
  return true;
}

void build(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& request = d.fixed<wire::BackendBuild>();
  if (!d.ok() || request.attributes > kMost || request.type == kVariantPack ||
      !Libraries::get().objects.has_room(request.id))
    return s.reject("BackendBuild makes no sense");
  if (!s.use_context(c.header.context)) return;
  const Backend& b = Backend::get_all();
  Descriptor made = nullptr;
  int64_t status = b.whole ? b.create(static_cast<int32_t>(request.type), &made) : kNotSupported;
  std::vector<std::byte> values;
  Sealing sealing(request.type);
  // Whatever is wrong with the command, what was made is not left behind.
  std::unique_ptr<void, int32_t (*)(Descriptor)> unfinished(made, b.destroy);
  for (uint32_t i = 0; i < request.attributes; ++i) {
    wire::BackendAttribute a;
    const auto head = d.bytes(sizeof a);
    if (!d.ok()) return s.reject("BackendBuild is cut short");
    std::memcpy(&a, head.data(), sizeof a);
    const uint32_t bytes = wire::backend_element_bytes(a.type);
    if (bytes == 0 || a.count > 1 << 20) return s.reject("BackendBuild has a wrong attribute");
    const auto raw = piece(d, a.count * bytes);
    if (!d.ok()) return s.reject("BackendBuild is cut short");
    if (!elements(s, a, raw, &values, &sealing))
      return s.reject("BackendBuild names what the session does not have");
    if (status == kSuccess && sealing.sound())
      status = b.set(made, static_cast<int32_t>(a.name), static_cast<int32_t>(a.type),
                     static_cast<int64_t>(a.count), a.count ? values.data() : nullptr);
  }
  std::vector<wire::BackendQuestion> questions;
  const auto asked = d.rest();
  if (!c.answered() && !asked.empty()) return s.reject("BackendBuild asks, and waits for nothing");
  if (!take_questions(s, asked, &questions)) return;
  if (status == kSuccess) status = sealing.status();
  if (status == kSuccess) status = b.finalize(made);
  LibraryObject object{ids::k_cudnn_backend, made};
  if (status == kSuccess) {
    object.by_value = sealing.seal();
    if (Libraries::get().objects.add(request.id, object)) unfinished.release();
  } else if (!c.answered()) {
    object.pointer = nullptr;
    object.refused = status;
    Libraries::get().objects.add(request.id, object);
  }
  if (!c.answered()) return;  // who makes something of it, or asks it, is told
  reply.put(status);
  if (status == kSuccess && !questions.empty() && Libraries::get().objects.get(request.id, &object))
    look_at(object, questions, reply);
}

// Descriptors for the client's ids, which a look may have got already; none where cuDNN says no.
// False: an id is none of the client's to give.
bool get_objects(const Backend& b, const LibraryObject& from, const wire::BackendGet& request,
                 const std::vector<uint64_t>& targets, int64_t* status, int64_t* count) {
  const wire::BackendQuestion q{request.name, request.type, request.requested, request.target_type,
                                0};
  auto got = take_kept(*from.life, q);
  if (!got) got = std::make_shared<GotDescriptors>(b, from.pointer, q);
  *status = got->status();
  *count = got->count();
  if (*status != kSuccess) return true;
  const std::vector<Descriptor> all = got->take(targets.size());
  if (all.size() < targets.size()) *status = kInternalError;
  size_t added = 0;
  for (; *status == kSuccess && added < all.size(); ++added) {
    LibraryObject target{ids::k_cudnn_backend, all[added]};
    target.by_value = from.by_value;
    if (!Libraries::get().objects.add(targets[added], target)) break;
  }
  for (size_t i = added; i < all.size(); ++i) b.destroy(all[i]);
  return *status != kSuccess || added == all.size();
}

void get(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& request = d.fixed<wire::BackendGet>();
  const uint32_t bytes = wire::backend_element_bytes(request.type);
  if (!d.ok() || bytes == 0 || request.requested < 0 || request.requested > 1 << 20 ||
      request.targets > kMost)
    return s.reject("BackendGet makes no sense");
  const bool objects = request.type == wire::kBackendDescriptor;
  if (objects ? request.targets != static_cast<uint64_t>(request.requested) : request.targets != 0)
    return s.reject("BackendGet brings other targets than it asks for");
  const size_t room = static_cast<size_t>(request.requested) * bytes;
  if (!objects && 16 + room > wire::kMaxAnswer)
    return s.reject("BackendGet asks for more than an answer holds");
  LibraryObject from;
  if (!object(request.id, ids::k_cudnn_backend, &from))
    return s.reject("BackendGet names a descriptor that the session does not have");
  const auto raw = piece(d, uint64_t{request.targets} * 8);
  if (!d.ok()) return s.reject("BackendGet is cut short");
  if (!s.use_context(c.header.context)) return;
  const Backend& b = Backend::get_all();
  int64_t status = b.whole ? from.refused : kNotSupported, count = 0;
  std::vector<std::byte> values(std::max<size_t>(room, 8));
  if (status == kSuccess && request.targets > 0) {
    std::vector<uint64_t> targets(request.targets);
    std::memcpy(targets.data(), raw.data(), raw.size());
    if (!get_objects(b, from, request, targets, &status, &count))
      return s.reject("BackendGet mints an id that is taken or none");
  } else if (status == kSuccess) {
    status =
        b.get(from.pointer, static_cast<int32_t>(request.name), static_cast<int32_t>(request.type),
              request.requested, &count, room ? values.data() : nullptr);
  }
  if (!c.answered()) return answer(c, status, "cudnnBackendGetAttribute", reply);
  reply.put(status);
  reply.put(count);
  if (status == kSuccess && !objects) {
    const auto filled = static_cast<uint64_t>(std::clamp<int64_t>(count, 0, request.requested));
    reply.put_bytes(values.data(), filled * bytes);
  }
}

void destroy(Session& s, const Command& c, Reply&) {
  Decoder d(c.body);
  const auto& request = d.fixed<wire::BackendDestroy>();
  LibraryObject gone;
  if (!d.ok() || !Libraries::get().objects.get(request.id, &gone) ||
      gone.type != ids::k_cudnn_backend)
    return s.reject("BackendDestroy names a descriptor that the session does not have");
  if (!Libraries::get().objects.take(request.id, &gone) || gone.life.use_count() > 1)
    return s.reject("BackendDestroy ends a descriptor that another call is using");
  if (gone.pointer && s.use_context(c.header.context)) Backend::get_all().destroy(gone.pointer);
}

void execute(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& request = d.fixed<wire::BackendExecute>();
  if (!d.ok() || request.pointers > kMost) return s.reject("BackendExecute makes no sense");
  LibraryObject handle, plan;
  if (!object(request.handle, ids::k_cudnn, &handle) ||
      !object(request.plan, ids::k_cudnn_backend, &plan))
    return s.reject("BackendExecute names what the session does not have");
  if (plan.refused != kSuccess) return answer(c, plan.refused, "cudnnBackendExecute", reply);
  const auto uids = piece(d, uint64_t{request.pointers} * 8);
  const auto words = piece(d, uint64_t{request.pointers} * 8);
  const auto values = piece(d, request.value_bytes);
  if (!d.ok()) return s.reject("BackendExecute is cut short");
  if (request.workspace != 0 && !s.device_range(request.workspace, 1))
    return s.reject("BackendExecute names a workspace that the session does not have");
  std::vector<std::byte> kept(values.begin(), values.end());
  std::vector<uint64_t> pointers(request.pointers);
  std::vector<int64_t> ids_of(request.pointers);
  if (!uids.empty()) {
    std::memcpy(ids_of.data(), uids.data(), uids.size());
    std::memcpy(pointers.data(), words.data(), words.size());
  }
  for (size_t i = 0; i < pointers.size(); ++i) {
    uint64_t& p = pointers[i];
    // A value is carried, everything else is not: cuDNN would follow an address on the wrong side.
    const bool carried = (p & wire::kCarried) != 0;
    const bool by_value = plan.by_value && plan.by_value->tensors.contains(ids_of[i]);
    if (by_value && p == 0) return answer(c, kBadParam, "cudnnBackendExecute", reply);
    if (by_value != carried)
      return s.reject(
          "BackendExecute brings a value where memory is meant, or the other way round");
    if (carried) {
      const uint64_t at = p & ~wire::kCarried;
      // Every value has room for the widest type.
      if (at % 8 != 0 || at >= kept.size()) return s.reject("BackendExecute has a wrong value");
      p = at;
    } else if (p != 0 && !s.device_range(p, 1)) {
      return s.reject("BackendExecute names memory that the session does not have");
    } else {
      continue;
    }
    p |= wire::kCarried;
  }
  kept.resize(kept.size() + 16);
  for (uint64_t& p : pointers)
    if (p & wire::kCarried) p = reinterpret_cast<uint64_t>(kept.data() + (p & ~wire::kCarried));
  Vgpu* v = s.use_context(c.header.context);
  if (!v) return;
  const Backend& b = Backend::get_all();
  if (!b.whole) return answer(c, kNotSupported, "cudnnBackendExecute", reply);
  Descriptor pack = nullptr;
  const auto n = static_cast<int64_t>(request.pointers);
  constexpr int32_t kInt64 = 3, kPointer = 6;
  int64_t status = b.create(static_cast<int32_t>(kVariantPack), &pack);
  if (status == kSuccess) status = b.set(pack, kPackPointers, kPointer, n, pointers.data());
  if (status == kSuccess) status = b.set(pack, kPackUniqueIds, kInt64, n, ids_of.data());
  if (status == kSuccess) status = b.set(pack, kPackWorkspace, kPointer, 1, &request.workspace);
  if (status == kSuccess) status = b.finalize(pack);
  if (status == kSuccess) {
    Gate::Passage passage;
    if (!capturing(s, handle.stream))
      passage = v->gate->pass(handle.stream, {reinterpret_cast<uintptr_t>(plan.pointer)});
    status = b.execute(handle.pointer, plan.pointer, pack);
    passage.issued();
  }
  if (pack) b.destroy(pack);
  answer(c, status, "cudnnBackendExecute", reply);
}

}  // namespace

void add_cudnn_backend_handlers(DispatchTable& t) {
  t[ids::id_sluiceCudnnBackendBuild].run = build;
  t[ids::id_sluiceCudnnBackendGet].run = get;
  t[ids::id_sluiceCudnnBackendLook].run = look_at_backend;
  t[ids::id_sluiceCudnnBackendDestroy].run = destroy;
  t[ids::id_sluiceCudnnBackendExecute].run = execute;
}

}  // namespace sluice::worker
