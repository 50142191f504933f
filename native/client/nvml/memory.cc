// SPDX-License-Identifier: Apache-2.0
// A vGPU's memory and who uses it: the slice, not the card, and of a session this process alone,
// since others have sessions of their own. Who only looks sees all of his requester's.
#include <unistd.h>

#include <vector>

#include "client/nvml/session.h"

using namespace sluice::nvml;

namespace {

struct Use {
  uint64_t total = 0, free = 0, used = 0;
};

nvmlReturn_t memory_of(nvmlDevice_t device, Use* use) {
  Vgpu vgpu;
  if (const nvmlReturn_t e = enter(device, &vgpu); e != NVML_SUCCESS) return e;
  if (vgpu.session) {
    vgpu.session->memory(vgpu.place, &use->free, &use->total);
    use->used = use->total - use->free;  // by others of its job too
  } else {
    use->total = vgpu.record().memory_bytes;
    use->used = vgpu.viewed().used_bytes;
    use->free = use->total - use->used;
  }
  return NVML_SUCCESS;
}

// This process, if it computes there, or those that are looked at; asking opens no session.
template <class Info, class Fill>
nvmlReturn_t processes(nvmlDevice_t device, unsigned int* count, Info* infos, Fill fill) {
  Vgpu vgpu;
  if (const nvmlReturn_t e = peek(device, &vgpu); e != NVML_SUCCESS) return e;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  std::vector<ViewedProcess> found;
  if (vgpu.view)
    found = vgpu.viewed().processes;
  else if (vgpu.session && vgpu.session->in_use(vgpu.place))
    found = {{static_cast<uint32_t>(getpid()), "", vgpu.session->used_memory(vgpu.place)}};
  const unsigned int room = *count;
  *count = static_cast<unsigned int>(found.size());
  if (found.empty()) return NVML_SUCCESS;
  if (room < found.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  if (!infos) return NVML_ERROR_INVALID_ARGUMENT;
  for (const ViewedProcess& process : found) {
    *infos = {};
    infos->pid = process.pid;
    infos->usedGpuMemory = process.used_bytes;
    fill(infos++);
  }
  return NVML_SUCCESS;
}

constexpr unsigned kNoInstance = 0xffffffff;  // of a MIG device

constexpr auto kPlain = [](auto*) {};
constexpr auto kWithInstances = [](auto* info) {
  info->gpuInstanceId = info->computeInstanceId = kNoInstance;
};

nvmlReturn_t none(nvmlDevice_t device, unsigned int* count) {
  uint32_t index;
  if (const nvmlReturn_t e = enter(device, &index); e != NVML_SUCCESS) return e;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  Use use;
  if (const nvmlReturn_t e = memory_of(device, &use); e != NVML_SUCCESS) return e;
  if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
  *memory = {use.total, use.free, use.used};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  if (memory && memory->version != (sizeof *memory | 2u << 24))
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  Use use;
  if (const nvmlReturn_t e = memory_of(device, &use); e != NVML_SUCCESS) return e;
  if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
  *memory = {memory->version, use.total, 0, use.free, use.used};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                     nvmlProcessInfo_t* infos) {
  return processes(device, count, infos, kWithInstances);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* count,
                                                     nvmlProcessInfo_v2_t* infos) {
  return processes(device, count, infos, kWithInstances);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                  nvmlProcessInfo_v1_t* infos) {
  return processes(device, count, infos, kPlain);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                      nvmlProcessInfo_t*) {
  return none(device, count);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int* count,
                                                      nvmlProcessInfo_v2_t*) {
  return none(device, count);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                   nvmlProcessInfo_v1_t*) {
  return none(device, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                        nvmlProcessInfo_t*) {
  return none(device, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* count,
                                                        nvmlProcessInfo_v2_t*) {
  return none(device, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                     nvmlProcessInfo_v1_t*) {
  return none(device, count);
}

}  // extern "C"
