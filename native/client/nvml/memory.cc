// SPDX-License-Identifier: Apache-2.0
// A vGPU's memory and who uses it: the slice that the session has, not the card, and this process
// alone, since others have sessions of their own.
#include <unistd.h>

#include "client/nvml/session.h"

using namespace sluice::nvml;
using sluice::client::SessionInterface;

namespace {

struct Use {
  uint64_t total = 0, free = 0, used = 0;
};

nvmlReturn_t memory_of(nvmlDevice_t device, Use* use) {
  uint32_t place;
  const SessionInterface* session;
  if (const nvmlReturn_t e = enter(device, &place, &session); e != NVML_SUCCESS) return e;
  session->memory(place, &use->free, &use->total);
  use->used = use->total - use->free;  // by others of its job too
  return NVML_SUCCESS;
}

// This process, if it computes there; asking opens no session.
template <class Info, class Fill>
nvmlReturn_t processes(nvmlDevice_t device, unsigned int* count, Info* infos, Fill fill) {
  uint32_t index, place;
  if (const nvmlReturn_t e = enter(device, &index); e != NVML_SUCCESS) return e;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  const SessionInterface* session = place_of(index, &place) ? session_if_open() : nullptr;
  const unsigned int room = *count;
  *count = session && place < session->device_count() && session->in_use(place) ? 1 : 0;
  if (*count == 0) return NVML_SUCCESS;
  if (room == 0) return NVML_ERROR_INSUFFICIENT_SIZE;
  if (!infos) return NVML_ERROR_INVALID_ARGUMENT;
  *infos = {};
  infos->pid = static_cast<unsigned int>(getpid());
  infos->usedGpuMemory = session->used_memory(place);
  fill(infos);
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
