// SPDX-License-Identifier: Apache-2.0
// Modules and libraries: gathers the image's pieces, loads it, and answers what the client keeps
// about each function.
#include <algorithm>
#include <cstring>

#include "worker/device_output.h"
#include "worker/dispatch.h"
#include "worker/jit.h"
#include "worker/log.h"

namespace sluice::worker {

namespace {

constexpr uint64_t kMaxPendingBytes = 4ull << 30;
constexpr size_t kMaxParams = 4096;

void upload(Session& s, const Command& c, Reply&) {
  Decoder d(c.body);
  const auto& u = d.fixed<wire::Upload>();
  const auto data = d.bytes(u.bytes);
  if (!d.ok() || u.total == 0 || u.total > wire::kMaxBlobBytes || u.offset > u.total ||
      u.bytes > u.total - u.offset)
    return s.reject("Upload does not fit its blob");
  std::lock_guard lock(s.blobs_mutex);
  auto [it, fresh] = s.blobs.try_emplace(u.blob);
  Session::Blob& blob = it->second;
  if (fresh) {
    if (u.total > kMaxPendingBytes - s.blob_bytes || s.blobs.size() > 64)
      return s.reject("Upload: too many images are under way");
    s.blob_bytes += u.total;
    blob.bytes.resize(u.total);
  }
  // Pieces come in order, so what has been received has no holes.
  if (blob.bytes.size() != u.total || u.offset != blob.received)
    return s.reject("Upload: the pieces do not follow one another");
  std::memcpy(blob.bytes.data() + u.offset, data.data(), data.size());
  blob.received += data.size();
}

// What a command asks to be loaded, in either way.
struct Wanted {
  uint64_t id;
  wire::CodeKind kind;
  JitOptions how;
};

// False after a rejection.
bool read_wish(Session& s, Decoder& d, uint64_t id, wire::CodeKind kind, uint32_t option_count,
               Wanted* w) {
  if (!d.ok() || option_count > kMaxJitOptions ||
      (kind != wire::CodeKind::kModule && kind != wire::CodeKind::kLibrary)) {
    s.reject("CodeLoad makes no sense");
    return false;
  }
  const auto pairs = d.bytes(size_t{option_count} * 8);
  auto& table = kind == wire::CodeKind::kModule ? s.modules : s.libraries;
  if (!d.ok() || !table.has_room(id)) {
    s.reject("CodeLoad mints no id that is free");
    return false;
  }
  w->id = id;
  w->kind = kind;
  w->how.add_numbers(pairs);
  return true;
}

void uncharge_code(Session& s, Vgpu& v, uint64_t bytes) {
  std::lock_guard lock(v.mutex);
  v.code_bytes -= bytes;
  if (s.ledger) s.ledger->give(GrantLedger::Kind::kCode, v.grant_index, bytes);
}

// Code is charged beside the slabs: what the vGPU has, once more at most, by all sessions of a job
// together. Before it is loaded, as several may be at it.
class Charge {
 public:
  Charge(Session& s, Vgpu& v, uint64_t bytes) : s_(s), v_(v), bytes_(bytes) {
    std::lock_guard lock(v_.mutex);
    taken_ = s.ledger
                 ? s.ledger->take(GrantLedger::Kind::kCode, v.grant_index, bytes, v.memory_bytes)
                 : bytes <= v_.memory_bytes - std::min(v_.memory_bytes, v_.code_bytes);
    if (taken_) v_.code_bytes += bytes;
  }
  ~Charge() {
    if (taken_ && !kept_) uncharge_code(s_, v_, bytes_);
  }
  bool taken() const { return taken_; }
  void keep() { kept_ = true; }

