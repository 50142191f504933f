// SPDX-License-Identifier: Apache-2.0
// Devices: every answer is local, from the record that came with the session.
#include "client/objects/device.h"

#include <cstdio>
#include <cstring>

#include "client/core/enter.h"
#include "client/core/session.h"
#include "pci_address.h"

using namespace sluice::client;

namespace {

CUresult find(CUdevice ordinal, Session** s, Device** device) {
  if (const CUresult e = enter_query(s); e != CUDA_SUCCESS) return e;
  auto& all = (*s)->devices();
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= all.size()) return CUDA_ERROR_INVALID_DEVICE;
  *device = all[static_cast<size_t>(ordinal)].get();
  return CUDA_SUCCESS;
}

int attribute(const Device& d, int a) { return d.record.attributes[a]; }

}  // namespace

extern "C" {

CUresult cuDeviceGetCount(int* count) {
  Session* s;
  if (const CUresult e = enter_query(&s); e != CUDA_SUCCESS) return e;
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(s->devices().size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  Session* s;
  Device* d;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = find(ordinal, &s, &d); e != CUDA_SUCCESS) return e;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice dev) {
  Session* s;
  Device* d;
  if (const CUresult e = find(dev, &s, &d); e != CUDA_SUCCESS) return e;
  if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(name, static_cast<size_t>(length), "%s", d->record.name);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
  Session* s;
  Device* d;
  if (const CUresult e = find(dev, &s, &d); e != CUDA_SUCCESS) return e;
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(uuid, d->record.uuid, sizeof *uuid);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  Session* s;
  Device* d;
  if (const CUresult e = find(dev, &s, &d); e != CUDA_SUCCESS) return e;
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  *bytes = d->record.memory_bytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute a, CUdevice dev) {
  Session* s;
  Device* d;
  if (const CUresult e = find(dev, &s, &d); e != CUDA_SUCCESS) return e;
  if (!value || a <= 0 || static_cast<uint32_t>(a) >= d->record.attribute_count)
    return CUDA_ERROR_INVALID_VALUE;
  *value = attribute(*d, a);
  return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice dev) {
  Session* s;
  Device* d;
  if (const CUresult e = find(dev, &s, &d); e != CUDA_SUCCESS) return e;
  if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
  *major = attribute(*d, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  *minor = attribute(*d, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop* prop, CUdevice dev) {
  Session* s;
  Device* d;
  if (const CUresult e = find(dev, &s, &d); e != CUDA_SUCCESS) return e;
  if (!prop) return CUDA_ERROR_INVALID_VALUE;
  prop->maxThreadsPerBlock = attribute(*d, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  prop->maxThreadsDim[0] = attribute(*d, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
  prop->maxThreadsDim[1] = attribute(*d, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
  prop->maxThreadsDim[2] = attribute(*d, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
  prop->maxGridSize[0] = attribute(*d, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
  prop->maxGridSize[1] = attribute(*d, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
  prop->maxGridSize[2] = attribute(*d, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
  prop->sharedMemPerBlock = attribute(*d, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  prop->totalConstantMemory = attribute(*d, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
  prop->SIMDWidth = attribute(*d, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  prop->memPitch = attribute(*d, CU_DEVICE_ATTRIBUTE_MAX_PITCH);
  prop->regsPerBlock = attribute(*d, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  prop->clockRate = attribute(*d, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  prop->textureAlign = attribute(*d, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice dev) {
  Session* s;
  Device* d;
  if (const CUresult e = find(dev, &s, &d); e != CUDA_SUCCESS) return e;
  if (!text || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(text, static_cast<size_t>(length), "%s", d->record.pci_bus_id);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice* dev, const char* text) {
  Session* s;
  if (const CUresult e = enter_query(&s); e != CUDA_SUCCESS) return e;
  if (!dev || !text) return CUDA_ERROR_INVALID_VALUE;
  const std::optional<sluice::PciAddress> wanted = sluice::read_pci_address(text);
  if (!wanted) return CUDA_ERROR_INVALID_DEVICE;
  for (auto& d : s->devices()) {
    if (wanted != sluice::read_pci_address(d->record.pci_bus_id)) continue;
    *dev = static_cast<CUdevice>(d->index);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

}  // extern "C"
