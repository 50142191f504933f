// SPDX-License-Identifier: Apache-2.0
// Which atomic operations the link from a vGPU to the host, or to another vGPU, carries.
#include "wire/generated.h"
#include "worker/dispatch.h"

namespace sluice::worker {

namespace {

constexpr uint32_t kHost = ~0u;

// Two vGPUs of one GPU: no link lies between them.
unsigned of_one_gpu(CUatomicOperation operation) {
  constexpr unsigned kSizes = CU_ATOMIC_CAPABILITY_SCALAR_32 | CU_ATOMIC_CAPABILITY_SCALAR_64;
  constexpr unsigned kSigns = CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED;
  switch (operation) {
    case CU_ATOMIC_OPERATION_EXCHANGE:
    case CU_ATOMIC_OPERATION_CAS:
      return kSizes;
    case CU_ATOMIC_OPERATION_FLOAT_ADD:
    case CU_ATOMIC_OPERATION_FLOAT_MIN:
    case CU_ATOMIC_OPERATION_FLOAT_MAX:
      return kSizes | CU_ATOMIC_CAPABILITY_REDUCTION;
    default:
      return kSizes | kSigns | CU_ATOMIC_CAPABILITY_REDUCTION;
  }
}

void capabilities(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::SluiceAtomicCapabilities>();
  if (!d.ok() || m.operation >= CU_ATOMIC_OPERATION_MAX || m.from >= s.vgpus.size() ||
      (m.to != kHost && m.to >= s.vgpus.size()))
    return s.reject("AtomicCapabilities makes no sense");
  Vgpu* v = s.use(m.from);
  if (!v) return;
  const auto operation = static_cast<CUatomicOperation>(m.operation);
  wire::SluiceAtomicCapabilitiesReply answer{};
  if (m.to == kHost) {
    reply.status = call(s.driver.cuDeviceGetHostAtomicCapabilities, &answer.capabilities,
                        &operation, 1u, v->gpu->ordinal);
  } else if (s.vgpus[m.to]->gpu == v->gpu) {
    answer.capabilities = of_one_gpu(operation);
  } else {
    reply.status = call(s.driver.cuDeviceGetP2PAtomicCapabilities, &answer.capabilities, &operation,
                        1u, v->gpu->ordinal, s.vgpus[m.to]->gpu->ordinal);
  }
  if (reply.status == CUDA_SUCCESS) reply.put(answer);
}

}  // namespace

void add_atomics_handlers(DispatchTable& t) {
  t[wire::kSluiceAtomicCapabilities].run = capabilities;
}

}  // namespace sluice::worker
