// SPDX-License-Identifier: Apache-2.0
// Modules and libraries: gathers the image's pieces, loads it, and answers what the client keeps
// about each function.
#include <algorithm>
#include <cstring>

#include "process/log.h"
#include "worker/code_charge.h"
#include "worker/device_output.h"
#include "worker/dispatch.h"
#include "worker/jit.h"

namespace sluice::worker {

namespace {

constexpr size_t kMaxParams = 4096;

void upload(Session& s, const Command& c, Reply&) {
  Decoder d(c.body);
  const auto& u = d.fixed<wire::Upload>();
  const auto data = d.bytes(u.bytes);
  if (!d.ok() || u.total == 0 || u.total > wire::kMaxBlobBytes || u.offset > u.total ||
      u.bytes > u.total - u.offset)
    return s.reject("Upload does not fit its blob");
  switch (s.uploads.add(u.blob, u.total, u.offset, data)) {
    case Uploads::Added::kYes:
      return;
    case Uploads::Added::kTooMany:
      return s.reject("Upload: too many images are under way");
    case Uploads::Added::kOutOfSequence:
      return s.reject("Upload: the pieces do not follow one another");
  }
}

// What a command asks to be loaded, in either way.
struct Wanted {
  uint64_t id;
  wire::CodeKind kind;
  JitOptions how;
};

// False after a rejection.
bool read_wanted(Session& s, Decoder& d, uint64_t id, wire::CodeKind kind, uint32_t option_count,
                 Wanted* w) {
  if (!d.ok() || option_count > kMaxJitOptions ||
      (kind != wire::CodeKind::kModule && kind != wire::CodeKind::kLibrary)) {
    s.reject("CodeLoad makes no sense");
    return false;
  }
  const auto pairs = d.bytes(size_t{option_count} * 8);
  auto& table = kind == wire::CodeKind::kModule ? s.objects.modules : s.objects.libraries;
  if (!d.ok() || !table.has_room(id)) {
    s.reject("CodeLoad mints no id that is free");
    return false;
  }
  w->id = id;
  w->kind = kind;
  w->how.add_numbers(pairs);
  return true;
}

// Why the driver is not asked.
bool refuse_image(const Examined& found, size_t bytes, Reply& reply) {
  reply.status = found.verdict == ImageVerdict::kBroken ? CUDA_ERROR_INVALID_IMAGE
                                                        : CUDA_ERROR_NO_BINARY_FOR_GPU;
  JitOptions().put_logs(reply);
  process::log_info("an image of " + std::to_string(bytes) + " bytes was not loaded: " + found.why);
  return false;
}

// Asks the driver something for which it may have to compile the code.
template <class F>
CUresult on_its_thread(Session& s, const CodeObject& code, uint32_t device, F&& ask) {
  if (!code.has_ptx) return ask();
  return on_compiler(s, device, ask);
}

// Whether the image is loaded now.
bool load_image(Session& s, uint32_t device, Wanted& w, std::vector<std::byte>& whole,
                Reply& reply) {
  Examined found = examine_image(whole);
  if (found.verdict != ImageVerdict::kUsable) return refuse_image(found, whole.size(), reply);
  if (!found.why.empty()) process::log_info(found.why);
  std::vector<std::byte>& image = found.instead.empty() ? whole : found.instead;
  image.push_back(std::byte{0});  // PTX text has to end
  CodeObject code;
  code.device = device;
  code.module_kind = w.kind == wire::CodeKind::kModule;
  CodeCharge charge(s, code, found.needs);
  if (!charge.taken()) {
    process::log_info("an image of " + std::to_string(whole.size()) + " bytes with variables of " +
                      std::to_string(found.needs.data_bytes) +
                      " bytes was not loaded: the vGPU has not so much memory left");
    reply.status = CUDA_ERROR_OUT_OF_MEMORY;
    return false;
  }
  JitOptions& load = w.how;
  load.add_logs();
  const auto count = static_cast<unsigned>(load.options.size());
  const bool module = code.module_kind;
  code.has_ptx = found.has_ptx;
  reply.status = on_its_thread(s, code, device, [&] {
    return module ? s.driver.cuModuleLoadDataEx(&code.module, image.data(), count,
                                                load.options.data(), load.values.data())
                  : s.driver.cuLibraryLoadData(&code.library, image.data(), load.options.data(),
                                               load.values.data(), count, nullptr, nullptr, 0);
  });
  load.put_logs(reply);
  if (reply.status != CUDA_SUCCESS) {
    process::log_info("an image of " + std::to_string(image.size()) +
                      " bytes was not loaded: " + s.driver.error_text(reply.status) +
                      (load.error[0] ? std::string(": ") + load.error : ""));
    return false;
  }
  DeviceOutput::instance().expect(image);
  charge.keep(&code);
  if ((module ? s.objects.modules : s.objects.libraries).add(w.id, code)) return true;
  // Two loads under way for one id: no client of ours does that.
  module ? s.driver.cuModuleUnload(code.module) : s.driver.cuLibraryUnload(code.library);
  give_code(s, code);
  s.reject("CodeLoad mints one id twice");
  return false;
}

void load(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& l = d.fixed<wire::CodeLoad>();
  Wanted w{};
  if (!read_wanted(s, d, l.id, l.kind, l.option_count, &w)) return;
  std::vector<std::byte> image;
  if (!take_blob(s, l.blob, &image, reply)) return;
  const size_t bytes = image.size();
  if (!s.use_context(c.header.context) || !load_image(s, c.header.context - 1, w, image, reply))
    return;
  image.resize(bytes);
  if (s.code_cache && image.size() > wire::kKeptCodeBytes) s.code_cache->offer(image);
}

void load_known(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& l = d.fixed<wire::CodeLoadKnown>();
  Wanted w{};
  if (!read_wanted(s, d, l.id, l.kind, l.option_count, &w)) return;
  if (l.bytes <= wire::kKeptCodeBytes || l.bytes > wire::kMaxBlobBytes)
    return s.reject("CodeLoadKnown names an image of a size that is not kept");
  if (!s.use_context(c.header.context)) return;
  wire::ContentHash hash;
  std::memcpy(hash.data(), l.hash, hash.size());
  std::vector<std::byte> image;
  if (s.code_cache && s.code_cache->find(hash, l.bytes, &image))
    load_image(s, c.header.context - 1, w, image, reply);
  else
    reply.status = CUDA_ERROR_NOT_FOUND;
}

// What a library has in the present context, as a module. The driver's, until the library goes.
void library_module(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::LibraryModule>();
  CodeObject library;
  if (!d.ok()) return s.reject("LibraryModule is cut short");
  if (!s.objects.libraries.get(m.library, &library))
    return s.reject("LibraryModule names a library that the session does not have");
  if (!s.objects.modules.has_room(m.id)) return s.reject("LibraryModule mints no id that is free");
  if (!s.use_context(c.header.context)) return;
  CodeObject module;
  module.device = c.header.context - 1;
  module.has_ptx = library.has_ptx;
  module.of = m.library;
  reply.status = on_its_thread(s, library, module.device, [&] {
    return s.driver.cuLibraryGetModule(&module.module, library.library);
  });
  if (reply.status == CUDA_SUCCESS && !s.objects.modules.add(m.id, module))
    s.reject("LibraryModule mints one id twice");
}

// What was found in code that goes.
void drop_what_it_has(Session& s, uint64_t id, bool module) {
  auto& table = module ? s.objects.functions : s.objects.kernels;
  std::vector<uint64_t> dead;
  table.for_each([&](uint64_t function, const FunctionObject& f) {
    if (f.code == id) dead.push_back(function);
  });
  FunctionObject gone;
  for (uint64_t function : dead) table.take(function, &gone);
  s.globals.drop_of(id);
}

void drop_modules_of(Session& s, uint64_t library) {
  std::vector<uint64_t> dead;
  s.objects.modules.for_each([&](uint64_t id, const CodeObject& module) {
    if (module.of == library) dead.push_back(id);
  });
  CodeObject gone;
  for (uint64_t id : dead) {
    drop_what_it_has(s, id, true);
    s.objects.modules.take(id, &gone);
  }
}

void unload(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& u = d.fixed<wire::CodeUnload>();
  if (!d.ok()) return s.reject("CodeUnload is cut short");
  const bool module = u.kind == wire::CodeKind::kModule;
  CodeObject code;
  if (module && s.objects.modules.get(u.id, &code) && code.of)
    return s.reject("CodeUnload names a module that goes with its library");
  if (!(module ? s.objects.modules : s.objects.libraries).take(u.id, &code))
    return s.reject("CodeUnload names code that the session does not have");
  if (!s.use(code.device)) return;
  drop_what_it_has(s, u.id, module);
  if (!module) drop_modules_of(s, u.id);
  reply.status =
      module ? s.driver.cuModuleUnload(code.module) : s.driver.cuLibraryUnload(code.library);
  give_code(s, code);
}

// The name behind a fixed part.
bool take_name(Session& s, Decoder& d, uint32_t bytes, std::string* name) {
  const auto text = d.bytes(bytes);
  if (!d.ok() || bytes == 0 || bytes > wire::kMaxNameBytes ||
      std::memchr(text.data(), 0, text.size())) {
    s.reject("a name is cut short, empty, too long or holds a NUL");
    return false;
  }
  name->assign(reinterpret_cast<const char*>(text.data()), text.size());
  return true;
}

void read_attributes(Session& s, const Vgpu& v, const FunctionObject& f,
                     wire::FunctionRecord* record) {
  for (uint32_t a = 0; a < wire::kFunctionAttributes && a < CU_FUNC_ATTRIBUTE_MAX; ++a) {
    int value = 0;
    const auto attribute = static_cast<CUfunction_attribute>(a);
    const CUresult e =
        f.kernel ? s.driver.cuKernelGetAttribute(&value, attribute, f.kernel, v.gpu->ordinal)
                 : s.driver.cuFuncGetAttribute(&value, attribute, f.function);
    if (e != CUDA_SUCCESS) continue;
    record->attributes[a] = value;
    record->attribute_mask |= 1u << a;
  }
}

void function_get(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto g = d.fixed<wire::FunctionGet>();
  std::string name;
  if (!d.ok()) return s.reject("FunctionGet is cut short");
  if (!take_name(s, d, g.name_bytes, &name)) return;
  const bool module = g.kind == wire::CodeKind::kModule;
  auto& table = module ? s.objects.functions : s.objects.kernels;
  CodeObject code;
  if (!(module ? s.objects.modules : s.objects.libraries).get(g.code, &code))
    return s.reject("FunctionGet names code that the session does not have");
  if (!table.has_room(g.id)) return s.reject("FunctionGet mints no id that is free");
  Vgpu* v = s.use_context(c.header.context);
  if (!v) return;
  FunctionObject f;
  f.code = g.code;
  wire::FunctionRecord record{};
  reply.status = on_its_thread(s, code, c.header.context - 1, [&] {
    const CUresult e = module ? s.driver.cuModuleGetFunction(&f.function, code.module, name.c_str())
                              : s.driver.cuLibraryGetKernel(&f.kernel, code.library, name.c_str());
    if (e == CUDA_SUCCESS) read_attributes(s, *v, f, &record);  // which compiles a library's code
    return e;
  });
  if (reply.status != CUDA_SUCCESS) return;
  if (!module) f.function = reinterpret_cast<CUfunction>(f.kernel);  // as CUDA allows for launches
  std::vector<std::pair<uint32_t, uint32_t>> params;
  for (size_t i = 0; i < kMaxParams; ++i) {
    size_t offset = 0, size = 0;
    const CUresult e = module ? s.driver.cuFuncGetParamInfo(f.function, i, &offset, &size)
                              : s.driver.cuKernelGetParamInfo(f.kernel, i, &offset, &size);
    if (e != CUDA_SUCCESS) break;
    params.emplace_back(static_cast<uint32_t>(offset), static_cast<uint32_t>(size));
    record.param_bytes = std::max(record.param_bytes, static_cast<uint32_t>(offset + size));
  }
  record.param_count = static_cast<uint32_t>(params.size());
  if (sizeof record + params.size() * 8 > s.endpoint().reply_limit()) {
    reply.status = CUDA_ERROR_NOT_SUPPORTED;
    process::log_error("the function " + name + " has " + std::to_string(params.size()) +
                       " parameters, more than a reply holds");
    return;
  }
  f.param_bytes = record.param_bytes;
  f.local_bytes =
      static_cast<uint32_t>(std::max(record.attributes[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES], 0));
  table.add(g.id, f);
  reply.put(record);
  for (const auto& p : params) {
    reply.put(p.first);
    reply.put(p.second);
  }
}

void function_set(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& f = d.fixed<wire::FunctionSet>();
  FunctionObject o;
  if (!d.ok()) return s.reject("FunctionSet is cut short");
  const bool kernel = s.objects.kernels.get(f.function, &o);
  if (!kernel && !s.objects.functions.get(f.function, &o))
    return s.reject("FunctionSet names a function that the session does not have");
  if (f.attribute < 0 || f.attribute >= CU_FUNC_ATTRIBUTE_MAX)
    return s.reject("FunctionSet names an attribute that there is not");
  const Vgpu* v = s.use_context(c.header.context);
  if (!v) return;
  const auto a = static_cast<CUfunction_attribute>(f.attribute);
  reply.status = kernel ? s.driver.cuKernelSetAttribute(a, f.value, o.kernel, v->gpu->ordinal)
                        : s.driver.cuFuncSetAttribute(o.function, a, f.value);
}

void global_get(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto g = d.fixed<wire::GlobalGet>();
  std::string name;
  if (!d.ok()) return s.reject("GlobalGet is cut short");
  if (!take_name(s, d, g.name_bytes, &name)) return;
  const bool module = g.kind == wire::CodeKind::kModule;
  CodeObject code;
  if (!(module ? s.objects.modules : s.objects.libraries).get(g.code, &code))
    return s.reject("GlobalGet names code that the session does not have");
  if (!s.use_context(c.header.context)) return;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  reply.status = on_its_thread(s, code, c.header.context - 1, [&] {
    return module ? s.driver.cuModuleGetGlobal_v2(&address, &bytes, code.module, name.c_str())
                  : s.driver.cuLibraryGetGlobal(&address, &bytes, code.library, name.c_str());
  });
  unsigned managed = 0;
  if (reply.status == CUDA_SUCCESS) {
    s.driver.cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
  } else if (reply.status == CUDA_ERROR_NOT_FOUND && !module) {
    // A driver may keep those apart.
    reply.status = on_its_thread(s, code, c.header.context - 1, [&] {
      return s.driver.cuLibraryGetManaged(&address, &bytes, code.library, name.c_str());
    });
    managed = 1;
  }
  if (reply.status != CUDA_SUCCESS) return;
  s.globals.add(address, bytes, g.code);
  reply.put(wire::GlobalReply{address, bytes, managed, 0});
}

}  // namespace

void add_code_handlers(DispatchTable& t) {
  t[wire::kUpload].run = upload;
  t[wire::kCodeLoad].run = load;
  t[wire::kCodeLoadKnown].run = load_known;
  t[wire::kCodeUnload].run = unload;
  t[wire::kLibraryModule].run = library_module;
  t[wire::kFunctionGet].run = function_get;
  t[wire::kFunctionSet].run = function_set;
  t[wire::kGlobalGet].run = global_get;
}

}  // namespace sluice::worker
