// SPDX-License-Identifier: Apache-2.0
// cuDNN: losses of another batch, and values that are no values.
#include "tests/gpu/hostile_libraries.h"
#include "wire/bodies/cudnn_ctc.h"
#include "wire/cudnn_backend.h"

extern "C" {
int32_t cudnnCreate(void** handle);
int32_t cudnnCreateTensorDescriptor(void** descriptor);
int32_t cudnnSetTensorNdDescriptor(void* descriptor, int32_t type, int n, const int* sizes,
                                   const int* strides);
int32_t cudnnCreateCTCLossDescriptor(void** descriptor);
int32_t cudnnSetCTCLossDescriptor(void* descriptor, int32_t type);
int32_t cudnnGetCTCLossWorkspaceSize(void* handle, void* probs, void* gradients, const int* labels,
                                     const int* lengths, const int* inputs, int32_t algorithm,
                                     void* loss, size_t* bytes);
int32_t cudnnBackendCreateDescriptor(int32_t type, void** descriptor);
int32_t cudnnBackendSetAttribute(void* descriptor, int32_t name, int32_t type, int64_t count,
                                 const void* elements);
int32_t cudnnBackendFinalize(void* descriptor);
int32_t cudnnBackendGetAttribute(void* descriptor, int32_t name, int32_t type, int64_t requested,
                                 int64_t* count, void* elements);
}

