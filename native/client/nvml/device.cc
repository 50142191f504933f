// SPDX-License-Identifier: Apache-2.0
// What a vGPU is: its names and properties, from the session's record.
#include <cstdio>
#include <cstring>

#include "client/nvml/session.h"
#include "pci_address.h"

using namespace sluice::nvml;
using sluice::wire::DeviceRecord;

namespace {

int attribute(const DeviceRecord& r, CUdevice_attribute which) { return r.attributes[which]; }

// Asks one thing of a vGPU: `answer` makes it of the record.
template <class T, class Answer>
nvmlReturn_t ask(nvmlDevice_t device, T* to, Answer answer) {
  Vgpu vgpu;
  if (const nvmlReturn_t e = enter(device, &vgpu); e != NVML_SUCCESS) return e;
  if (!to) return NVML_ERROR_INVALID_ARGUMENT;
  *to = static_cast<T>(answer(vgpu.record()));
  return NVML_SUCCESS;
}

// The same for what is so of every vGPU, and needs no session.
template <class T>
nvmlReturn_t say(nvmlDevice_t device, T* to, T value) {
  uint32_t index;
  if (const nvmlReturn_t e = enter(device, &index); e != NVML_SUCCESS) return e;
  if (!to) return NVML_ERROR_INVALID_ARGUMENT;
  *to = value;
  return NVML_SUCCESS;
}

nvmlBrandType_t brand_of(const DeviceRecord& r) {
  const auto has = [&](const char* word) { return std::strstr(r.name, word) != nullptr; };
  if (has("GeForce RTX")) return NVML_BRAND_GEFORCE_RTX;
  if (has("GeForce")) return NVML_BRAND_GEFORCE;
  if (has("Quadro RTX")) return NVML_BRAND_QUADRO_RTX;
  if (has("Quadro")) return NVML_BRAND_QUADRO;
  if (has("Tesla")) return NVML_BRAND_TESLA;
  if (has("TITAN")) return NVML_BRAND_TITAN;
  if (has("NVIDIA RTX")) return NVML_BRAND_NVIDIA_RTX;
  return has("NVIDIA") ? NVML_BRAND_NVIDIA : NVML_BRAND_UNKNOWN;
}

unsigned architecture_of(const DeviceRecord& r) {
  const int major = attribute(r, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  const int minor = attribute(r, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  switch (major) {
    case 5:
      return NVML_DEVICE_ARCH_MAXWELL;
    case 6:
      return NVML_DEVICE_ARCH_PASCAL;
    case 7:
      return minor < 5 ? NVML_DEVICE_ARCH_VOLTA : NVML_DEVICE_ARCH_TURING;
    case 8:
      return minor < 9 ? NVML_DEVICE_ARCH_AMPERE : NVML_DEVICE_ARCH_ADA;
    case 9:
      return NVML_DEVICE_ARCH_HOPPER;
    case 10:
    case 12:
      return NVML_DEVICE_ARCH_BLACKWELL;
    default:
      return NVML_DEVICE_ARCH_UNKNOWN;
  }
}

sluice::PciAddress pci_address_of(const DeviceRecord& r) {
  return sluice::read_pci_address(r.pci_bus_id).value_or(sluice::PciAddress{});
}

template <size_t N>
void put(char (&to)[N], const std::string& text) {
  std::snprintf(to, N, "%s", text.c_str());
}

// `ids`: the device's ids on the bus are the node's own knowledge and stay zero.
nvmlReturn_t pci_info(nvmlDevice_t device, nvmlPciInfo_t* to) {
  return ask(device, to, [](const DeviceRecord& r) {
    sluice::PciAddress a = pci_address_of(r);
    nvmlPciInfo_t info{};
    info.domain = a.domain;
    info.bus = a.bus;
    info.device = a.device;
    put(info.busId, a.text(8));
    a.domain &= 0xffff;  // what the older spelling has room for
    put(info.busIdLegacy, a.text());
    return info;
  });
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int* index) {
  uint32_t own;
  if (const nvmlReturn_t e = enter(device, &own); e != NVML_SUCCESS) return e;
  if (!index) return NVML_ERROR_INVALID_ARGUMENT;
  *index = own;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int* minor) {
  return nvmlDeviceGetIndex(device, minor);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned int length) {
  Vgpu vgpu;
  if (const nvmlReturn_t e = enter(device, &vgpu); e != NVML_SUCCESS) return e;
  return put_text(vgpu.record().name, name, length);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  Vgpu vgpu;
  if (const nvmlReturn_t e = enter(device, &vgpu); e != NVML_SUCCESS) return e;
  char text[kUuidBytes];
  uuid_text(vgpu.record().uuid, text);
  if (vgpu.view) remember_uuid(vgpu.place, vgpu.record().uuid);
  return put_text(text, uuid, length);
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t* brand) {
  return ask(device, brand, brand_of);
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t* to) {
  return ask(device, to, architecture_of);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  Vgpu vgpu;
  if (const nvmlReturn_t e = enter(device, &vgpu); e != NVML_SUCCESS) return e;
  if (!major || !minor) return NVML_ERROR_INVALID_ARGUMENT;
  *major = attribute(vgpu.record(), CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  *minor = attribute(vgpu.record(), CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t* mode) {
  return ask(device, mode, [](const DeviceRecord& r) {
    switch (attribute(r, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)) {
      case CU_COMPUTEMODE_PROHIBITED:
        return NVML_COMPUTEMODE_PROHIBITED;
      case CU_COMPUTEMODE_EXCLUSIVE_PROCESS:
        return NVML_COMPUTEMODE_EXCLUSIVE_PROCESS;
      default:
        return NVML_COMPUTEMODE_DEFAULT;
    }
  });
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type,
                                       unsigned int* mhz) {
  if (type == NVML_CLOCK_VIDEO) return video_clock_limit(device, mhz);
  if (type != NVML_CLOCK_GRAPHICS && type != NVML_CLOCK_SM && type != NVML_CLOCK_MEM)
    return NVML_ERROR_INVALID_ARGUMENT;
  return ask(device, mhz, [&](const DeviceRecord& r) {
    return attribute(r, type == NVML_CLOCK_MEM ? CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE
                                               : CU_DEVICE_ATTRIBUTE_CLOCK_RATE) /
           1000;
  });
}

nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned int* bits) {
  return ask(device, bits, [](const DeviceRecord& r) {
    return attribute(r, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  });
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t* current,
                                  nvmlEnableState_t* pending) {
  if (!pending) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t e = ask(device, current, [](const DeviceRecord& r) {
    return attribute(r, CU_DEVICE_ATTRIBUTE_ECC_ENABLED) ? NVML_FEATURE_ENABLED
                                                         : NVML_FEATURE_DISABLED;
  });
  if (e == NVML_SUCCESS) *pending = *current;
  return e;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return pci_info(device, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  nvmlPciInfo_t whole;
  const nvmlReturn_t e = pci_info(device, pci ? &whole : nullptr);
  // The second version had no busId behind the ids, but as much room for something else.
  if (e == NVML_SUCCESS) std::memcpy(pci, &whole, offsetof(nvmlPciInfo_t, busId));
  return e;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return nvmlDeviceGetPciInfo_v2(device, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t* pci) {
  if (pci && pci->version != (sizeof *pci | 1u << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return ask(device, pci, [&](const DeviceRecord& r) {
    const sluice::PciAddress a = pci_address_of(r);
    nvmlPciInfoExt_t info{};
    info.version = pci->version;
    info.domain = a.domain;
    info.bus = a.bus;
    info.device = a.device;
    info.baseClass = 3;  // a display controller,
    info.subClass = 2;   // of the 3D kind
    put(info.busId, a.text(8));
    return info;
  });
}

nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t* display) {
  return say(device, display, NVML_FEATURE_DISABLED);
}

nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t* active) {
  return say(device, active, NVML_FEATURE_DISABLED);
}

nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned int* multi) {
  return say(device, multi, 0u);
}

// A vGPU is no MIG device and has none inside, also on a card that is divided so.
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int* current,
                                  unsigned int* pending) {
  if (!pending) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t e = say(device, current, static_cast<unsigned>(NVML_DEVICE_MIG_DISABLE));
  if (e == NVML_SUCCESS) *pending = *current;
  return e;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int* is) {
  return say(device, is, 0u);
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int* count) {
  return say(device, count, 0u);
}

}  // extern "C"
