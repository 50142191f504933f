// SPDX-License-Identifier: Apache-2.0
// Access between devices and between processes: peer access and CUDA IPC, as the driver has them.
#include <cstring>

#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace {

template <typename Call>
cudaError_t on_pair(int first, int second, Call call) {
  CUdevice a = 0;
  CUdevice b = 0;
  if (const cudaError_t error = device_handle(first, &a); error != cudaSuccess) {
    return record(error);
  }
  if (const cudaError_t error = device_handle(second, &b); error != cudaSuccess) {
    return record(error);
  }
  return record(to_runtime(call(a, b)));
}

// The primary context of another device than the thread's own.
cudaError_t peer_context(int peer, CUcontext* context) {
  int own = 0;
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return error;
  if (const cudaError_t error = current_device(&own); error != cudaSuccess) return error;
  return peer == own ? cudaErrorInvalidDevice : primary_context(peer, context);
}

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle));
static_assert(sizeof(cudaIpcEventHandle_t) == sizeof(CUipcEventHandle));

}  // namespace

extern "C" {

cudaError_t cudaDeviceCanAccessPeer(int* canAccessPeer, int device, int peerDevice) {
  return on_pair(device, peerDevice, [&](CUdevice a, CUdevice b) {
    return driver(cuDeviceCanAccessPeer, canAccessPeer, a, b);
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags) {
  CUcontext peer = nullptr;
  if (const cudaError_t error = peer_context(peerDevice, &peer); error != cudaSuccess) {
    return record(error);
  }
  return forward(cuCtxEnablePeerAccess, peer, flags);
}

cudaError_t cudaDeviceDisablePeerAccess(int peerDevice) {
  CUcontext peer = nullptr;
  if (const cudaError_t error = peer_context(peerDevice, &peer); error != cudaSuccess) {
    return record(error);
  }
  return forward(cuCtxDisablePeerAccess, peer);
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, enum cudaDeviceP2PAttr attr, int srcDevice,
                                      int dstDevice) {
  return on_pair(srcDevice, dstDevice, [&](CUdevice a, CUdevice b) {
    return driver(cuDeviceGetP2PAttribute, value, static_cast<CUdevice_P2PAttribute>(attr), a, b);
  });
}

cudaError_t cudaDeviceGetP2PAtomicCapabilities(unsigned int* capabilities,
                                               const enum cudaAtomicOperation* operations,
                                               unsigned int count, int srcDevice, int dstDevice) {
  return on_pair(srcDevice, dstDevice, [&](CUdevice a, CUdevice b) {
    return driver(cuDeviceGetP2PAtomicCapabilities, capabilities,
                  reinterpret_cast<const CUatomicOperation*>(operations), count, a, b);
  });
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* devPtr) {
  return forward(cuIpcGetMemHandle, reinterpret_cast<CUipcMemHandle*>(handle),
                 device_address(devPtr));
}

cudaError_t cudaIpcOpenMemHandle(void** devPtr, cudaIpcMemHandle_t handle, unsigned int flags) {
  CUipcMemHandle native = {};
  std::memcpy(&native, &handle, sizeof(native));
  return forward(cuIpcOpenMemHandle_v2, address_slot(devPtr), native, flags);
}

cudaError_t cudaIpcCloseMemHandle(void* devPtr) {
  return forward(cuIpcCloseMemHandle, device_address(devPtr));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  return forward(cuIpcGetEventHandle, reinterpret_cast<CUipcEventHandle*>(handle), event);
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  CUipcEventHandle native = {};
  std::memcpy(&native, &handle, sizeof(native));
  return forward(cuIpcOpenEventHandle, event, native);
}

}  // extern "C"
