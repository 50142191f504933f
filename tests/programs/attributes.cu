// SPDX-License-Identifier: Apache-2.0
// Attributes of streams, launches and kernel nodes: set, read back, copied, and what is refused.

#include "check.h"

static __global__ void fill(int* data, int count, int value) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = value;
}

constexpr int kCount = 10000;

int main() {
  bool right = true;
  int most = 0, persisting = 0;
  REQUIRE(cudaDeviceGetAttribute(&most, cudaDevAttrMaxAccessPolicyWindowSize, 0));
  REQUIRE(cudaDeviceGetAttribute(&persisting, cudaDevAttrMaxPersistingL2CacheSize, 0));
  int* data = nullptr;
  REQUIRE(cudaMalloc(&data, kCount * sizeof(int)));
  cudaStream_t stream, other;
  REQUIRE(cudaStreamCreate(&stream));
  REQUIRE(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  REQUIRE(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, persisting));

  cudaStreamAttrValue given = {}, told = {};
  const auto set = [&](cudaStreamAttrID id) { return cudaStreamSetAttribute(stream, id, &given); };
  REQUIRE(cudaStreamGetAttribute(stream, cudaLaunchAttributeAccessPolicyWindow, &told));
  right &= fact("no window at first", told.accessPolicyWindow.num_bytes == 0);
  given.accessPolicyWindow.base_ptr = data;
  given.accessPolicyWindow.num_bytes = kCount * sizeof(int);
  given.accessPolicyWindow.hitRatio = 0.75f;
  given.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
  given.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
  REQUIRE(set(cudaLaunchAttributeAccessPolicyWindow));
  REQUIRE(cudaCtxResetPersistingL2Cache());
  REQUIRE(cudaStreamGetAttribute(stream, cudaLaunchAttributeAccessPolicyWindow, &told));
  right &=
      fact("the window is told as it was given",
           told.accessPolicyWindow.base_ptr == data && told.accessPolicyWindow.hitRatio == 0.75f &&
               told.accessPolicyWindow.hitProp == cudaAccessPropertyPersisting &&
               told.accessPolicyWindow.missProp == cudaAccessPropertyStreaming);
  REQUIRE(cudaStreamCopyAttributes(other, stream));
  REQUIRE(cudaStreamGetAttribute(other, cudaLaunchAttributeAccessPolicyWindow, &told));
  right &= fact("and copied", told.accessPolicyWindow.base_ptr == data);
  fill<<<(kCount + 255) / 256, 256, 0, stream>>>(data, kCount, 7);
  REQUIRE(cudaGetLastError());
  int value = 0;
  REQUIRE(cudaMemcpyAsync(&value, data + kCount - 1, sizeof value, cudaMemcpyDeviceToHost, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  std::printf("under the window: %d\n", value);

  const auto refused = [&](const char* what) {
    right &= fact(what, set(cudaLaunchAttributeAccessPolicyWindow) == cudaErrorInvalidValue);
    cudaGetLastError();
  };
  const auto good = given;
  given.accessPolicyWindow.hitRatio = -0.1f;
  refused("a ratio below 0 is refused");
  given.accessPolicyWindow.hitRatio = 1.1f;
  refused("a ratio above 1 is refused");
  given = good;
  given.accessPolicyWindow.num_bytes = static_cast<size_t>(most) + 1;
  refused("a window that is too large is refused");
  given = good;
  given.accessPolicyWindow.missProp = cudaAccessPropertyPersisting;
  refused("a miss does not persist");

  given = {};
  given.syncPolicy = cudaSyncPolicyBlockingSync;
  REQUIRE(set(cudaLaunchAttributeSynchronizationPolicy));
  REQUIRE(cudaStreamGetAttribute(stream, cudaLaunchAttributeSynchronizationPolicy, &told));
  right &= fact("a policy of waiting", told.syncPolicy == cudaSyncPolicyBlockingSync);
  int least = 0, greatest = 0;
  REQUIRE(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  given = {};
  given.priority = greatest;
  REQUIRE(set(cudaLaunchAttributePriority));
  REQUIRE(cudaStreamGetAttribute(stream, cudaLaunchAttributePriority, &told));
  right &= fact("a priority", told.priority == greatest);
  given = {};
  given.memSyncDomain = cudaLaunchMemSyncDomainRemote;
  REQUIRE(set(cudaLaunchAttributeMemSyncDomain));
  REQUIRE(cudaStreamGetAttribute(stream, cudaLaunchAttributeMemSyncDomain, &told));
  right &= fact("a domain", told.memSyncDomain == cudaLaunchMemSyncDomainRemote);
  right &= fact("a stream does not cooperate",
                set(cudaLaunchAttributeCooperative) == cudaErrorInvalidValue);
  cudaGetLastError();

  // Of a launch, and of a kernel node.
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeAccessPolicyWindow;
  attribute.val.accessPolicyWindow = good.accessPolicyWindow;
  cudaLaunchConfig_t config = {};
  config.gridDim = (kCount + 255) / 256;
  config.blockDim = 256;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  REQUIRE(cudaLaunchKernelEx(&config, fill, data, kCount, 8));
  REQUIRE(cudaStreamSynchronize(stream));
  REQUIRE(cudaMemcpy(&value, data, sizeof value, cudaMemcpyDeviceToHost));
  std::printf("launched with a window: %d\n", value);
  cudaGraph_t graph;
  cudaGraphNode_t node, second;
  cudaGraphExec_t exec;
  REQUIRE(cudaGraphCreate(&graph, 0));
  int count = kCount, nine = 9;
  void* arguments[] = {&data, &count, &nine};
  cudaKernelNodeParams params = {};
  params.func = reinterpret_cast<void*>(fill);
  params.gridDim = config.gridDim;
  params.blockDim = config.blockDim;
  params.kernelParams = arguments;
  REQUIRE(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &params));
  REQUIRE(cudaGraphAddKernelNode(&second, graph, &node, 1, &params));
  REQUIRE(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeAccessPolicyWindow, &good));
  REQUIRE(cudaGraphKernelNodeCopyAttributes(second, node));
  for (cudaGraphNode_t n : {node, second}) {
    told = {};
    REQUIRE(cudaGraphKernelNodeGetAttribute(n, cudaLaunchAttributeAccessPolicyWindow, &told));
    right &= fact("of a kernel node", told.accessPolicyWindow.base_ptr == data &&
                                          told.accessPolicyWindow.hitRatio == 0.75f);
  }
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
  REQUIRE(cudaGraphLaunch(exec, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  REQUIRE(cudaMemcpy(&value, data, sizeof value, cudaMemcpyDeviceToHost));
  std::printf("in a graph: %d\n", value);
  REQUIRE(cudaGraphExecDestroy(exec));
  REQUIRE(cudaGraphDestroy(graph));
  REQUIRE(cudaStreamDestroy(other));
  REQUIRE(cudaStreamDestroy(stream));
  REQUIRE(cudaFree(data));
  return right ? 0 : 1;
}
