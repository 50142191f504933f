// SPDX-License-Identifier: Apache-2.0
// Managed memory: one pointer for the program and its kernels. Touched here and there in turn,
// copied, filled, prefetched, advised, attached to streams, used by graphs and host functions; many
// small objects that point at one another; variables of the program.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "check.h"
#include "majors.h"

namespace {

__managed__ int counter = 5;
__device__ __managed__ double table[600];
__device__ int plain = 3;  // shares the page of the managed ones, and stays the device's

struct Node {
  int value;
  Node* next;
};

__global__ void add(int* data, int n, int value) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    data[i] += value;
}

__global__ void walk(Node* first, int* sum) {
  int total = 0;
  for (Node* node = first; node; node = node->next) total += node->value++;
  *sum = total;
}

__global__ void use_variables() {
  atomicAdd(&counter, 1);
  table[threadIdx.x] = threadIdx.x * 0.5;
  if (threadIdx.x == 0) ++plain;
}

__global__ void spin(const int* data, int* out, int rounds) {
  int value = 0;
  for (int i = 0; i < rounds; ++i) value += data[i % 64];
  *out = value;
}

template <class T>
T* managed(size_t n, unsigned flags = cudaMemAttachGlobal) {
  T* made = nullptr;
  REQUIRE(cudaMallocManaged(&made, n * sizeof(T), flags));
  return made;
}

long long sum(const int* data, int n) {
  long long total = 0;
  for (int i = 0; i < n; ++i) total += data[i];
  return total;
}

void in_turn() {
  const int n = 300001;
  int* data = managed<int>(n);
  for (int i = 0; i < n; ++i) data[i] = i % 1000;
  for (int round = 0; round < 3; ++round) {
    add<<<16, 128>>>(data, n, 2);
    REQUIRE(cudaDeviceSynchronize());
    data[round * 100000] += 1000000;
  }
  add<<<16, 128>>>(data, n, 1);
  REQUIRE(cudaDeviceSynchronize());
  std::printf("in turn: %lld\n", sum(data, n));
  REQUIRE(cudaFree(data));
}

void small_ones() {
  Node* first = nullptr;
  for (int i = 0; i < 700; ++i) {
    Node* node = managed<Node>(1);
    node->value = i;
    node->next = first;
    first = node;
  }
  int* total = managed<int>(1);
  walk<<<1, 1>>>(first, total);
  REQUIRE(cudaDeviceSynchronize());
  int after = 0;
  for (const Node* node = first; node; node = node->next) after += node->value;
  std::printf("small ones: %d, then %d\n", *total, after);
  while (first) {
    Node* next = first->next;
    REQUIRE(cudaFree(first));
    first = next;
  }
  REQUIRE(cudaFree(total));
}

void variables() {
  use_variables<<<1, 64>>>();
  REQUIRE(cudaDeviceSynchronize());
  std::printf("variables: %d, %.1f\n", counter, table[63]);
  counter = 100;
  table[500] = 2.25;
  use_variables<<<1, 64>>>();
  REQUIRE(cudaDeviceSynchronize());
  int from_plain = 0;
  REQUIRE(cudaMemcpyFromSymbol(&from_plain, plain, sizeof from_plain));
  std::printf("variables: %d, %.2f, beside them %d\n", counter, table[500], from_plain);
  void* address = nullptr;
  size_t bytes = 0;
  REQUIRE(cudaGetSymbolAddress(&address, table));
  REQUIRE(cudaGetSymbolSize(&bytes, table));
  cudaPointerAttributes a{};
  REQUIRE(cudaPointerGetAttributes(&a, &counter));
  std::printf("variables: %s, %zu bytes, %s\n", address == table ? "one address" : "two addresses",
              bytes, a.type == cudaMemoryTypeManaged ? "managed" : "not managed");
}

