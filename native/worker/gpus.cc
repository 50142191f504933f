// SPDX-License-Identifier: Apache-2.0
#include "worker/gpus.h"

#include <algorithm>

namespace sluice::worker {

namespace {

// What NVML says of a GPU by the driver's attributes.
std::string shown_attributes(const Driver& driver, CUdevice device) {
  static constexpr CUdevice_attribute kShown[] = {
      CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
      CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
      CU_DEVICE_ATTRIBUTE_COMPUTE_MODE,
      CU_DEVICE_ATTRIBUTE_ECC_ENABLED,
      CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE,
      CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH,
      CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
      CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
  };
  std::string all;
  for (const CUdevice_attribute attribute : kShown) {
    int value = 0;
    if (driver.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS)
      all += (all.empty() ? "" : " ") + std::to_string(static_cast<int>(attribute)) + "=" +
             std::to_string(value);
  }
  return all;
}

std::vector<std::string> named(const std::string& uuids) {
  std::vector<std::string> all;
  for (size_t at = 0; at < uuids.size();) {
    const size_t end = std::min(uuids.find(',', at), uuids.size());
    all.push_back(uuids.substr(at, end - at));
    at = end + 1;
  }
  return all;
}

}  // namespace

bool open_gpus(const Driver& driver, const std::string& own, std::vector<Gpu>* gpus,
               std::string* error) {
  CUresult e = driver.cuInit(0);
  int count = 0;
  if (e == CUDA_SUCCESS) e = driver.cuDeviceGetCount(&count);
  if (e != CUDA_SUCCESS || count == 0) {
    *error = e != CUDA_SUCCESS ? driver.error_text(e) : "it shows no GPU";
    return false;
  }
  const std::vector<std::string> wanted = named(own);
  const int most = wanted.empty() ? count : static_cast<int>(wanted.size());
  if (most > count) {
    *error = "it shows " + std::to_string(count) + " GPUs of " + std::to_string(most);
    return false;
  }
  for (int i = 0; i < most; ++i) {
    Gpu g;
    char name[128] = "", bus[64] = "";
    size_t bytes = 0;
    e = driver.cuDeviceGet(&g.ordinal, i);
    if (e == CUDA_SUCCESS) e = driver.cuDeviceGetUuid_v2(&g.uuid, g.ordinal);
    if (e == CUDA_SUCCESS && !wanted.empty() && uuid_text(g.uuid) != wanted[i]) {
      *error = "GPU " + std::to_string(i) + " is " + uuid_text(g.uuid) + ", and " + wanted[i] +
               " was to be";
      return false;
    }
    if (e == CUDA_SUCCESS) e = driver.cuDeviceGetName(name, sizeof name, g.ordinal);
    if (e == CUDA_SUCCESS) e = driver.cuDeviceTotalMem_v2(&bytes, g.ordinal);
    if (e == CUDA_SUCCESS) e = driver.cuDeviceGetPCIBusId(bus, sizeof bus, g.ordinal);
    if (e == CUDA_SUCCESS) e = driver.cuDevicePrimaryCtxRetain(&g.context, g.ordinal);
    if (e == CUDA_SUCCESS) e = driver.cuCtxSetCurrent(g.context);
    if (e == CUDA_SUCCESS) e = driver.cuStreamCreate(&g.house, CU_STREAM_NON_BLOCKING);
    if (e != CUDA_SUCCESS) {
      *error = "GPU " + std::to_string(i) + ": " + driver.error_text(e);
      return false;
    }
    g.name = name;
    g.pci_bus_id = bus;
    g.attributes = shown_attributes(driver, g.ordinal);
    g.memory_bytes = bytes;
    gpus->push_back(g);
  }
  return true;
}

}  // namespace sluice::worker
