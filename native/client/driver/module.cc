// SPDX-License-Identifier: Apache-2.0
// Modules, libraries, and the functions, kernels and globals in them. The image travels in pieces,
// then one round trip loads it; a function's attributes and parameter layout come with its first
// lookup and are answered locally from then on.
#include "client/driver/module.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "client/core/enter.h"
#include "client/driver/fat_binary.h"
#include "client/driver/image_size.h"
#include "client/driver/jit.h"
#include "client/objects/device.h"
#include "wire/content_hash.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace sluice::client {

namespace {

std::mutex g_mutex;  // the lists inside Code

std::span<const std::byte> as_bytes(const void* p, size_t n) {
  return {static_cast<const std::byte*>(p), n};
}

// What has to travel of an image: a module is for one GPU, a library for all of the session's.
std::span<const std::byte> parts_to_send(Session* s, const Device* d, wire::CodeKind kind,
                                         std::span<const std::byte> image, const JitOptions& jit,
                                         std::vector<std::byte>* room) {
  // The program has a say in the choice.
  for (size_t i = 0; i < jit.pairs.size(); i += 2)
    if (jit.pairs[i] == CU_JIT_TARGET || jit.pairs[i] == CU_JIT_FALLBACK_STRATEGY) return image;
  std::vector<ComputeCapability> gpus;
  for (const auto& device : s->devices()) {
    if (kind == wire::CodeKind::kModule && device.get() != d) continue;
    const auto& a = device->record.attributes;
    gpus.push_back({static_cast<uint32_t>(a[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR]),
                    static_cast<uint32_t>(a[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR])});
  }
  return parts_for(image, gpus, s->record().software_gpu != 0, room);
}

CUresult load(Session* s, Device* d, wire::CodeKind kind, uint64_t id, const void* image,
              unsigned count, const CUjit_option* options, void** values) {
  const void* start = image;
  const size_t whole = image_size(image, &start);
  if (whole == 0 || whole > wire::kMaxBlobBytes) return CUDA_ERROR_INVALID_IMAGE;
  JitOptions jit(count, options, values);
  std::vector<std::byte> room;
  const auto parts = parts_to_send(s, d, kind, as_bytes(start, whole), jit, &room);
  const auto pairs = as_bytes(jit.pairs.data(), jit.pairs.size() * 4);
  const auto options_sent = static_cast<uint32_t>(jit.pairs.size() / 2);
  std::vector<std::byte> reply(4096);
  size_t got = 0;
  CUresult e = CUDA_ERROR_NOT_FOUND;
  if (s->node_keeps_code && parts.size() > wire::kKeptCodeBytes) {
    wire::CodeLoadKnown known{id, parts.size(), {}, kind, options_sent};
    const wire::ContentHash hash = wire::content_hash(parts);
    std::memcpy(known.hash, hash.data(), hash.size());
    e = s->exchange(wire::kCodeLoadKnown, known, pairs, reply, &got, nullptr, d->context());
  }
  if (e == CUDA_ERROR_NOT_FOUND && got == 0) {
    uint64_t blob;
    if (e = upload(s, *d, parts.data(), parts.size(), &blob); e != CUDA_SUCCESS) return e;
    const wire::CodeLoad c{id, blob, kind, options_sent};
    e = s->exchange(wire::kCodeLoad, c, pairs, reply, &got, nullptr, d->context());
  }
  jit.logs.give({reply.data(), std::min(got, reply.size())});
  return e;
}

}  // namespace

