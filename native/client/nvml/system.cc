// SPDX-License-Identifier: Apache-2.0
// Starting and ending NVML, versions, and how devices are found.
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "client/core/log.h"
#include "client/nvml/session.h"
#include "pci_address.h"

using namespace sluice::nvml;
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
  Vgpus all;
  if (const nvmlReturn_t e = enter(&all); e != NVML_SUCCESS) return e;
  if (!device) return NVML_ERROR_INVALID_ARGUMENT;
  for (uint32_t i = 0; i < all.count(); ++i) {
    if (!match(all.record(i))) continue;
    *device = all.handle(i);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

// By the UUID that a vGPU has, or that was told of it before there was a session.
template <class Match>
nvmlReturn_t by_uuid(nvmlDevice_t* device, Match match) {
  const nvmlReturn_t e = find(device, [&](const DeviceRecord& r) { return match(r.uuid); });
  if (e != NVML_ERROR_NOT_FOUND) return e;
  const uint32_t index = index_told(match);
  if (index >= device_count()) return e;
  *device = handle_of(index);
  return NVML_SUCCESS;
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
  Vgpus all;
  if (const nvmlReturn_t e = peek(&all); e != NVML_SUCCESS) return e;
  if (!to) return NVML_ERROR_INVALID_ARGUMENT;
  *to = kCudaVersion;
  if (all.session)
    *to = static_cast<int>(all.session->cuda_version());
  else if (all.count() && all.view->vgpus[0].cuda_version)
    *to = std::min(static_cast<int>(all.view->vgpus[0].cuda_version), kCudaVersion);
  return NVML_SUCCESS;
}

std::string driver_name(const Vgpus& all) {
  if (all.session) return all.session->driver_name();
  return all.count() ? all.view->vgpus[0].driver_name : "";
}

// Of a process that another container or user of this machine has: what its session said.
std::string viewed_name(unsigned int pid) {
  Vgpus all;
  if (peek(&all) != NVML_SUCCESS || !all.view) return "";
  for (const ViewedVgpu& vgpu : all.view->vgpus)
    for (const ViewedProcess& process : vgpu.processes)
      if (process.pid == pid) return process.name;
  return "";
}

// NVIDIA's own nvidia-smi asks for private tables before anything else, and says only that it has
// failed; so its user is told as soon as it loads this library.
[[gnu::constructor]] void name_our_own() {
  char path[4096];
  const ssize_t bytes = readlink("/proc/self/exe", path, sizeof path);
  const std::string_view program(path, bytes > 0 ? static_cast<size_t>(bytes) : 0);
  if (program.substr(program.rfind('/') + 1) != "nvidia-smi") return;
  sluice::client::log_line(
      sluice::client::LogLevel::kError,
      "NVIDIA's nvidia-smi asks for private tables, which Sluice does not answer: use that of "
      "Sluice, /opt/sluice/bin/nvidia-smi or `sluice smi`");
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlInit_v2(void) {
  start(false);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit(void) { return nvmlInit_v2(); }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
  start(flags & NVML_INIT_FLAG_NO_ATTACH);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void) { return stop(); }

nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  Vgpus all;
  if (const nvmlReturn_t e = enter(&all); e != NVML_SUCCESS) return e;
  const std::string name = driver_name(all);
  return name.empty() ? NVML_ERROR_NOT_SUPPORTED : put_text(name.c_str(), version, length);
}

// The branch that a version is of: 580.159.04 is of r580_00, the first that its number has.
nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t* branch, unsigned int length) {
  Vgpus all;
  if (const nvmlReturn_t e = enter(&all); e != NVML_SUCCESS) return e;
  if (!branch) return NVML_ERROR_INVALID_ARGUMENT;
  if (branch->version != (sizeof *branch | 1u << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const std::string name = driver_name(all);
  const std::string major = name.substr(0, name.find('.'));
  if (major.empty() || major.find_first_not_of("0123456789") != std::string::npos)
    return NVML_ERROR_NOT_SUPPORTED;
  const std::string text = "r" + major + "_00";
  return put_text(text.c_str(), branch->branch,
                  std::min<unsigned int>(length, sizeof branch->branch));
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, unsigned int length) {
  Vgpus all;
  if (const nvmlReturn_t e = peek(&all); e != NVML_SUCCESS) return e;
  // NVIDIA's: of the interface, then of the driver that it came with.
  std::string text = std::to_string(NVML_API_VERSION);
  if (const std::string driver = driver_name(all); !driver.empty()) text += "." + driver;
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
  if (bytes < 0) {
    const std::string known = viewed_name(pid);
    if (known.empty()) return NVML_ERROR_NOT_FOUND;
    std::snprintf(name, length, "%s", known.c_str());
    return NVML_SUCCESS;
  }
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
  return by_uuid(device, [&](const uint8_t known[16]) {
    char own[kUuidBytes];
    uuid_text(known, own);
    constexpr size_t kPrefix = 4;  // "GPU-", which NVIDIA's does not insist on
    return strcasecmp(own, uuid) == 0 || strcasecmp(own + kPrefix, uuid) == 0;
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
  return by_uuid(device, [&](const uint8_t known[16]) {
    return std::memcmp(known, uuid->value.bytes, 16) == 0;
  });
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* bus, nvmlDevice_t* device) {
  return by_bus(bus, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* bus, nvmlDevice_t* device) {
  return by_bus(bus, device);
}

}  // extern "C"
