// SPDX-License-Identifier: Apache-2.0
#include "wire/bodies/cudnn_ctc.h"

#include "client/core/enter.h"
#include "client/core/session.h"
#include "client/library/cudnn_backend.h"
#include "client/library/object.h"
#include "client/objects/device.h"
#include "client/profile/driver_calls.h"
#include "library/objects.h"

using namespace sluice::client;
using namespace sluice::client::library;
namespace wire = sluice::wire;
namespace ids = sluice::library;

namespace {

constexpr int32_t kBadParam = 2000, kNotInitialized = 1001, kExecutionFailed = 5000;

bool is(uint64_t id, uint8_t type) {
  const Object* o = State::get().objects.find(id);
  return o && o->type == type;
}

}  // namespace

static int32_t run(const wire::CtcLoss* call, const int32_t* labels, const int32_t* label_lengths,
                   const int32_t* input_lengths, uint64_t* workspace_bytes) {
  Session* s = Session::get();
  Device* device;
  if (!s) return kNotInitialized;
  if (enter(&s, &device) != CUDA_SUCCESS) return kExecutionFailed;
  if (call->batch > wire::kMaxCtcBatch || !label_lengths || !input_lengths) return kBadParam;
  wire::CtcLoss request = *call;
  uint64_t count = 0;
  for (uint32_t i = 0; i < call->batch; ++i) {
    if (label_lengths[i] < 0) return kBadParam;
    count += static_cast<uint32_t>(label_lengths[i]);
  }
  if (count > wire::kMaxCtcLabels || (count > 0 && !labels)) return kBadParam;
  request.labels = static_cast<uint32_t>(count);
  Stream* work = nullptr;
  {
    State& state = State::get();
    std::lock_guard lock(state.mutex);
    if (!is(request.handle, ids::k_cudnn) || !is(request.probs_descriptor, ids::k_cudnn_tensor) ||
        !is(request.loss_descriptor, ids::k_cudnn_ctc_loss) ||
        (request.gradients_descriptor && !is(request.gradients_descriptor, ids::k_cudnn_tensor)))
      return kBadParam;
    for (const uint64_t id : {request.handle, request.probs_descriptor, request.loss_descriptor,
                              request.gradients_descriptor})
      if (const Object* o = state.objects.find(id); o && !is_near(s, *o, *device)) return kBadParam;
    const uint64_t stream = state.objects.find(request.handle)->stream;
    if (stream_for_work(s, device, reinterpret_cast<CUstream>(stream), &work) != CUDA_SUCCESS)
      return kBadParam;
    for (const uint64_t id :
         {request.handle, request.probs_descriptor, request.gradients_descriptor})
      if (Object* o = state.objects.find(id)) o->bring_up_to_date(s, id);
  }
  std::vector<int32_t> numbers(labels, labels + count);
  numbers.insert(numbers.end(), label_lengths, label_lengths + call->batch);
  numbers.insert(numbers.end(), input_lengths, input_lengths + call->batch);
  wire::CtcReply reply{};
  size_t got = 0;
  const CUresult e =
      s->exchange(ids::id_sluiceCudnnCtcLoss, request, std::as_bytes(std::span(numbers)),
                  {reinterpret_cast<std::byte*>(&reply), sizeof reply}, &got,
                  request.only_size ? nullptr : work, device->context());
  if (e != CUDA_SUCCESS || got < sizeof reply) return kExecutionFailed;
  if (workspace_bytes) *workspace_bytes = reply.workspace_bytes;
  return static_cast<int32_t>(reply.status);
}

extern "C" int32_t sluice_library_ctc(const wire::CtcLoss* call, const int32_t* labels,
                                      const int32_t* label_lengths, const int32_t* input_lengths,
                                      uint64_t* workspace_bytes) {
  return profiled_library_call("cudnnCTCLoss", [&] {
    return run(call, labels, label_lengths, input_lengths, workspace_bytes);
  });
}