 private:
  Session& s_;
  Vgpu& v_;
  const uint64_t bytes_;
  bool taken_, kept_ = false;
};

// Whether the image is loaded now.
bool load_image(Session& s, Vgpu& v, uint32_t device, Wanted& w, std::vector<std::byte>& image,
                Reply& reply) {
  image.push_back(std::byte{0});  // PTX text has to end
  CodeObject code;
  code.bytes = image.size();
  code.device = device;
  Charge charge(s, v, code.bytes);
  if (!charge.taken()) {
    reply.status = CUDA_ERROR_OUT_OF_MEMORY;
    return false;
  }
  JitOptions& load = w.how;
  load.add_logs();
  const auto count = static_cast<unsigned>(load.options.size());
  const bool module = w.kind == wire::CodeKind::kModule;
  if (module)
    reply.status = s.driver.cuModuleLoadDataEx(&code.module, image.data(), count,
                                               load.options.data(), load.values.data());
  else
    reply.status = s.driver.cuLibraryLoadData(&code.library, image.data(), load.options.data(),
                                              load.values.data(), count, nullptr, nullptr, 0);
  load.put_logs(reply);
  if (reply.status != CUDA_SUCCESS) {
    log_info("an image of " + std::to_string(image.size()) +
             " bytes was not loaded: " + s.driver.error_text(reply.status) +
             (load.error[0] ? std::string(": ") + load.error : ""));
    return false;
  }
  DeviceOutput::instance().expect(image);
  if ((module ? s.modules : s.libraries).add(w.id, code)) {
    charge.keep();
    return true;
  }
  // Two loads under way for one id: no client of ours does that.
  module ? s.driver.cuModuleUnload(code.module) : s.driver.cuLibraryUnload(code.library);
  s.reject("CodeLoad mints one id twice");
  return false;
}

void load(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& l = d.fixed<wire::CodeLoad>();
  Wanted w{};
  if (!read_wish(s, d, l.id, l.kind, l.option_count, &w)) return;
  std::vector<std::byte> image;
  if (!take_blob(s, l.blob, &image)) return;
  Vgpu* v = s.use_context(c.header.context);
  if (!v || !load_image(s, *v, c.header.context - 1, w, image, reply)) return;
  image.pop_back();
  if (s.code_cache && image.size() > wire::kKeptCodeBytes) s.code_cache->offer(image);
}

void load_known(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& l = d.fixed<wire::CodeLoadKnown>();
  Wanted w{};
  if (!read_wish(s, d, l.id, l.kind, l.option_count, &w)) return;
  if (l.bytes <= wire::kKeptCodeBytes || l.bytes > wire::kMaxBlobBytes)
    return s.reject("CodeLoadKnown names an image of a size that is not kept");
  Vgpu* v = s.use_context(c.header.context);
  if (!v) return;
  wire::ContentHash hash;
  std::memcpy(hash.data(), l.hash, hash.size());
  std::vector<std::byte> image;
  if (s.code_cache && s.code_cache->find(hash, l.bytes, &image))
    load_image(s, *v, c.header.context - 1, w, image, reply);
  else
    reply.status = CUDA_ERROR_NOT_FOUND;
}

void unload(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& u = d.fixed<wire::CodeUnload>();
  if (!d.ok()) return s.reject("CodeUnload is cut short");
  const bool module = u.kind == wire::CodeKind::kModule;
  CodeObject code;
  if (!(module ? s.modules : s.libraries).take(u.id, &code))
    return s.reject("CodeUnload names code that the session does not have");
  Vgpu* v = s.use(code.device);
  if (!v) return;
  // Its functions die with it.
  auto& table = module ? s.functions : s.kernels;
  std::vector<uint64_t> dead;
  table.for_each([&](uint64_t id, const FunctionObject& f) {
    if (f.code == u.id) dead.push_back(id);
  });
  FunctionObject gone;
  for (uint64_t id : dead) table.take(id, &gone);
  s.drop_globals_of(u.id);
  reply.status =
      module ? s.driver.cuModuleUnload(code.module) : s.driver.cuLibraryUnload(code.library);
  uncharge_code(s, *v, code.bytes);
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

void function_get(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto g = d.fixed<wire::FunctionGet>();
  std::string name;
  if (!d.ok()) return s.reject("FunctionGet is cut short");
  if (!take_name(s, d, g.name_bytes, &name)) return;
  const bool module = g.kind == wire::CodeKind::kModule;
  auto& table = module ? s.functions : s.kernels;
  CodeObject code;
  if (!(module ? s.modules : s.libraries).get(g.code, &code))
    return s.reject("FunctionGet names code that the session does not have");
  if (!table.has_room(g.id)) return s.reject("FunctionGet mints no id that is free");
  Vgpu* v = s.use_context(c.header.context);
  if (!v) return;
  FunctionObject f;
  f.code = g.code;
  if (module) {
    reply.status = s.driver.cuModuleGetFunction(&f.function, code.module, name.c_str());
  } else {
    reply.status = s.driver.cuLibraryGetKernel(&f.kernel, code.library, name.c_str());
    f.function = reinterpret_cast<CUfunction>(f.kernel);  // as CUDA allows for launches
  }
  if (reply.status != CUDA_SUCCESS) return;
  wire::FunctionRecord record{};
  for (uint32_t a = 0; a < wire::kFunctionAttributes && a < CU_FUNC_ATTRIBUTE_MAX; ++a) {
    int value = 0;
    const auto attribute = static_cast<CUfunction_attribute>(a);
    const CUresult e =
        module ? s.driver.cuFuncGetAttribute(&value, attribute, f.function)
               : s.driver.cuKernelGetAttribute(&value, attribute, f.kernel, v->gpu->ordinal);
    if (e != CUDA_SUCCESS) continue;
    record.attributes[a] = value;
    record.attribute_mask |= 1u << a;
  }
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
    log_error("the function " + name + " has " + std::to_string(params.size()) +
              " parameters, more than a reply holds");
    return;
  }
  f.param_bytes = record.param_bytes;
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
  const bool kernel = s.kernels.get(f.function, &o);
  if (!kernel && !s.functions.get(f.function, &o))
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
  if (!(module ? s.modules : s.libraries).get(g.code, &code))
    return s.reject("GlobalGet names code that the session does not have");
  if (!s.use_context(c.header.context)) return;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  reply.status = module ? s.driver.cuModuleGetGlobal_v2(&address, &bytes, code.module, name.c_str())
                        : s.driver.cuLibraryGetGlobal(&address, &bytes, code.library, name.c_str());
  if (reply.status != CUDA_SUCCESS) return;
  s.add_global(address, bytes, g.code);
  reply.put(wire::GlobalReply{address, bytes});
}

}  // namespace

void add_code_handlers(DispatchTable& t) {
  using enum Handler::Answered;
  t[wire::kUpload] = {"Upload", upload, kNever, false};
  t[wire::kCodeLoad] = {"CodeLoad", load, kOnly, true};
  t[wire::kCodeLoadKnown] = {"CodeLoadKnown", load_known, kOnly, true};
  t[wire::kCodeUnload] = {"CodeUnload", unload, kNever, false};
  t[wire::kFunctionGet] = {"FunctionGet", function_get, kOnly, true};
  t[wire::kFunctionSet] = {"FunctionSet", function_set, kEither, false};
  t[wire::kGlobalGet] = {"GlobalGet", global_get, kOnly, false};
}

}  // namespace sluice::worker
