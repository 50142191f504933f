// SPDX-License-Identifier: Apache-2.0
// What a process sees that only looks: the vGPUs of its requester's sessions or, where there are
// none, those that one would get. It is read from the server's JSON (docs/protocol.md, "Views");
// what the server leaves out is zero or unknown. A view is of one moment and never changes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client/nvml/session_interface.h"
#include "wire/gpu_figures.h"
#include "wire/protocol.h"

namespace sluice::nvml {

struct ViewedProcess {
  uint32_t pid = 0;
  std::string name;
  uint64_t used_bytes = 0;
};

struct ViewedVgpu {
  wire::DeviceRecord record{};  // as far as NVML needs it
  uint64_t used_bytes = 0;
  std::string driver_name;
  uint32_t cuda_version = 0;
  wire::GpuFigures figures{};
  std::vector<ViewedProcess> processes;
};

struct View {
  std::vector<ViewedVgpu> vgpus;
};

// Of the JSON of an answer; without vGPUs where it is none.
View read_view(std::string_view json);

// The view of this moment, or one that is less than a quarter of a second old. nullptr: there is
// none, as the log says.
std::shared_ptr<const View> current_view(const client::SessionInterface& session);

}  // namespace sluice::nvml
