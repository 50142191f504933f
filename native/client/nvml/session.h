// SPDX-License-Identifier: Apache-2.0
// How libnvidia-ml.so.1 gets at the session. Starting NVML and counting vGPUs open none, because
// programs do both before they fork; the first question about a vGPU itself does, through the
// libcuda.so.1 beside this library, and so it is the one that CUDA calls of the process use too.
#pragma once

#include "abi/nvml.h"
#include "client/nvml/session_interface.h"

namespace sluice::nvml {

// nvmlInit and nvmlShutdown, which count.
void start();
nvmlReturn_t stop();

// The start of every call: NVML_ERROR_UNINITIALIZED outside of start and stop.
nvmlReturn_t enter();
// The same, for a call that takes a device's handle: its index too.
nvmlReturn_t enter(nvmlDevice_t device, uint32_t* index);
// The same, for one that needs the session; of a device, its place in the session.
// NVML_ERROR_NO_PERMISSION for one that CUDA_VISIBLE_DEVICES hides: the session has none such.
nvmlReturn_t enter(const client::SessionInterface** session);
nvmlReturn_t enter(nvmlDevice_t device, uint32_t* place, const client::SessionInterface** session);
// And the vGPU's record.
nvmlReturn_t enter(nvmlDevice_t device, const wire::DeviceRecord** record);

// The highest clock of the video unit, which only the node knows.
nvmlReturn_t video_clock_limit(nvmlDevice_t device, unsigned int* mhz);

// What every function that is not there answers.
nvmlReturn_t unsupported();

// The vGPUs of this process, hidden ones too, as NVML has nothing to do with CUDA_VISIBLE_DEVICES.
uint32_t device_count();
// Of an index below device_count().
nvmlDevice_t handle_of(uint32_t index);
// Of a place in the session.
nvmlDevice_t handle_at(uint32_t place);
// The place of an index in the session; false for one that is hidden.
bool place_of(uint32_t index, uint32_t* place);
// The session, if the process has one by now; nullptr if not.
const client::SessionInterface* session_if_open();

// Copies a text with its end; NVML_ERROR_INSUFFICIENT_SIZE where it has no room.
nvmlReturn_t put_text(const char* text, char* to, unsigned int room);
// "GPU-8-4-4-4-12", as nvidia-smi and CUDA_VISIBLE_DEVICES spell it.
constexpr unsigned kUuidBytes = 41;
void uuid_text(const uint8_t uuid[16], char (&to)[kUuidBytes]);

}  // namespace sluice::nvml