CUresult get_function(Session* s, Device* d, wire::CodeKind kind, uint64_t code_id,
                      const char* name, uint64_t* handle) {
  auto& codes = kind == wire::CodeKind::kModule ? s->modules : s->libraries;
  auto& table = kind == wire::CodeKind::kModule ? s->functions : s->kernels;
  {
    std::lock_guard lock(g_mutex);
    Code* code = codes.find(code_id);
    if (!code) return CUDA_ERROR_INVALID_HANDLE;
    if (code->device && code->device->place.node != d->place.node) d = code->device;
    for (const auto& f : code->functions) {
      if (f.name != name) continue;
      *handle = f.handle;
      return CUDA_SUCCESS;
    }
  }
  uint64_t id;
  Function* f = table.create(&id);
  if (!f) return CUDA_ERROR_OUT_OF_MEMORY;
  const wire::FunctionGet g{id, code_id, kind, static_cast<uint32_t>(std::strlen(name))};
  std::vector<std::byte> reply(s->marks() ? sluice::channel::kLaneBytes : 64 << 10);
  size_t got = 0;
  // A kernel is every node's; what is known of it, the first one says.
  const auto ask = [&](const Device& at, std::span<std::byte> sink, size_t* bytes) {
    return s->exchange(wire::kFunctionGet, g, as_bytes(name, g.name_bytes), sink, bytes, nullptr,
                       at.context());
  };
  const bool everywhere = kind == wire::CodeKind::kLibrary && s->spans_nodes();
  const auto nodes = everywhere ? s->one_of_each_node() : std::vector<Device*>();
  CUresult e = ask(nodes.empty() ? *d : *nodes[0], reply, &got);
  for (size_t i = 1; i < nodes.size() && e == CUDA_SUCCESS; ++i) e = ask(*nodes[i], {}, nullptr);
  if (e == CUDA_SUCCESS) {
    std::memcpy(&f->record, reply.data(), sizeof f->record);
    const size_t pairs = f->record.param_count;
    if (got < sizeof f->record + pairs * 8 || pairs > 4096) {
      e = CUDA_ERROR_UNKNOWN;
    } else {
      f->params.resize(pairs);
      for (size_t i = 0; i < pairs; ++i)
        std::memcpy(&f->params[i], reply.data() + sizeof f->record + i * 8, 8);
      f->device = kind == wire::CodeKind::kModule ? d : nullptr;
      f->code = code_id;
      f->name = name;
    }
  }
  if (e != CUDA_SUCCESS) {
    table.destroy(id);
    return e;
  }
  std::lock_guard lock(g_mutex);
  if (Code* code = codes.find(code_id)) code->functions.push_back({name, id});
  *handle = id;
  return CUDA_SUCCESS;
}

CUresult get_global(Session* s, Device* d, wire::CodeKind kind, uint64_t code_id, const char* name,
                    CUdeviceptr* address, size_t* bytes) {
  auto& codes = kind == wire::CodeKind::kModule ? s->modules : s->libraries;
  {
    std::lock_guard lock(g_mutex);
    Code* code = codes.find(code_id);
    if (!code) return CUDA_ERROR_INVALID_HANDLE;
    if (code->device && code->device->place.node != d->place.node) d = code->device;
    for (const auto& g : code->globals) {
      if (g.name != name || g.node != d->place.node) continue;
      if (address) *address = g.address;
      if (bytes) *bytes = g.bytes;
      return CUDA_SUCCESS;
    }
  }
  const wire::GlobalGet g{code_id, kind, static_cast<uint32_t>(std::strlen(name))};
  wire::GlobalReply reply{};
  const CUresult e = s->exchange(wire::kGlobalGet, g, as_bytes(name, g.name_bytes),
                                 {reinterpret_cast<std::byte*>(&reply), sizeof reply}, nullptr,
                                 nullptr, d->context());
  if (e != CUDA_SUCCESS) return e;
  s->module_globals.add({reply.address, reply.bytes, d, code_id, d->place.node});
  if (reply.managed)
    if (const CUresult failed = s->managed.add_variable(d, reply.address, reply.bytes, code_id);
        failed != CUDA_SUCCESS)
      return failed;
  if (address) *address = reply.address;
  if (bytes) *bytes = reply.bytes;
  std::lock_guard lock(g_mutex);
  if (Code* code = codes.find(code_id))
    code->globals.push_back({name, reply.address, reply.bytes, d->place.node});
  return CUDA_SUCCESS;
}

