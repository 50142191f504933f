// SPDX-License-Identifier: Apache-2.0
// What NVIDIA's libraries take on the node, charged to the vGPU whose call they are in (rule 6).
// sluice_meter.so (worker/meter/meter.h) stands before the driver for them and asks here first.
// Where client and worker share memory, both charge one word per vGPU (channel/slot.h), so that
// neither gives out what the other has taken; the session's own accounts hold whoever writes into
// that word to his limit. Over TCP the client is told.
#pragma once

#include <string>

#include "worker/meter/meter.h"
#include "worker/session.h"

namespace sluice::worker {

// Loads sluice_meter.so, found beside the worker: before the driver, as the loader answers with
// what was loaded first. False with `error`.
bool load_meter(std::string* error);
// From now on libraries reach this driver through it.
void bind_meter(const Driver& driver);
// Whose vGPUs are charged. nullptr: nobody's.
void meter_session(Session* session);

// False: the vGPU has not so much left.
bool take_for_library(Session& s, Vgpu& v, Metered kind, uint64_t bytes);
void give_for_library(Session& s, Vgpu& v, Metered kind, uint64_t bytes);

// What a stream takes of the GPU's memory (560 MiB for 1,024 of them, H200, driver 580). The driver
// keeps it for the next stream, so it is the most streams at a time that are charged, to whoever
// they belong, and for as long as the session lasts.
constexpr uint64_t kStreamBytes = 560 << 10;
bool take_stream(Session& s, Vgpu& v);
// One that cannot be refused any more, of which there are few.
bool take_promised_stream(Session& s, Vgpu& v);
void give_stream(Vgpu& v);

}  // namespace sluice::worker
