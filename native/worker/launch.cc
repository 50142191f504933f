// SPDX-License-Identifier: Apache-2.0
// Kernel launches, through the gate.
#include <cstring>

#include "worker/attribute.h"
#include "worker/dispatch.h"

namespace sluice::worker {

namespace {

constexpr uint32_t kMaxParamBytes = 32764;
constexpr uint32_t kMaxAttributes = 64;

// How long it takes depends on the function and on how much of it there is.
Gate::Work work_of(const wire::Launch& l) {
  uint64_t kind = l.function;
  for (const uint32_t n : {l.grid[0], l.grid[1], l.grid[2], l.block[0]})
    kind = (kind ^ n) * 0x100000001b3;
  return {kind};
}

void launch(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& l = d.fixed<wire::Launch>();
  if (!d.ok() || l.param_bytes > kMaxParamBytes || l.attribute_count > kMaxAttributes)
    return s.reject("Launch makes no sense");
  const auto params = d.bytes(l.param_bytes);
  const auto raw = d.bytes(size_t{l.attribute_count} * sizeof(wire::LaunchAttribute));
  if (!d.ok()) return s.reject("Launch is cut short");
  FunctionObject f;
  if (!s.objects.functions.get(l.function, &f) && !s.objects.kernels.get(l.function, &f))
    return s.reject("Launch names a function that the session does not have");
  // The driver reads as many bytes as the function takes, whatever it is told.
  if (l.param_bytes < f.param_bytes)
    return s.reject("Launch brings fewer parameters than the function takes");
  CUstream stream;
  Vgpu* v;  // the stream's own: what the frame says is the client's word
  if (!s.stream(l.stream, c.header.context, &stream, &v)) return;
  // A client of ours has asked, and told its program if there was none.
  if (!take_local_memory(s, *v, f.local_bytes)) {
    reply.status = CUDA_ERROR_OUT_OF_MEMORY;
    return;
  }
  CUlaunchAttribute attributes[kMaxAttributes];
  for (uint32_t i = 0; i < l.attribute_count; ++i) {
    wire::LaunchAttribute a;
    std::memcpy(&a, raw.data() + size_t{i} * sizeof a, sizeof a);
    if (!take_attribute(s, a, "Launch", &attributes[i])) return;
  }
  Gate::Passage passage;
  if (!capturing(s, stream)) passage = v->gate->pass(stream, work_of(l));
  size_t bytes = l.param_bytes;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<std::byte*>(params.data()),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  if (l.attribute_count == 0) {
    reply.status =
        s.driver.cuLaunchKernel(f.function, l.grid[0], l.grid[1], l.grid[2], l.block[0], l.block[1],
                                l.block[2], l.shared_bytes, stream, nullptr, extra);
  } else {
    CUlaunchConfig config{};
    config.gridDimX = l.grid[0], config.gridDimY = l.grid[1], config.gridDimZ = l.grid[2];
    config.blockDimX = l.block[0], config.blockDimY = l.block[1], config.blockDimZ = l.block[2];
    config.sharedMemBytes = l.shared_bytes;
    config.hStream = stream;
    config.attrs = attributes;
    config.numAttrs = l.attribute_count;
    reply.status = s.driver.cuLaunchKernelEx(&config, f.function, nullptr, extra);
  }
  if (reply.status != CUDA_SUCCESS || capturing(s, stream)) return;
  passage.issued();
  if (f.settled) return;
  settle_local_memory(s, *v);
  f.settled = true;
  if (!s.objects.functions.set(l.function, f)) s.objects.kernels.set(l.function, f);
}

}  // namespace

void add_launch_handlers(DispatchTable& t) { t[wire::kLaunch].run = launch; }

}  // namespace sluice::worker
