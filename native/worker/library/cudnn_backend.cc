// SPDX-License-Identifier: Apache-2.0
// cuDNN's backend descriptors on the worker: made whole from one command, read, executed.
#include "wire/cudnn_backend.h"

#include <cstring>

#include "library/objects.h"
#include "worker/dispatch.h"
#include "worker/library/library.h"
#include "worker/log.h"

namespace sluice::worker {

namespace {

namespace ids = sluice::library;

constexpr int64_t kSuccess = 0, kNotSupported = 3000;
constexpr int32_t kVariantPack = 16;
enum : int32_t { kPackUniqueIds = 1000, kPackPointers = 1001, kPackWorkspace = 1003 };
constexpr uint32_t kMost = 4096;  // attributes, elements of handles, pointers

using Descriptor = void*;

struct Backend {
  int32_t (*create)(int32_t, Descriptor*) = nullptr;
  int32_t (*destroy)(Descriptor) = nullptr;
  int32_t (*finalize)(Descriptor) = nullptr;
  int32_t (*set)(Descriptor, int32_t, int32_t, int64_t, const void*) = nullptr;
  int32_t (*get)(Descriptor, int32_t, int32_t, int64_t, int64_t*, void*) = nullptr;
  int32_t (*execute)(void*, Descriptor, Descriptor) = nullptr;
  bool whole = false;

