// SPDX-License-Identifier: Apache-2.0
// Atomic operations over the links of a vGPU. The node's driver knows; each operation is asked for
// once.
#include "client/core/enter.h"
#include "client/core/session.h"
#include "client/objects/device.h"
#include "wire/generated.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

constexpr unsigned kHost = ~0u;

CUresult ask(Session* s, unsigned from, unsigned to, unsigned operation, unsigned* capabilities) {
  wire::SluiceAtomicCapabilities r{};
  r.from = from;
  r.to = to;
  r.operation = operation;
  const uint32_t context = from + 1;
  const Question question{wire::kSluiceAtomicCapabilities, context, r};
  wire::SluiceAtomicCapabilitiesReply reply{};
  uint64_t epoch;
  if (!s->answers.find(AnswerCache::kForEver, question, &reply, &epoch)) {
    size_t got = 0;
    const CUresult e =
        s->exchange(wire::kSluiceAtomicCapabilities, r, {},
                    {reinterpret_cast<std::byte*>(&reply), sizeof reply}, &got, nullptr, context);
    if (e != CUDA_SUCCESS) return e;
    if (got < sizeof reply) return CUDA_ERROR_UNKNOWN;
    s->answers.keep(AnswerCache::kForEver, question, reply, epoch);
  }
  *capabilities = reply.capabilities;
  return CUDA_SUCCESS;
}

CUresult answer(unsigned* capabilities, const CUatomicOperation* operations, unsigned count,
                CUdevice from, CUdevice to, bool host) {
  Session* s;
  if (const CUresult e = enter_query(&s); e != CUDA_SUCCESS) return e;
  const auto is_device = [&](CUdevice d) {
    return d >= 0 && static_cast<size_t>(d) < s->devices().size();
  };
  if (!is_device(from) || (!host && (!is_device(to) || from == to)))
    return CUDA_ERROR_INVALID_DEVICE;
  if (!capabilities || !operations || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i)
    if (static_cast<unsigned>(operations[i]) >= CU_ATOMIC_OPERATION_MAX)
      return CUDA_ERROR_INVALID_VALUE;
  const auto& attributes = s->devices()[static_cast<size_t>(from)]->record.attributes;
  // Where no host memory is shared, there is none that the GPU could work on.
  const bool none = host && !attributes[CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY];
  for (unsigned i = 0; i < count; ++i) {
    capabilities[i] = 0;
    if (none) continue;
    const CUresult e = ask(s, static_cast<unsigned>(from), host ? kHost : static_cast<unsigned>(to),
                           static_cast<unsigned>(operations[i]), &capabilities[i]);
    if (e != CUDA_SUCCESS) return e;
  }
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuDeviceGetHostAtomicCapabilities(unsigned int* capabilities,
                                           const CUatomicOperation* operations, unsigned int count,
                                           CUdevice device) {
  return answer(capabilities, operations, count, device, 0, true);
}

CUresult cuDeviceGetP2PAtomicCapabilities(unsigned int* capabilities,
                                          const CUatomicOperation* operations, unsigned int count,
                                          CUdevice from, CUdevice to) {
  return answer(capabilities, operations, count, from, to, false);
}

}  // extern "C"
