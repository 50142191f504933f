// SPDX-License-Identifier: Apache-2.0
// __device__ and __constant__ variables, found by the address of their host shadow.
#include "client/cudart/symbol.h"

#include "client/cudart/registry.h"
#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace {

cudaError_t locate(const void* symbol, CUdeviceptr* address, size_t* size) {
  const Variable* variable = find_variable(symbol);
  if (variable == nullptr) return cudaErrorInvalidSymbol;
  return variable_address(*variable, address, size);
}

// The place that a copy of `count` bytes at `offset` into the symbol touches.
cudaError_t locate_range(const void* symbol, size_t offset, size_t count, void** place) {
  CUdeviceptr address = 0;
  size_t size = 0;
  if (const cudaError_t error = locate(symbol, &address, &size); error != cudaSuccess) return error;
  if (offset > size || count > size - offset) return cudaErrorInvalidValue;
  *place = reinterpret_cast<void*>(address + offset);
  return cudaSuccess;
}

bool into_symbol(cudaMemcpyKind kind) {
  return kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice ||
         kind == cudaMemcpyDefault;
}

bool out_of_symbol(cudaMemcpyKind kind) {
  return kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice ||
         kind == cudaMemcpyDefault;
}

}  // namespace

namespace sluice::cudart {

cudaError_t symbol_as_destination(const void* symbol, size_t offset, size_t count,
                                  cudaMemcpyKind kind, void** place) {
  if (!into_symbol(kind)) return cudaErrorInvalidMemcpyDirection;
  return locate_range(symbol, offset, count, place);
}

cudaError_t symbol_as_source(const void* symbol, size_t offset, size_t count, cudaMemcpyKind kind,
                             void** place) {
  if (!out_of_symbol(kind)) return cudaErrorInvalidMemcpyDirection;
  return locate_range(symbol, offset, count, place);
}

}  // namespace sluice::cudart

extern "C" {

cudaError_t cudaGetSymbolAddress(void** devPtr, const void* symbol) {
  if (devPtr == nullptr) return record(cudaErrorInvalidValue);
  size_t size = 0;
  return record(locate(symbol, address_slot(devPtr), &size));
}

cudaError_t cudaGetSymbolSize(size_t* size, const void* symbol) {
  if (size == nullptr) return record(cudaErrorInvalidValue);
  CUdeviceptr address = 0;
  return record(locate(symbol, &address, size));
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* src, size_t count, size_t offset,
                               enum cudaMemcpyKind kind) {
  void* place = nullptr;
  const cudaError_t error = symbol_as_destination(symbol, offset, count, kind, &place);
  if (error != cudaSuccess) return record(error);
  return cudaMemcpy(place, src, count, kind);
}

cudaError_t cudaMemcpyFromSymbol(void* dst, const void* symbol, size_t count, size_t offset,
                                 enum cudaMemcpyKind kind) {
  void* place = nullptr;
  const cudaError_t error = symbol_as_source(symbol, offset, count, kind, &place);
  if (error != cudaSuccess) return record(error);
  return cudaMemcpy(dst, place, count, kind);
}

cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* src, size_t count,
                                    size_t offset, enum cudaMemcpyKind kind, cudaStream_t stream) {
  void* place = nullptr;
  const cudaError_t error = symbol_as_destination(symbol, offset, count, kind, &place);
  if (error != cudaSuccess) return record(error);
  return cudaMemcpyAsync(place, src, count, kind, stream);
}

cudaError_t cudaMemcpyFromSymbolAsync(void* dst, const void* symbol, size_t count, size_t offset,
                                      enum cudaMemcpyKind kind, cudaStream_t stream) {
  void* place = nullptr;
  const cudaError_t error = symbol_as_source(symbol, offset, count, kind, &place);
  if (error != cudaSuccess) return record(error);
  return cudaMemcpyAsync(dst, place, count, kind, stream);
}

}  // extern "C"
