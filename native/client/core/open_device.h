// SPDX-License-Identifier: Apache-2.0
// A vGPU becomes the process's own when the session opens: its window of addresses is reserved, and
// its memory, pools and primary context are there without the node being asked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "wire/frame.h"

namespace sluice::client {

class Session;
struct Device;

// `shares_memory`: other sessions of the job have memory of the same vGPU. nullptr: `error` says
// why it cannot be had.
std::unique_ptr<Device> open_device(Session* s, uint32_t index, const wire::DeviceRecord& record,
                                    bool shares_memory, std::string* error);

}  // namespace sluice::client
