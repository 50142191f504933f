// SPDX-License-Identifier: Apache-2.0
// What libnvidia-ml.so.1 gets to know of the session; see client/nvml/door.h.
#include <algorithm>

#include "client/core/session.h"
#include "client/nvml/door.h"

using namespace sluice::client;

namespace {

Device& device_at(uint32_t index) { return *Session::get()->devices()[index]; }

const NvmlDoor kDoor = {
    [] { return Session::get() != nullptr; },
    [] { return Session::open(); },
    [] { return static_cast<uint32_t>(Session::get()->devices().size()); },
    [](uint32_t index) -> const sluice::wire::DeviceRecord* { return &device_at(index).record; },
    [](uint32_t index, uint64_t* free, uint64_t* total) {
      device_at(index).memory.info(free, total);
    },
    [](uint32_t index) {
      uint64_t free, total;
      device_at(index).memory.info(&free, &total);
      return free != total || device_at(index).primary_uses.load() > 0;
    },
    [] { return Session::get()->driver_name(); },
    [] { return std::min(Session::get()->driver_version(), 13000u); },
};

}  // namespace

const NvmlDoor* sluice_nvml_door() { return &kDoor; }
