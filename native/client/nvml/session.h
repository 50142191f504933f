// SPDX-License-Identifier: Apache-2.0
// How libnvidia-ml.so.1 gets at vGPUs. A process that has a session, or has loaded CUDA and so will
// have one, is told about that: the first question about a vGPU opens it, through the libcuda.so.1
// beside this library, and so it is the one that CUDA calls of the process use too. Starting NVML
// and counting vGPUs open none, because programs do both before they fork. A process of NVML alone
// only looks (view.h), and so does one that started it with NVML_INIT_FLAG_NO_ATTACH: it never gets
// a session by that.
#pragma once

#include <functional>
#include <memory>

#include "abi/nvml.h"
#include "client/nvml/session_interface.h"
#include "client/nvml/view.h"

namespace sluice::nvml {

// nvmlInit and nvmlShutdown, which count. `looks`: it asked for no session whatever comes.
void start(bool looks);
nvmlReturn_t stop();

// The start of every call: NVML_ERROR_UNINITIALIZED outside of start and stop.
nvmlReturn_t enter();
// The same, for a call that takes a device's handle: its index too.
nvmlReturn_t enter(nvmlDevice_t device, uint32_t* index);
// What a call is about: vGPUs of the session or, without one, of a view.
struct Vgpus {
  const client::SessionInterface* session = nullptr;
  std::shared_ptr<const View> view;

  uint32_t count() const;
  const wire::DeviceRecord& record(uint32_t place) const;
  nvmlDevice_t handle(uint32_t place) const;
};
// One of them.
struct Vgpu : Vgpus {
  uint32_t place = 0;

  const wire::DeviceRecord& record() const { return Vgpus::record(place); }
  const ViewedVgpu& viewed() const { return view->vgpus[place]; }  // without a session
};

// The same as above, for a call that needs to know. NVML_ERROR_NO_PERMISSION for a vGPU that
// CUDA_VISIBLE_DEVICES hides: the session has none such. NVML_ERROR_GPU_IS_LOST for one that was
// looked at and is no more.
nvmlReturn_t enter(Vgpus* vgpus);
nvmlReturn_t enter(nvmlDevice_t device, Vgpu* vgpu);
// The same where asking must open no session: it may have neither session nor view.
nvmlReturn_t peek(nvmlDevice_t device, Vgpu* vgpu);
nvmlReturn_t peek(Vgpus* vgpus);

// The highest clock of the video unit, which only the node knows.
nvmlReturn_t video_clock_limit(nvmlDevice_t device, unsigned int* mhz);

// What every function that is not there answers.
nvmlReturn_t unsupported();

// Those of this process, hidden ones too, as NVML has nothing to do with CUDA_VISIBLE_DEVICES; of
// one that only looks, those that it sees.
uint32_t device_count();
// Of an index below device_count().
nvmlDevice_t handle_of(uint32_t index);

// What was told of a vGPU that was only looked at. A session has UUIDs of its own, and a process
// that looked before it computes asks by the one that it knows.
void remember_uuid(uint32_t index, const uint8_t uuid[16]);
// The index of which such a UUID was told; device_count() for none.
uint32_t index_told(const std::function<bool(const uint8_t uuid[16])>& match);

// Copies a text with its end; NVML_ERROR_INSUFFICIENT_SIZE where it has no room.
nvmlReturn_t put_text(const char* text, char* to, unsigned int room);
// "GPU-8-4-4-4-12", as nvidia-smi and CUDA_VISIBLE_DEVICES spell it.
constexpr unsigned kUuidBytes = 41;
void uuid_text(const uint8_t uuid[16], char (&to)[kUuidBytes]);

}  // namespace sluice::nvml
