// SPDX-License-Identifier: Apache-2.0
// FakeDriver: a libcuda.so.1 that does nothing but write down how it was called and answer as told.
// For the tests of libcudart alone: what it asks of a driver, and what it makes of the
// answers. Lacks most functions on purpose. Two devices, contexts as numbers.
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

#include "abi/cuda_driver.h"

namespace {

std::mutex mutex;
std::string calls;
std::map<std::string, CUresult> answers;
std::atomic<bool> quiet{false};
pid_t initialised_in = 0;
int version = 13000;
thread_local CUcontext current = nullptr;

CUDA_RESOURCE_DESC resource_of_object;
CUDA_RESOURCE_VIEW_DESC view_of_object;

constexpr int kDevices = 2;

template <typename T>
uintptr_t handle(T value) {
  return (uintptr_t)value;
}

template <typename... Args>
CUresult called(const char* name, Args... args) {
  if (quiet.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  std::lock_guard lock(mutex);
  std::ostringstream line;
  line << name;
  ((line << ' ' << handle(args)), ...);
  calls += line.str() + '\n';
  if (initialised_in != 0 && initialised_in != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  const auto answer = answers.find(name);
  return answer != answers.end() ? answer->second : CUDA_SUCCESS;
}

}  // namespace

extern "C" {
#pragma GCC visibility push(default)

void fake_answer(const char* name, int result) {
  std::lock_guard lock(mutex);
  answers[name] = static_cast<CUresult>(result);
}

void fake_version(int value) { version = value; }
void fake_quiet(int on) { quiet = on != 0; }

// Copies the calls since the last time, one a line.
void fake_calls(char* buffer, size_t size) {
  std::lock_guard lock(mutex);
  std::strncpy(buffer, calls.c_str(), size - 1);
  buffer[size - 1] = '\0';
  calls.clear();
}

CUresult cuInit(unsigned flags) {
  const CUresult result = called("cuInit", flags);
  if (result == CUDA_SUCCESS && initialised_in == 0) initialised_in = getpid();
  return result;
}

CUresult cuDriverGetVersion(int* out) {
  *out = version;
  return called("cuDriverGetVersion");
}

CUresult cuDeviceGetCount(int* count) {
  *count = kDevices;
  return called("cuDeviceGetCount");
}

// Handles differ from ordinals, so that nothing mixes them up.
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal + 10;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 1000 + attribute;
  return called("cuDeviceGetAttribute", attribute, device);
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  std::strncpy(name, "Fake device", length);
  return called("cuDeviceGetName", device);
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = size_t{3} << 30;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(0x1000 + static_cast<uintptr_t>(device));
  return called("cuDevicePrimaryCtxRetain", device);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return called("cuDevicePrimaryCtxRelease_v2", device);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return called("cuDevicePrimaryCtxReset_v2", device);
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  current = context;
  return called("cuCtxSetCurrent", context);
}

CUresult cuCtxGetDevice(CUdevice* device) {
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = static_cast<CUdevice>(reinterpret_cast<uintptr_t>(current) - 0x1000);
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() { return called("cuCtxSynchronize"); }

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned,
                           CUlibraryOption*, void**, unsigned) {
  *library = reinterpret_cast<CUlibrary>(0x2000);
  return called("cuLibraryLoadData", code);
}

CUresult cuLibraryUnload(CUlibrary library) { return called("cuLibraryUnload", library); }

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  *kernel = reinterpret_cast<CUkernel>(0x3000 + name[0]);
  return called("cuLibraryGetKernel", library);
}

CUresult cuLibraryGetManaged(CUdeviceptr* address, size_t* size, CUlibrary, const char*) {
  *address = 0x5000;
  *size = 4;
  return called("cuLibraryGetManaged");
}

CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* size, CUlibrary, const char*) {
  *address = 0x4000;
  *size = 16;
  return called("cuLibraryGetGlobal");
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        CUstream stream, void**, void**) {
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle(function) < 0x3000 || handle(function) > 0x30ff) return CUDA_ERROR_INVALID_HANDLE;
  return called("cuLaunchKernel", function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                shared, stream);
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t size) {
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *address = 0x5000;
  return called("cuMemAlloc_v2", size);
}

CUresult cuMemFree_v2(CUdeviceptr address) { return called("cuMemFree_v2", address); }

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t size) {
  return called("cuMemcpyHtoD_v2", to, from, size);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t size, CUstream stream) {
  return called("cuMemcpyHtoDAsync_v2", to, from, size, stream);
}

CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t size) {
  return called("cuMemcpyDtoH_v2", to, from, size);
}

// Textures and surfaces are what they were made of, as all that is asked of them is that.
CUresult cuTexObjectCreate(CUtexObject* object, const CUDA_RESOURCE_DESC* resource,
                           const CUDA_TEXTURE_DESC*, const CUDA_RESOURCE_VIEW_DESC* view) {
  resource_of_object = *resource;
  view_of_object = view != nullptr ? *view : CUDA_RESOURCE_VIEW_DESC{};
  *object = 1;
  return called("cuTexObjectCreate");
}
CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUtexObject) {
  *resource = resource_of_object;
  return called("cuTexObjectGetResourceDesc");
}
CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* view, CUtexObject) {
  *view = view_of_object;
  return called("cuTexObjectGetResourceViewDesc");
}
CUresult cuSurfObjectCreate(CUsurfObject* object, const CUDA_RESOURCE_DESC* resource) {
  resource_of_object = *resource;
  *object = 1;
  return called("cuSurfObjectCreate");
}
CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUsurfObject) {
  *resource = resource_of_object;
  return called("cuSurfObjectGetResourceDesc");
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* shape, CUarray) {
  *shape = {};
  shape->Width = 64, shape->Height = 32, shape->NumChannels = 1;
  shape->Format = CU_AD_FORMAT_FLOAT;
  return called("cuArray3DGetDescriptor_v2");
}

CUresult cuMemAdvise(CUdeviceptr address, size_t size, CUmem_advise advice, CUdevice device) {
  return called("cuMemAdvise", address, size, advice, device);
}
CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUdevice device, CUstream stream) {
  return called("cuMemPrefetchAsync", address, size, device, stream);
}
CUresult cuMemcpyBatchAsync(CUdeviceptr*, CUdeviceptr*, size_t*, size_t count, CUmemcpyAttributes*,
                            size_t*, size_t attributes, size_t* failed, CUstream stream) {
  *failed = 7;
  return called("cuMemcpyBatchAsync", count, attributes, stream);
}
CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP*, size_t* failed,
                              unsigned long long flags, CUstream stream) {
  *failed = 8;
  return called("cuMemcpy3DBatchAsync", count, flags, stream);
}
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData* data, size_t count) {
  return called("cuGraphAddDependencies_v2", graph, from, to, data, count);
}
CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* nodes,
                                              const CUgraphEdgeData* data, size_t count,
                                              unsigned int flags) {
  return called("cuStreamUpdateCaptureDependencies_v2", stream, nodes, data, count, flags);
}
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** nodes,
                                   const CUgraphEdgeData** data, size_t* count) {
  return called("cuStreamGetCaptureInfo_v3", stream, status, id, graph, nodes, data, count);
}

CUresult cuStreamQuery(CUstream stream) { return called("cuStreamQuery", stream); }
CUresult cuStreamSynchronize(CUstream stream) { return called("cuStreamSynchronize", stream); }
CUresult cuStreamDestroy_v2(CUstream stream) { return called("cuStreamDestroy_v2", stream); }
CUresult cuEventRecord(CUevent event, CUstream stream) {
  return called("cuEventRecord", event, stream);
}

#pragma GCC visibility pop
}
