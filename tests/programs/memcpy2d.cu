// SPDX-License-Identifier: Apache-2.0
// Pitched memory: two- and three-dimensional copies each way, on the device, and fills of a region.
// Arguments: width, height.
#include <vector>

#include "check.h"

__global__ void transpose(const int* from, size_t from_pitch, int* to, size_t to_pitch, int width,
                          int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  const auto* row =
      reinterpret_cast<const int*>(reinterpret_cast<const char*>(from) + y * from_pitch);
  auto* column = reinterpret_cast<int*>(reinterpret_cast<char*>(to) + x * to_pitch);
  column[y] = row[x];
}

int main(int argc, char** argv) {
  const int width = argument(argc, argv, 1, 45);
  const int height = argument(argc, argv, 2, 30);
  const size_t row_bytes = width * sizeof(int);
  const size_t column_bytes = height * sizeof(int);
  std::vector<int> host(width * height), back(width * height, -1);
  for (int i = 0; i < width * height; ++i) host[i] = i * 3 + 1;

  int *device = nullptr, *turned = nullptr;
  size_t pitch = 0, turned_pitch = 0;
  REQUIRE(cudaMallocPitch(&device, &pitch, row_bytes, height));
  REQUIRE(cudaMallocPitch(&turned, &turned_pitch, column_bytes, width));
  bool right = true;
  right &= fact("pitches hold a row",
                pitch >= row_bytes && turned_pitch >= column_bytes && pitch % 256 == 0);
  REQUIRE(cudaMemset2D(device, pitch, 0xff, pitch, height));
  REQUIRE(cudaMemcpy2D(device, pitch, host.data(), row_bytes, row_bytes, height,
                       cudaMemcpyHostToDevice));
  transpose<<<dim3((width + 15) / 16, (height + 15) / 16), dim3(16, 16)>>>(
      device, pitch, turned, turned_pitch, width, height);
  REQUIRE(cudaGetLastError());
  REQUIRE(cudaMemcpy2D(back.data(), column_bytes, turned, turned_pitch, column_bytes, width,
                       cudaMemcpyDeviceToHost));
  int wrong = 0;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) wrong += back[x * height + y] != host[y * width + x];
  }
  std::printf("%d x %d turned, wrong %d, checksum %016llx\n", width, height, wrong,
              static_cast<unsigned long long>(checksum(back.data(), back.size() * sizeof(int))));

  // A region inside, on a stream and then from device to device.
  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream));
  int* copy = nullptr;
  REQUIRE(cudaMalloc(&copy, row_bytes * height));
  REQUIRE(cudaMemset2DAsync(device + 2, pitch, 0, 4 * sizeof(int), 3, stream));
  REQUIRE(cudaMemcpy2DAsync(copy, row_bytes, device, pitch, row_bytes, height,
                            cudaMemcpyDeviceToDevice, stream));
  REQUIRE(cudaMemcpyAsync(back.data(), copy, row_bytes * height, cudaMemcpyDeviceToHost, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  int region_wrong = 0;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const bool cleared = y < 3 && x >= 2 && x < 6;
      region_wrong += back[y * width + x] != (cleared ? 0 : host[y * width + x]);
    }
  }
  std::printf("region wrong %d\n", region_wrong);

  // A box of bytes.
  const size_t w = 20, h = 5, d = 4;
  cudaPitchedPtr box = {};
  REQUIRE(cudaMalloc3D(&box, make_cudaExtent(w, h, d)));
  std::vector<unsigned char> bytes(w * h * d), bytes_back(w * h * d);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 7);
  cudaMemcpy3DParms parameters = {};
  parameters.srcPtr = make_cudaPitchedPtr(bytes.data(), w, w, h);
  parameters.dstPtr = box;
  parameters.extent = make_cudaExtent(w, h, d);
  parameters.kind = cudaMemcpyHostToDevice;
  REQUIRE(cudaMemcpy3D(&parameters));
  parameters.srcPtr = box;
  parameters.dstPtr = make_cudaPitchedPtr(bytes_back.data(), w, w, h);
  parameters.kind = cudaMemcpyDeviceToHost;
  REQUIRE(cudaMemcpy3D(&parameters));
  right &= fact("the box came back", bytes == bytes_back);
  right &= fact("a row wider than its pitch is refused",
                cudaMemcpy2D(copy, 8, host.data(), row_bytes, 16, 2, cudaMemcpyHostToDevice) ==
                    cudaErrorInvalidPitchValue);
  REQUIRE(cudaFree(box.ptr));
  REQUIRE(cudaFree(copy));
  REQUIRE(cudaFree(turned));
  REQUIRE(cudaFree(device));
  REQUIRE(cudaStreamDestroy(stream));
  return right && wrong == 0 && region_wrong == 0 ? 0 : 1;
}
