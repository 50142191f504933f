// SPDX-License-Identifier: Apache-2.0
// What of cuDNN no table says: the backend API, which libcuda.so.1 keeps, and texts of errors.
#include <cstdio>
#include <cstring>
#include <iterator>
#include <mutex>

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

extern "C" {
int32_t sluice_forward_cudnnGetRNNDataDescriptor(void*, void*, void*, void*, void*, void*, int32_t,
                                                 void*, void*);
int32_t sluice_forward_cudnnGetSeqDataDescriptor(void*, void*, void*, int32_t, void*, void*, void*,
                                                 uint64_t, void*, void*);
}

namespace {

// Bytes of a value of a cudnnDataType_t.
size_t bytes_of(int32_t type) {
  constexpr size_t kBytes[] = {4, 8, 2, 1, 4, 4, 1, 4, 8, 2, 8, 1, 1, 1};
  return type >= 0 && static_cast<size_t>(type) < std::size(kBytes) ? kBytes[type] : 1;
}

// The value that pads is as wide as the type, which the call itself says.
template <class Get>
int32_t get_padded(int32_t* type, void* padding, Get&& get) {
  int32_t own_type = 0;
  uint64_t value = 0;
  const int32_t status = get(&own_type, padding ? &value : nullptr);
  if (status != 0) return status;
  if (type) *type = own_type;
  if (padding) std::memcpy(padding, &value, bytes_of(own_type));
  return 0;
}

struct Callback {
  std::mutex mutex;
  uint32_t mask = 0;
  void *data = nullptr, *function = nullptr;
};
Callback& callback() {
  static Callback* c = new Callback;
  return *c;
}

}  // namespace

SLUICE_PUBLIC int32_t cudnnGetRNNDataDescriptor(void* descriptor, int32_t* type, void* layout,
                                                void* most, void* batch, void* vector,
                                                int32_t requested, void* lengths, void* padding) {
  return get_padded(type, padding, [&](void* t, void* p) {
    return sluice_forward_cudnnGetRNNDataDescriptor(descriptor, t, layout, most, batch, vector,
                                                    requested, lengths, p);
  });
}
SLUICE_PUBLIC int32_t cudnnGetSeqDataDescriptor(void* descriptor, int32_t* type, void* dims,
                                                int32_t dims_requested, void* sizes, void* axes,
                                                void* length_count, uint64_t lengths_requested,
                                                void* lengths, void* padding) {
  return get_padded(type, padding, [&](void* t, void* p) {
    return sluice_forward_cudnnGetSeqDataDescriptor(descriptor, t, dims, dims_requested, sizes,
                                                    axes, length_count, lengths_requested, lengths,
                                                    p);
  });
}

// What cuDNN would tell the callback is said on the GPU's node.
SLUICE_PUBLIC int32_t cudnnSetCallback(uint32_t mask, void* data, void* function) {
  if (mask != 0 && function)
    sluice_library_note("cuDNN runs on the GPU's node; what it logs there is not carried");
  Callback& c = callback();
  std::lock_guard lock(c.mutex);
  c.mask = mask, c.data = data, c.function = function;
  return 0;
}
SLUICE_PUBLIC int32_t cudnnGetCallback(uint32_t* mask, void** data, void** function) {
  if (!mask || !data || !function) return kBadParam;
  Callback& c = callback();
  std::lock_guard lock(c.mutex);
  *mask = c.mask, *data = c.data, *function = c.function;
  return 0;
}