void copies() {
  const int n = 20000;
  int* data = managed<int>(n);
  int* other = managed<int>(n);
  int* device = nullptr;
  REQUIRE(cudaMalloc(&device, n * sizeof(int)));
  int* host = static_cast<int*>(std::malloc(n * sizeof(int)));
  for (int i = 0; i < n; ++i) host[i] = i, data[i] = 7;
  REQUIRE(cudaMemcpy(data + 10, host, (n - 20) * sizeof(int), cudaMemcpyHostToDevice));
  data[0] = 9;
  REQUIRE(cudaMemcpy(device, data, n * sizeof(int), cudaMemcpyHostToDevice));
  REQUIRE(cudaMemcpy(other, device, n * sizeof(int), cudaMemcpyDeviceToHost));
  std::printf("copies: %d %d %d %d\n", other[0], other[9], other[10], other[n - 11]);
  REQUIRE(cudaMemset(data + 1, 1, 8));
  REQUIRE(cudaMemcpy(host, data, n * sizeof(int), cudaMemcpyDefault));
  std::printf("copies: %d %x %x %d\n", host[0], host[1], host[2], host[3]);
  REQUIRE(cudaMemcpy2D(other, 400, data, 800, 200, 50, cudaMemcpyDefault));
  std::printf("copies: %d %d\n", other[100], other[4950]);
  REQUIRE(cudaFree(data));
  REQUIRE(cudaFree(other));
  REQUIRE(cudaFree(device));
  std::free(host);
}

void hints() {
  const int n = 200000;
  int* data = managed<int>(n);
  int device = 0, answer = 0;
  REQUIRE(cudaGetDevice(&device));
  REQUIRE(advise(data, n * sizeof(int), cudaMemAdviseSetReadMostly, device));
  REQUIRE(cudaMemRangeGetAttribute(&answer, sizeof answer, cudaMemRangeAttributeReadMostly, data,
                                   n * sizeof(int)));
  std::printf("hints: read mostly %d", answer);
  REQUIRE(advise(data, n * sizeof(int), cudaMemAdviseUnsetReadMostly, device));
  REQUIRE(advise(data, n * sizeof(int), cudaMemAdviseSetPreferredLocation, cudaCpuDeviceId));
  REQUIRE(cudaMemRangeGetAttribute(&answer, sizeof answer, cudaMemRangeAttributePreferredLocation,
                                   data, n * sizeof(int)));
  std::printf(", preferred %d\n", answer);
  for (int i = 0; i < n; ++i) data[i] = 1;
  REQUIRE(prefetch(data, n * sizeof(int), device, nullptr));
  add<<<16, 128>>>(data, n, 4);
  REQUIRE(prefetch(data, n * sizeof(int), cudaCpuDeviceId, nullptr));
  REQUIRE(cudaDeviceSynchronize());
  int last[2] = {};
  REQUIRE(cudaMemRangeGetAttribute(last, sizeof last[0], cudaMemRangeAttributeLastPrefetchLocation,
                                   data, n * sizeof(int)));
  std::printf("hints: %lld, last prefetched to %d\n", sum(data, n), last[0]);
  REQUIRE(cudaFree(data));
  REQUIRE(cudaMalloc(&data, 64));
  std::printf("hints: of other memory %s\n", cudaGetErrorName(prefetch(data, 64, device, nullptr)));
  REQUIRE(cudaFree(data));
  cudaGetLastError();
}

void streams() {
  cudaStream_t one, two;
  REQUIRE(cudaStreamCreate(&one));
  REQUIRE(cudaStreamCreate(&two));
  int* mine = managed<int>(5000, cudaMemAttachHost);
  int* other = managed<int>(5000);
  for (int i = 0; i < 5000; ++i) mine[i] = 1, other[i] = 2;
  int* out = managed<int>(1);
  REQUIRE(cudaStreamAttachMemAsync(one, mine, 0, cudaMemAttachSingle));
  REQUIRE(cudaStreamAttachMemAsync(two, other, 0, cudaMemAttachSingle));
  REQUIRE(cudaStreamAttachMemAsync(two, out, 0, cudaMemAttachSingle));
  REQUIRE(cudaDeviceSynchronize());
  add<<<8, 64, 0, one>>>(mine, 5000, 3);
  spin<<<1, 1, 0, two>>>(other, out, 200000);
  REQUIRE(cudaStreamSynchronize(one));
  mine[0] += 10;  // while the other stream works
  add<<<8, 64, 0, one>>>(mine, 5000, 5);
  REQUIRE(cudaDeviceSynchronize());
  std::printf("streams: %lld, %d\n", sum(mine, 5000), *out);
  REQUIRE(cudaStreamAttachMemAsync(one, mine, 0, cudaMemAttachGlobal));
  REQUIRE(cudaStreamSynchronize(one));
  add<<<8, 64, 0, two>>>(mine, 5000, 1);
  REQUIRE(cudaStreamSynchronize(two));
  std::printf("streams: %lld\n", sum(mine, 5000));
  for (int* p : {mine, other, out}) REQUIRE(cudaFree(p));
  REQUIRE(cudaStreamDestroy(one));
  REQUIRE(cudaStreamDestroy(two));
}