namespace hostile {

namespace {

// A loss of two texts, or of one in a command whose descriptor says two.
int loss(uint32_t batch, int label) {
  void *handle, *probs, *loss;
  need(cudnnCreate(&handle), "cudnnCreate");
  need(cudnnCreateTensorDescriptor(&probs), "a tensor");
  const int sizes[] = {8, 2, 5}, strides[] = {10, 5, 1};
  need(cudnnSetTensorNdDescriptor(probs, 0, 3, sizes, strides), "its sizes");
  need(cudnnCreateCTCLossDescriptor(&loss), "a loss");
  need(cudnnSetCTCLossDescriptor(loss, 0), "its type");
  const int labels[] = {1, label, 3}, lengths[] = {2, 1}, inputs[] = {8, 8};
  size_t bytes = 0;
  if (batch == 2) {
    const int32_t status = cudnnGetCTCLossWorkspaceSize(handle, probs, probs, labels, lengths,
                                                        inputs, 0, loss, &bytes);
    if (status != 0) return std::printf("status %d\n", status), 0;
    return ok(bytes > 0, "the workspace");
  }
  // The tensor is a recipe in the client; the node's own is made here.
  const uint64_t on_node = mint();
  need(Frame("cudnnCreateTensorDescriptor").set(0, on_node).send().status, "a tensor");
  Frame set("cudnnSetTensorNdDescriptor");
  set.set(0, on_node).set(1, 0).set(2, 3).carry(3, sizes, 12).carry(4, strides, 12);
  need(set.send().status, "its sizes");
  wire::CtcLoss call{id(handle), on_node, on_node, id(loss), 0, 0, 0, 0, 0, 0, batch, 1, 1};
  std::vector<uint64_t> words((sizeof call + 7) / 8);
  std::memcpy(words.data(), &call, sizeof call);
  words.push_back(1 | 1ull << 32);
  words.push_back(8);
  return say(send(ids::id_sluiceCudnnCtcLoss, words));
}
int honest_loss() { return loss(2, 2); }
int loss_of_another_batch() { return loss(1, 2); }
int loss_of_another_alphabet() { return loss(2, 1 << 20); }

int wide_value() {
  void* handle;
  need(cudnnCreate(&handle), "cudnnCreate");
  const uint64_t tensor = mint();
  need(Frame("cudnnCreateTensorDescriptor").set(0, tensor).send().status, "a tensor");
  Frame set("cudnnSetTensor4dDescriptor");
  const uint64_t numbers[] = {tensor, 2, 8, 1, 32, 2, 2};  // NCHW_VECT_C of INT8x32
  for (int i = 0; i < 7; ++i) set.set(i, numbers[i]);
  need(set.send().status, "its sizes");
  return say(Frame("cudnnSetTensor")
                 .set(0, id(handle))
                 .set(1, tensor)
                 .set(2, world().memory)
                 .carry(3, 7)
                 .send());
}

// y = x * s with s by value, as cuDNN's frontend makes it.
int by_value(bool honest) {
  void* handle;
  need(cudnnCreate(&handle), "cudnnCreate");
  const auto descriptor = [](int32_t type) {
    void* d;
    need(cudnnBackendCreateDescriptor(type, &d), "a descriptor");
    return d;
  };
  const auto set = [](void* d, int32_t name, int32_t type, int64_t n, const void* at) {
    need(cudnnBackendSetAttribute(d, name, type, n, at), "an attribute");
  };
  const auto tensor = [&](int64_t uid, int64_t size, bool value) {
    void* d = descriptor(17);
    const int64_t sizes[] = {1, size, 1}, strides[] = {size, 1, 1}, alignment = 16;
    const int32_t floats = 0;
    const uint8_t yes = 1;
    set(d, 901, 1, 1, &floats), set(d, 902, 3, 3, sizes), set(d, 903, 3, 3, strides);
    set(d, 906, 3, 1, &uid), set(d, 900, 3, 1, &alignment);
    if (value) set(d, 908, 2, 1, &yes);
    need(cudnnBackendFinalize(d), "a tensor");
    return d;
  };
  void *x = tensor(1, 64, false), *s = tensor(2, 1, true), *y = tensor(3, 64, false);
  void* multiply = descriptor(0);
  const int32_t mul = 1, floats = 0;
  set(multiply, 0, 14, 1, &mul), set(multiply, 1, 1, 1, &floats);
  need(cudnnBackendFinalize(multiply), "a pointwise");
  void* operation = descriptor(13);
  set(operation, 750, 15, 1, &multiply), set(operation, 751, 15, 1, &x);
  set(operation, 752, 15, 1, &s), set(operation, 753, 15, 1, &y);
  need(cudnnBackendFinalize(operation), "an operation");
  void* graph = descriptor(15);
  set(graph, 800, 0, 1, &handle), set(graph, 801, 15, 1, &operation);
  need(cudnnBackendFinalize(graph), "a graph");
  void* heuristic = descriptor(4);
  const int32_t instant = 0;
  set(heuristic, 201, 15, 1, &graph), set(heuristic, 200, 8, 1, &instant);
  need(cudnnBackendFinalize(heuristic), "a heuristic");
  void* config = descriptor(3);
  int64_t got = 0;
  need(cudnnBackendGetAttribute(heuristic, 202, 15, 1, &got, &config), "its results");
  void* plan = descriptor(5);
  set(plan, 400, 0, 1, &handle), set(plan, 401, 15, 1, &config);
  need(cudnnBackendFinalize(plan), "a plan");
  world().put<float>(0, std::vector<float>(64, 3));
  wire::BackendExecute head{id(handle), id(plan), world().memory + (1 << 20), 3, honest ? 8u : 0u};
  std::vector<uint64_t> words(sizeof head / 8);
  std::memcpy(words.data(), &head, sizeof head);
  words.insert(words.end(), {1, 2, 3, world().memory, honest ? kCarried : world().memory + 8192,
                             world().memory + 4096});
  if (honest) words.push_back(bits(2));
  const Outcome o = send(ids::id_sluiceCudnnBackendExecute, words);
  if (!honest) return say(o);
  need(o.status, "the execution");
  float product;
  cuMemcpyDtoH_v2(&product, world().memory + 4096 + 63 * 4, sizeof product);
  return ok(product == 6, "the product");
}
int honest_value() { return by_value(true); }
int value_on_the_device() { return by_value(false); }

}  // namespace

Cases network_cases() {
#define SLUICE_CASE(name) {#name, name}
  return {
      SLUICE_CASE(honest_loss),
      SLUICE_CASE(honest_value),
      SLUICE_CASE(loss_of_another_batch),
      SLUICE_CASE(loss_of_another_alphabet),
      SLUICE_CASE(wide_value),
      SLUICE_CASE(value_on_the_device),
  };
#undef SLUICE_CASE
}

}  // namespace hostile
