// SPDX-License-Identifier: Apache-2.0
// Starting and ending NVML, versions, and how devices are found.
#include <strings.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "client/nvml/session.h"
#include "pci_address.h"

using namespace sluice::nvml;
using sluice::client::SessionInterface;
using sluice::wire::DeviceRecord;

namespace {

constexpr int kCudaVersion = 13000;

nvmlReturn_t by_index(unsigned int index, nvmlDevice_t* device) {
  if (const nvmlReturn_t e = enter(); e != NVML_SUCCESS) return e;
  if (!device || index >= device_count()) return NVML_ERROR_INVALID_ARGUMENT;
  *device = handle_of(index);
  return NVML_SUCCESS;
}

template <class Match>
nvmlReturn_t find(nvmlDevice_t* device, Match match) {
  const SessionInterface* session;
  if (const nvmlReturn_t e = enter(&session); e != NVML_SUCCESS) return e;
  if (!device) return NVML_ERROR_INVALID_ARGUMENT;
  for (uint32_t i = 0; i < session->device_count(); ++i) {
    if (!match(*session->device(i))) continue;
    *device = handle_at(i);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t by_bus(const char* bus, nvmlDevice_t* device) {
  if (!bus) return NVML_ERROR_INVALID_ARGUMENT;
  const std::optional<sluice::PciAddress> wanted = sluice::read_pci_address(bus);
  return find(device, [&](const DeviceRecord& r) {
    return wanted && wanted == sluice::read_pci_address(r.pci_bus_id);
  });
}

nvmlReturn_t count(unsigned int* to) {
  if (const nvmlReturn_t e = enter(); e != NVML_SUCCESS) return e;
  if (!to) return NVML_ERROR_INVALID_ARGUMENT;
  *to = device_count();
  return NVML_SUCCESS;
}

nvmlReturn_t cuda_version(int* to) {
  if (const nvmlReturn_t e = enter(); e != NVML_SUCCESS) return e;
  if (!to) return NVML_ERROR_INVALID_ARGUMENT;
  const SessionInterface* session = session_if_open();
  *to = session ? static_cast<int>(session->cuda_version()) : kCudaVersion;
  return NVML_SUCCESS;
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlInit_v2(void) {
  start();
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit(void) { return nvmlInit_v2(); }

nvmlReturn_t nvmlInitWithFlags(unsigned int) { return nvmlInit_v2(); }

nvmlReturn_t nvmlShutdown(void) { return stop(); }

nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  const SessionInterface* session;
  if (const nvmlReturn_t e = enter(&session); e != NVML_SUCCESS) return e;
  const char* name = session->driver_name();
  return *name ? put_text(name, version, length) : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, unsigned int length) {
  if (const nvmlReturn_t e = enter(); e != NVML_SUCCESS) return e;
  // NVIDIA's: of the interface, then of the driver that it came with.
  const SessionInterface* session = session_if_open();
  std::string text = std::to_string(NVML_API_VERSION);
  if (session && *session->driver_name()) text += std::string(".") + session->driver_name();
  return put_text(text.c_str(), version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) { return cuda_version(version); }

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) { return cuda_version(version); }

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char* name, unsigned int length) {
  if (const nvmlReturn_t e = enter(); e != NVML_SUCCESS) return e;
  if (!name || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
  char text[4096];
  const ssize_t bytes =
      readlink(("/proc/" + std::to_string(pid) + "/exe").c_str(), text, sizeof text - 1);
  if (bytes < 0) return NVML_ERROR_NOT_FOUND;
  text[bytes] = 0;
  std::snprintf(name, length, "%s", text);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* to) { return count(to); }

nvmlReturn_t nvmlDeviceGetCount(unsigned int* to) { return count(to); }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  return by_index(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t* device) {
  return by_index(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  if (!uuid) return NVML_ERROR_INVALID_ARGUMENT;
  return find(device, [&](const DeviceRecord& r) {
    char own[kUuidBytes];
    uuid_text(r.uuid, own);
    return strcasecmp(own, uuid) == 0;
  });
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t* uuid, nvmlDevice_t* device) {
  if (!uuid) return NVML_ERROR_INVALID_ARGUMENT;
  if (uuid->type == NVML_UUID_TYPE_ASCII) {
    char text[sizeof uuid->value.str + 1] = "";
    std::memcpy(text, uuid->value.str, sizeof uuid->value.str);
    return nvmlDeviceGetHandleByUUID(text, device);
  }
  if (uuid->type != NVML_UUID_TYPE_BINARY) return NVML_ERROR_INVALID_ARGUMENT;
  return find(device, [&](const DeviceRecord& r) {
    return std::memcmp(r.uuid, uuid->value.bytes, sizeof r.uuid) == 0;
  });
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* bus, nvmlDevice_t* device) {
  return by_bus(bus, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* bus, nvmlDevice_t* device) {
  return by_bus(bus, device);
}

}  // extern "C"