void graphs() {
  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream));
  int* data = managed<int>(4000);
  int* copy = managed<int>(4000);
  for (int i = 0; i < 4000; ++i) data[i] = i, copy[i] = 0;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  add<<<4, 64, 0, stream>>>(data, 4000, 1);
  REQUIRE(cudaMemcpyAsync(copy, data, 4000 * sizeof(int), cudaMemcpyDefault, stream));
  REQUIRE(cudaStreamEndCapture(stream, &graph));
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
  for (int round = 0; round < 3; ++round) {
    REQUIRE(cudaGraphLaunch(exec, stream));
    REQUIRE(cudaStreamSynchronize(stream));
    data[round] += 1000;
  }
  std::printf("graphs: %lld, %lld\n", sum(data, 4000), sum(copy, 4000));
  REQUIRE(cudaGraphExecDestroy(exec));
  REQUIRE(cudaGraphDestroy(graph));
  REQUIRE(cudaFree(data));
  REQUIRE(cudaFree(copy));
  REQUIRE(cudaStreamDestroy(stream));
}

struct Seen {
  int* data;
  long long total;
};

void host_functions() {
  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream));
  const int n = 50000;
  Seen seen{managed<int>(n), 0};
  std::memset(seen.data, 0, n * sizeof(int));
  REQUIRE(cudaStreamAttachMemAsync(stream, seen.data, 0, cudaMemAttachSingle));
  add<<<8, 64, 0, stream>>>(seen.data, n, 2);
  REQUIRE(cudaLaunchHostFunc(
      stream,
      [](void* given) {
        auto* s = static_cast<Seen*>(given);
        s->total = sum(s->data, 50000);
        s->data[7] = 500;
      },
      &seen));
  REQUIRE(cudaStreamSynchronize(stream));
  add<<<8, 64, 0, stream>>>(seen.data, n, 1);
  REQUIRE(cudaStreamSynchronize(stream));
  std::printf("host functions: %lld, then %d and %d\n", seen.total, seen.data[6], seen.data[7]);
  REQUIRE(cudaFree(seen.data));
  REQUIRE(cudaStreamDestroy(stream));
}

}  // namespace

int main() {
  int device = 0, can = 0, pageable = 1;
  REQUIRE(cudaGetDevice(&device));
  REQUIRE(cudaDeviceGetAttribute(&can, cudaDevAttrManagedMemory, device));
  REQUIRE(cudaDeviceGetAttribute(&pageable, cudaDevAttrConcurrentManagedAccess, device));
  std::printf("managed memory: %d\n# concurrent access: %d\n", can, pageable);
  int* data = managed<int>(1000);
  cudaPointerAttributes a{};
  REQUIRE(cudaPointerGetAttributes(&a, data + 3));
  std::printf("pointer: type %d, device %d, %s\n", a.type, a.device,
              a.devicePointer == data + 3 && a.hostPointer == data + 3 ? "one address" : "two");
  REQUIRE(cudaFree(data));
  std::printf("freed twice: %s\n", cudaGetErrorName(cudaFree(data)));
  cudaGetLastError();
  in_turn();
  small_ones();
  variables();
  copies();
  hints();
  streams();
  graphs();
  host_functions();
  return 0;
}
