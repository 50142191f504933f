// SPDX-License-Identifier: Apache-2.0
// Batches of copies: of pinned memory, of memory that changes right after the call, and of a box.
#include <cstring>

#include "check.h"
#include "majors.h"

int main() {
  bool right = true;
  cudaStream_t stream;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  int *device = nullptr, *pinned = nullptr;
  REQUIRE(cudaMalloc(&device, 64 * sizeof(int)));
  REQUIRE(cudaMallocHost(&pinned, 64 * sizeof(int)));
  for (int i = 0; i < 64; ++i) pinned[i] = i;

  // Both halves to the device in one call, the second from memory that changes right after it.
  int stack[32];
  for (int i = 0; i < 32; ++i) stack[i] = 100 + i;
  void* to[] = {device, device + 32};
  const void* from[] = {pinned, stack};
  size_t sizes[] = {32 * sizeof(int), 32 * sizeof(int)}, firsts[] = {0, 1};
  cudaMemcpyAttributes attributes[2] = {};
  attributes[0].srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes[1].srcAccessOrder = cudaMemcpySrcAccessOrderDuringApiCall;
  REQUIRE(copy_batch(to, from, sizes, 2, attributes, firsts, 2, stream));
  std::memset(stack, 0, sizeof stack);
  int back[64] = {};
  REQUIRE(cudaStreamSynchronize(stream));
  REQUIRE(cudaMemcpy(back, device, sizeof back, cudaMemcpyDeviceToHost));
  std::printf("batch: %d %d %d %d\n", back[0], back[31], back[32], back[63]);
  right &= back[31] == 31 && back[32] == 100 && back[63] == 131;
  attributes[0].srcAccessOrder = cudaMemcpySrcAccessOrderInvalid;
  right &=
      fact("an access order of none is refused",
           copy_batch(to, from, sizes, 2, attributes, firsts, 2, stream) == cudaErrorInvalidValue);
  cudaGetLastError();

  cudaMemcpy3DBatchOp box = {};
  box.src.type = box.dst.type = cudaMemcpyOperandTypePointer;
  box.src.op.ptr.ptr = device;
  box.dst.op.ptr.ptr = device + 32;
  box.src.op.ptr.rowLength = box.dst.op.ptr.rowLength = 4 * sizeof(int);
  box.extent = {2 * sizeof(int), 3, 1};
  box.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  REQUIRE(copy_boxes(1, &box, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  REQUIRE(cudaMemcpy(back, device, sizeof back, cudaMemcpyDeviceToHost));
  std::printf("box: %d %d %d %d %d\n", back[32], back[33], back[34], back[36], back[41]);
  right &= back[33] == 1 && back[34] == 102 && back[36] == 4 && back[41] == 9;
  REQUIRE(cudaStreamDestroy(stream));
  REQUIRE(cudaFreeHost(pinned));
  REQUIRE(cudaFree(device));
  return right ? 0 : 1;
}