namespace {

// The handles of code that is being unloaded: nobody finds them any more.
struct Retired {
  std::vector<Code::Named> functions;
  std::vector<uint64_t> modules;
};

bool retire(Session* s, wire::CodeKind kind, uint64_t id, Retired* gone) {
  auto& codes = kind == wire::CodeKind::kModule ? s->modules : s->libraries;
  auto& table = kind == wire::CodeKind::kModule ? s->functions : s->kernels;
  {
    std::lock_guard lock(g_mutex);
    Code* code = codes.find(id);
    if (!code || !codes.retire(id)) return false;
    gone->functions.swap(code->functions);
    gone->modules.swap(code->modules);
  }
  s->module_globals.drop_of(id);
  s->managed.drop_variables(id);
  for (const auto& f : gone->functions) table.retire(f.handle);
  return true;
}

// The worker has been told: their slots are others' from now on.
void recycle(Session* s, wire::CodeKind kind, uint64_t id, const Retired& gone) {
  auto& table = kind == wire::CodeKind::kModule ? s->functions : s->kernels;
  for (const auto& f : gone.functions) table.recycle(f.handle);
  (kind == wire::CodeKind::kModule ? s->modules : s->libraries).recycle(id);
}

CUresult unload(Session* s, wire::CodeKind kind, uint64_t id, const std::vector<Device*>& from) {
  Retired gone;
  if (!retire(s, kind, id, &gone)) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<Retired> of_modules(gone.modules.size());
  for (size_t i = 0; i < gone.modules.size(); ++i)
    retire(s, wire::CodeKind::kModule, gone.modules[i], &of_modules[i]);
  CUresult e = CUDA_SUCCESS;
  for (const Device* d : from)
    if (const CUresult told = s->tell(*d, wire::kCodeUnload, wire::CodeUnload{id, kind, 0});
        told != CUDA_SUCCESS)
      e = told;
  recycle(s, kind, id, gone);
  for (size_t i = 0; i < gone.modules.size(); ++i)
    recycle(s, wire::CodeKind::kModule, gone.modules[i], of_modules[i]);
  return e;
}

// Of a device; 0: nobody has asked for it yet. g_mutex held.
uint64_t module_of(Session* s, const Code& library, const Device* d) {
  for (const uint64_t id : library.modules)
    if (const Code* module = s->modules.find(id); module && module->device == d) return id;
  return 0;
}

}  // namespace

std::vector<char> read_file(const char* path) {
  std::vector<char> all;
  if (FILE* f = std::fopen(path, "rb")) {
    char buffer[65536];
    for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, f)) > 0;)
      all.insert(all.end(), buffer, buffer + n);
    std::fclose(f);
    all.push_back(0);
  }
  return all;
}

}  // namespace sluice::client

extern "C" {

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count,
                            CUjit_option* options, void** values) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = s->captures.unsafe(); e != CUDA_SUCCESS) return e;
  if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
  uint64_t id;
  Code* code = s->modules.create(&id);
  if (!code) return CUDA_ERROR_OUT_OF_MEMORY;
  code->device = d;
  const CUresult e = load(s, d, wire::CodeKind::kModule, id, image, count, options, values);
  if (e == CUDA_SUCCESS)
    *module = reinterpret_cast<CUmodule>(id);
  else
    s->modules.destroy(id);
  return e;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return cuModuleLoadDataEx(module, image, 0, nullptr, nullptr);
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return cuModuleLoadDataEx(module, image, 0, nullptr, nullptr);
}

CUresult cuModuleLoad(CUmodule* module, const char* path) {
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<char> image = read_file(path);
  return image.empty() ? CUDA_ERROR_FILE_NOT_FOUND : cuModuleLoadData(module, image.data());
}