  // Looked up at the first use; `whole` is false where the node has no cuDNN 9.
  static const Backend& get_all() {
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
};

void answer(const Command& c, int64_t status, const char* what, Reply& reply) {
  if (c.answered()) return reply.put(status);
  if (status == kSuccess) return;
  log_error(std::string(what) + " returned " + std::to_string(status) +
            " after its caller had gone on");
  reply.status = CUDA_ERROR_UNKNOWN;
}

// A piece of the body, with its padding taken off.
std::span<const std::byte> piece(Decoder& d, uint64_t n) {
  const auto at = d.bytes(n);
  d.bytes(wire::round_up(n, 8) - n);
  return at;
}

bool object(uint64_t id, uint8_t type, void** pointer) {
  LibraryObject found;
  if (!Libraries::get().objects.get(id, &found) || found.type != type) return false;
  *pointer = found.pointer;
  return true;
}

// Elements as cuDNN takes them: ids become objects, addresses are checked.
bool elements(Session& s, const wire::BackendAttribute& a, std::span<const std::byte> raw,
              std::vector<std::byte>* out) {
  out->assign(raw.begin(), raw.end());
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
    void* pointer;
    const uint8_t type = a.type == wire::kBackendHandle ? ids::k_cudnn : ids::k_cudnn_backend;
    if (!object(word, type, &pointer)) return false;
    std::memcpy(out->data() + i * 8, &pointer, 8);
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
  if (!b.whole) return answer(c, kNotSupported, "BackendBuild", reply);
  Descriptor made = nullptr;
  int64_t status = b.create(static_cast<int32_t>(request.type), &made);
  std::vector<std::byte> values;
  for (uint32_t i = 0; i < request.attributes; ++i) {
    wire::BackendAttribute a;
    const auto head = d.bytes(sizeof a);
    if (!d.ok()) return s.reject("BackendBuild is cut short");
    std::memcpy(&a, head.data(), sizeof a);
    const uint32_t bytes = wire::backend_element_bytes(a.type);
    if (bytes == 0 || a.count > 1 << 20) return s.reject("BackendBuild has a wrong attribute");
    const auto raw = piece(d, a.count * bytes);
    if (!d.ok()) return s.reject("BackendBuild is cut short");
    if (!elements(s, a, raw, &values))
      return s.reject("BackendBuild names what the session does not have");
    if (status == kSuccess)
      status = b.set(made, static_cast<int32_t>(a.name), static_cast<int32_t>(a.type),
                     static_cast<int64_t>(a.count), a.count ? values.data() : nullptr);
  }
  if (status == kSuccess) status = b.finalize(made);
  if (status == kSuccess)
    Libraries::get().objects.add(request.id, {ids::k_cudnn_backend, made});
  else if (made)
    b.destroy(made);
  answer(c, status, "cudnnBackendFinalize", reply);
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
  Descriptor from;
  if (!object(request.id, ids::k_cudnn_backend, &from))
    return s.reject("BackendGet names a descriptor that the session does not have");
  const auto raw = piece(d, uint64_t{request.targets} * 8);
  if (!d.ok()) return s.reject("BackendGet is cut short");
  if (!s.use_context(c.header.context)) return;
  const Backend& b = Backend::get_all();
  int64_t status = b.whole ? kSuccess : kNotSupported;
  std::vector<uint64_t> targets(request.targets);
  if (!raw.empty()) std::memcpy(targets.data(), raw.data(), raw.size());
  std::vector<std::byte> values(std::max<size_t>(room, 8));
  for (uint32_t i = 0; i < request.targets && status == kSuccess; ++i) {
    Descriptor made = nullptr;
    status = b.create(static_cast<int32_t>(request.target_type), &made);
    if (status != kSuccess) break;
    if (!Libraries::get().objects.add(targets[i], {ids::k_cudnn_backend, made})) {
      b.destroy(made);
      return s.reject("BackendGet mints an id that is taken or none");
    }
    std::memcpy(values.data() + size_t{i} * 8, &made, 8);
  }
  int64_t count = 0;
  if (status == kSuccess)
    status = b.get(from, static_cast<int32_t>(request.name), static_cast<int32_t>(request.type),
                   request.requested, &count, room ? values.data() : nullptr);
  if (status != kSuccess && objects) {
    // The client gives its ids back to nobody: nothing of them may stay.
    for (const uint64_t id : targets) {
      LibraryObject made;
      if (Libraries::get().objects.take(id, &made)) b.destroy(made.pointer);
    }
  }
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
  Libraries::get().objects.take(request.id, &gone);
  if (s.use_context(c.header.context)) Backend::get_all().destroy(gone.pointer);
}

void execute(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& request = d.fixed<wire::BackendExecute>();
  if (!d.ok() || request.pointers > kMost) return s.reject("BackendExecute makes no sense");
  LibraryObject handle;
  Descriptor plan;
  if (!Libraries::get().objects.get(request.handle, &handle) || handle.type != ids::k_cudnn ||
      !object(request.plan, ids::k_cudnn_backend, &plan))
    return s.reject("BackendExecute names what the session does not have");
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
  for (uint64_t& p : pointers) {
    if (p & wire::kCarried) {
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
  int64_t status = b.create(kVariantPack, &pack);
  if (status == kSuccess) status = b.set(pack, kPackPointers, kPointer, n, pointers.data());
  if (status == kSuccess) status = b.set(pack, kPackUniqueIds, kInt64, n, ids_of.data());
  if (status == kSuccess) status = b.set(pack, kPackWorkspace, kPointer, 1, &request.workspace);
  if (status == kSuccess) status = b.finalize(pack);
  if (status == kSuccess) {
    v->gate->pass();
    status = b.execute(handle.pointer, plan, pack);
    v->gate->issued(handle.stream);
  }
  if (pack) b.destroy(pack);
  answer(c, status, "cudnnBackendExecute", reply);
}

}  // namespace

void add_cudnn_backend_handlers(DispatchTable& t) {
  using enum Handler::Answered;
  t[ids::id_sluiceCudnnBackendBuild] = {"CudnnBackendBuild", build, kEither, true};
  t[ids::id_sluiceCudnnBackendGet] = {"CudnnBackendGet", get, kOnly, true};
  t[ids::id_sluiceCudnnBackendDestroy] = {"CudnnBackendDestroy", destroy, kNever, false};
  t[ids::id_sluiceCudnnBackendExecute] = {"CudnnBackendExecute", execute, kEither, true};
}

}  // namespace sluice::worker
