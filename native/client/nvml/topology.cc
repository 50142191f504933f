// SPDX-License-Identifier: Apache-2.0
// How vGPUs lie to one another. Two of one card are told by the card's name; what joins two cards
// is the node's affair.
#include <cstring>

#include "client/nvml/session.h"

using namespace sluice::nvml;
using sluice::wire::DeviceRecord;

namespace {

nvmlReturn_t both(nvmlDevice_t a, nvmlDevice_t b, Vgpu* x, Vgpu* y) {
  const nvmlReturn_t e = enter(a, x);
  return e == NVML_SUCCESS ? enter(b, y) : e;
}

bool one_card(const DeviceRecord& x, const DeviceRecord& y) {
  return std::memcmp(x.physical_uuid, y.physical_uuid, sizeof x.physical_uuid) == 0;
}

nvmlGpuTopologyLevel_t level_of(const DeviceRecord& x, const DeviceRecord& y) {
  return one_card(x, y) ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_SYSTEM;
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b,
                                                 nvmlGpuTopologyLevel_t* level) {
  Vgpu x, y;
  if (const nvmlReturn_t e = both(a, b, &x, &y); e != NVML_SUCCESS) return e;
  if (!level) return NVML_ERROR_INVALID_ARGUMENT;
  *level = level_of(x.record(), y.record());
  return NVML_SUCCESS;
}

// `count`: the room in `devices`, and then how many there are; without room, only that.
nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                              unsigned int* count, nvmlDevice_t* devices) {
  Vgpu own;
  if (const nvmlReturn_t e = enter(device, &own); e != NVML_SUCCESS) return e;
  if (!count || (*count && !devices)) return NVML_ERROR_INVALID_ARGUMENT;
  const unsigned room = devices ? *count : 0;
  *count = 0;
  for (uint32_t i = 0; i < own.count(); ++i) {
    if (i == own.place || level_of(own.record(), own.Vgpus::record(i)) != level) continue;
    if (*count < room) devices[*count] = own.handle(i);
    ++*count;
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t a, nvmlDevice_t b, int* same) {
  Vgpu x, y;
  if (const nvmlReturn_t e = both(a, b, &x, &y); e != NVML_SUCCESS) return e;
  if (!same) return NVML_ERROR_INVALID_ARGUMENT;
  *same = one_card(x.record(), y.record());
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuP2PCapsIndex_t which,
                                    nvmlGpuP2PStatus_t* status) {
  Vgpu x, y;
  if (const nvmlReturn_t e = both(a, b, &x, &y); e != NVML_SUCCESS) return e;
  if (!status || which < NVML_P2P_CAPS_INDEX_READ || which >= NVML_P2P_CAPS_INDEX_UNKNOWN)
    return NVML_ERROR_INVALID_ARGUMENT;
  // As cuDeviceCanAccessPeer says; by which link is the node's affair.
  const uint64_t peers = which == NVML_P2P_CAPS_INDEX_NVLINK    ? 0
                         : which == NVML_P2P_CAPS_INDEX_ATOMICS ? x.record().peer_atomics
                                                                : x.record().peers;
  *status = a == b || peers >> y.place & 1 ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link,
                                      nvmlEnableState_t* active) {
  uint32_t index;
  if (const nvmlReturn_t e = enter(device, &index); e != NVML_SUCCESS) return e;
  if (!active || link >= NVML_NVLINK_MAX_LINKS) return NVML_ERROR_INVALID_ARGUMENT;
  *active = NVML_FEATURE_DISABLED;
  return NVML_SUCCESS;
}

}  // extern "C"
