// SPDX-License-Identifier: Apache-2.0
// All functions of a module, all kernels of a library: the worker knows their names, and each is
// then looked up as if it had been asked for by name.
#include <algorithm>
#include <cstring>

#include "client/core/enter.h"
#include "client/driver/module.h"
#include "client/objects/device.h"
#include "wire/bodies/green_contexts.h"
#include "wire/generated.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

CUresult names_of(Session* s, const Device* d, wire::CodeKind kind, uint64_t code, size_t most,
                  std::vector<std::string>* names) {
  std::vector<std::byte> sink(64 << 10);
  while (names->size() < most) {
    wire::SluiceCodeNames r{};
    r.code = code;
    r.kind = static_cast<uint32_t>(kind);
    r.first = static_cast<uint32_t>(names->size());
    size_t got = 0;
    const CUresult e =
        s->exchange(wire::kSluiceCodeNames, r, {}, sink, &got, nullptr, d->context());
    if (e != CUDA_SUCCESS) return e;
    got = std::min(got, sink.size());
    wire::CodeNames head{};
    if (got < sizeof head) return CUDA_ERROR_UNKNOWN;
    std::memcpy(&head, sink.data(), sizeof head);
    size_t at = sizeof head;
    for (uint32_t i = 0; i < head.count; ++i) {
      uint32_t n = 0;
      if (got - at < sizeof n) return CUDA_ERROR_UNKNOWN;
      std::memcpy(&n, sink.data() + at, sizeof n);
      at += sizeof n;
      if (got - at < n) return CUDA_ERROR_UNKNOWN;
      names->emplace_back(reinterpret_cast<const char*>(sink.data() + at), n);
      at += n;
    }
    if (names->size() >= head.total || head.count == 0) break;
  }
  if (names->size() > most) names->resize(most);
  return CUDA_SUCCESS;
}

template <class Handle>
CUresult enumerate(Session* s, Device* d, wire::CodeKind kind, uint64_t code, Handle* handles,
                   unsigned count) {
  if (!handles || count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::string> names;
  if (const CUresult e = names_of(s, d, kind, code, count, &names); e != CUDA_SUCCESS) return e;
  for (size_t i = 0; i < names.size(); ++i) {
    uint64_t id;
    const CUresult e = get_function(s, d, kind, code, names[i].c_str(), &id);
    if (e != CUDA_SUCCESS) return e;
    handles[i] = reinterpret_cast<Handle>(id);
  }
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int count, CUmodule module) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  const Code* code = s->modules.find(module);
  if (!code) return CUDA_ERROR_INVALID_HANDLE;
  return enumerate(s, code->device, wire::CodeKind::kModule, reinterpret_cast<uint64_t>(module),
                   functions, count);
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int count, CUlibrary library) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!s->libraries.find(library)) return CUDA_ERROR_INVALID_HANDLE;
  return enumerate(s, s->devices()[0].get(), wire::CodeKind::kLibrary,
                   reinterpret_cast<uint64_t>(library), kernels, count);
}

}  // extern "C"
