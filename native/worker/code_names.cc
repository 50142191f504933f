// SPDX-License-Identifier: Apache-2.0
// What is in a module or library: the names of its functions or kernels, a piece at a time.
#include <algorithm>
#include <cstring>

#include "wire/bodies/green_contexts.h"
#include "wire/generated.h"
#include "worker/dispatch.h"

namespace sluice::worker {

namespace {

constexpr unsigned kMaxNames = 1 << 16;

void names(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::SluiceCodeNames>();
  if (!d.ok() || m.kind > 1) return s.reject("CodeNames makes no sense");
  const bool module = m.kind == static_cast<uint32_t>(wire::CodeKind::kModule);
  CodeObject code;
  if (!(module ? s.objects.modules : s.objects.libraries).get(m.code, &code))
    return s.reject("CodeNames names code that the session does not have");
  if (!s.use(code.device)) return;
  unsigned total = 0;
  reply.status = module ? call(s.driver.cuModuleGetFunctionCount, &total, code.module)
                        : call(s.driver.cuLibraryGetKernelCount, &total, code.library);
  total = std::min(total, kMaxNames);
  std::vector<CUfunction> functions(module ? total : 0);
  std::vector<CUkernel> kernels(module ? 0 : total);
  if (reply.status == CUDA_SUCCESS)
    reply.status =
        module ? call(s.driver.cuModuleEnumerateFunctions, functions.data(), total, code.module)
               : call(s.driver.cuLibraryEnumerateKernels, kernels.data(), total, code.library);
  if (reply.status != CUDA_SUCCESS) return;
  std::vector<std::byte> text;
  wire::CodeNames head{total, 0};
  const size_t room = s.endpoint().reply_limit() - sizeof head;
  for (uint32_t i = m.first; i < total; ++i, ++head.count) {
    const char* name = nullptr;
    reply.status = module ? call(s.driver.cuFuncGetName, &name, functions[i])
                          : call(s.driver.cuKernelGetName, &name, kernels[i]);
    if (reply.status != CUDA_SUCCESS) return;
    const auto n = static_cast<uint32_t>(std::strlen(name));
    if (text.size() + sizeof n + n > room) break;
    const auto* length = reinterpret_cast<const std::byte*>(&n);
    const auto* at = reinterpret_cast<const std::byte*>(name);
    text.insert(text.end(), length, length + sizeof n);
    text.insert(text.end(), at, at + n);
  }
  reply.put(head);
  reply.put_bytes(text.data(), text.size());
}

}  // namespace

void add_code_names_handlers(DispatchTable& t) { t[wire::kSluiceCodeNames].run = names; }

}  // namespace sluice::worker