CUresult cuModuleUnload(CUmodule module) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  const auto id = reinterpret_cast<uint64_t>(module);
  const Code* code = s->modules.find(id);
  if (code && code->library) return CUDA_ERROR_NOT_PERMITTED;
  return unload(s, wire::CodeKind::kModule, id, {code && code->device ? code->device : d});
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!function || !name || !*name) return CUDA_ERROR_INVALID_VALUE;
  return get_function(s, d, wire::CodeKind::kModule, reinterpret_cast<uint64_t>(module), name,
                      reinterpret_cast<uint64_t*>(function));
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module,
                              const char* name) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!name || (!address && !bytes)) return CUDA_ERROR_INVALID_VALUE;
  return get_global(s, d, wire::CodeKind::kModule, reinterpret_cast<uint64_t>(module), name,
                    address, bytes);
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* options,
                           void** values, unsigned int count, CUlibraryOption* library_options,
                           void**, unsigned int library_count) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!library || !code) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; library_options && i < library_count; ++i)
    if (library_options[i] != CU_LIBRARY_BINARY_IS_PRESERVED) return CUDA_ERROR_NOT_SUPPORTED;
  uint64_t id;
  if (!s->libraries.create(&id)) return CUDA_ERROR_OUT_OF_MEMORY;
  // A library belongs to no context; each node's worker loads it under its first device's.
  std::vector<Device*> have;
  for (Device* d : s->one_of_each_node()) {
    const CUresult e = load(s, d, wire::CodeKind::kLibrary, id, code, count, options, values);
    if (e != CUDA_SUCCESS) {
      unload(s, wire::CodeKind::kLibrary, id, have);
      return e;
    }
    have.push_back(d);
  }
  *library = reinterpret_cast<CUlibrary>(id);
  return CUDA_SUCCESS;
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* options,
                               void** values, unsigned int count, CUlibraryOption* library_options,
                               void** library_values, unsigned int library_count) {
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<char> image = read_file(path);
  if (image.empty()) return CUDA_ERROR_FILE_NOT_FOUND;
  return cuLibraryLoadData(library, image.data(), options, values, count, library_options,
                           library_values, library_count);
}

CUresult cuLibraryUnload(CUlibrary library) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  return unload(s, wire::CodeKind::kLibrary, reinterpret_cast<uint64_t>(library),
                s->one_of_each_node());
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!kernel || !name || !*name) return CUDA_ERROR_INVALID_VALUE;
  return get_function(s, s->devices()[0].get(), wire::CodeKind::kLibrary,
                      reinterpret_cast<uint64_t>(library), name,
                      reinterpret_cast<uint64_t*>(kernel));
}

CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  static std::mutex one_at_a_time;  // it is the same one, whoever asks
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!module) return CUDA_ERROR_INVALID_VALUE;
  const auto of = reinterpret_cast<uint64_t>(library);
  std::lock_guard only(one_at_a_time);
  uint64_t id;
  {
    std::lock_guard lock(g_mutex);
    const Code* code = s->libraries.find(of);
    if (!code) return CUDA_ERROR_INVALID_HANDLE;
    if ((id = module_of(s, *code, d))) {
      *module = reinterpret_cast<CUmodule>(id);
      return CUDA_SUCCESS;
    }
  }
  Code* made = s->modules.create(&id);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  made->device = d;
  made->library = of;
  const CUresult e = s->exchange(wire::kLibraryModule, wire::LibraryModule{id, of}, {}, {}, nullptr,
                                 nullptr, d->context());
  if (e != CUDA_SUCCESS) {
    s->modules.destroy(id);
    return e;
  }
  std::lock_guard lock(g_mutex);
  if (Code* code = s->libraries.find(of)) code->modules.push_back(id);
  *module = reinterpret_cast<CUmodule>(id);
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                            const char* name) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!name || (!address && !bytes)) return CUDA_ERROR_INVALID_VALUE;
  return get_global(s, d, wire::CodeKind::kLibrary, reinterpret_cast<uint64_t>(library), name,
                    address, bytes);
}

CUresult cuLibraryGetManaged(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                             const char* name) {
  CUdeviceptr found = 0;
  size_t size = 0;
  if (!address && !bytes) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = cuLibraryGetGlobal(&found, &size, library, name); e != CUDA_SUCCESS)
    return e;
  Session* s = Session::get();
  if (!s->managed.any() || !s->managed.contains(found)) return CUDA_ERROR_NOT_FOUND;
  if (address) *address = found;
  if (bytes) *bytes = size;
  return CUDA_SUCCESS;
}

}  // extern "C"
