// SPDX-License-Identifier: Apache-2.0
// What of cuDNN no table says: the backend API, which libcuda.so.1 keeps, and texts of errors.
#include <cstdio>

#include "abi/cuda_driver.h"
#include "client/library/call.h"
#include "client/library/cudnn_backend.h"
#include "library/objects.h"

namespace {
constexpr int32_t kBadParam = 2000, kNotSupported = 3000;
}

SLUICE_PUBLIC int32_t cudnnGetStream(void* handle, CUstream* stream) {
  uint64_t value;
  if (!stream ||
      !sluice_library_stream(reinterpret_cast<uint64_t>(handle), sluice::library::k_cudnn, &value))
    return kBadParam;
  *stream = reinterpret_cast<CUstream>(value);
  return 0;
}

// cuDNN keeps the text for each thread; here the failing call ran on a thread of the node.
SLUICE_PUBLIC void cudnnGetLastErrorString(char* message, size_t room) {
  if (message && room)
    std::snprintf(message, room, "cuDNN runs on the GPU's node; the session's log there says more");
}

SLUICE_PUBLIC int32_t cudnnBackendCreateDescriptor(int32_t type, void** descriptor) {
  return sluice_library_backend_create(type, descriptor);
}
SLUICE_PUBLIC int32_t cudnnBackendDestroyDescriptor(void* descriptor) {
  return sluice_library_backend_destroy(descriptor);
}
SLUICE_PUBLIC int32_t cudnnBackendFinalize(void* descriptor) {
  return sluice_library_backend_finalize(descriptor);
}
SLUICE_PUBLIC int32_t cudnnBackendSetAttribute(void* descriptor, int32_t name, int32_t type,
                                               int64_t count, const void* elements) {
  return sluice_library_backend_set(descriptor, name, type, count, elements);
}
SLUICE_PUBLIC int32_t cudnnBackendGetAttribute(void* descriptor, int32_t name, int32_t type,
                                               int64_t requested, int64_t* count, void* elements) {
  return sluice_library_backend_get(descriptor, name, type, requested, count, elements);
}
SLUICE_PUBLIC int32_t cudnnBackendExecute(void* handle, void* plan, void* pack) {
  return sluice_library_backend_execute(handle, plan, pack);
}

extern "C" int32_t cudnnGetTensorNdDescriptor(void*, int32_t, void*, void*, void*, void*);

namespace {

uint64_t id(const void* p) { return reinterpret_cast<uint64_t>(p); }

// Probabilities are (time, batch, alphabet).
bool batch_of(void* descriptor, uint32_t* batch) {
  int32_t type, dims = 0, sizes[8] = {}, strides[8];
  if (cudnnGetTensorNdDescriptor(descriptor, 8, &type, &dims, sizes, strides) != 0 || dims < 3)
    return false;
  *batch = static_cast<uint32_t>(sizes[1]);
  return true;
}

}  // namespace

SLUICE_PUBLIC int32_t cudnnCTCLoss(void* handle, void* probs_descriptor, const void* probs,
                                   const int32_t* labels, const int32_t* label_lengths,
                                   const int32_t* input_lengths, void* costs,
                                   void* gradients_descriptor, void* gradients, int32_t algorithm,
                                   void* loss_descriptor, void* workspace, size_t bytes) {
  sluice::wire::CtcLoss call{id(handle),
                             id(probs_descriptor),
                             id(gradients_descriptor),
                             id(loss_descriptor),
                             id(probs),
                             id(costs),
                             id(gradients),
                             id(workspace),
                             bytes,
                             static_cast<uint32_t>(algorithm),
                             0,
                             0,
                             0};
  if (!batch_of(probs_descriptor, &call.batch)) return kBadParam;
  return sluice_library_ctc(&call, labels, label_lengths, input_lengths, nullptr);
}

SLUICE_PUBLIC int32_t cudnnGetCTCLossWorkspaceSize(void* handle, void* probs_descriptor,
                                                   void* gradients_descriptor,
                                                   const int32_t* labels,
                                                   const int32_t* label_lengths,
                                                   const int32_t* input_lengths, int32_t algorithm,
                                                   void* loss_descriptor, size_t* bytes) {
  sluice::wire::CtcLoss call{id(handle),
                             id(probs_descriptor),
                             id(gradients_descriptor),
                             id(loss_descriptor),
                             0,
                             0,
                             0,
                             0,
                             0,
                             static_cast<uint32_t>(algorithm),
                             0,
                             0,
                             1};
  uint64_t size = 0;
  if (!bytes || !batch_of(probs_descriptor, &call.batch)) return kBadParam;
  const int32_t status = sluice_library_ctc(&call, labels, label_lengths, input_lengths, &size);
  if (status == 0) *bytes = size;
  return status;
}

// Deprecated by cuDNN; and graphs that cuDNN itself fills.
SLUICE_PUBLIC int32_t cudnnBackendInitialize(void*) {
  sluice_library_unsupported("cudnnBackendInitialize");
  return kNotSupported;
}
SLUICE_PUBLIC int32_t cudnnBackendPopulateCudaGraph(void*, void*, void*, void*) {
  sluice_library_unsupported("cudnnBackendPopulateCudaGraph");
  return kNotSupported;
}
SLUICE_PUBLIC int32_t cudnnBackendUpdateCudaGraph(void*, void*, void*, void*) {
  sluice_library_unsupported("cudnnBackendUpdateCudaGraph");
  return kNotSupported;
}
