// SPDX-License-Identifier: Apache-2.0
// One good frame of every library function, made from its table, and what in it may be broken: what
// valid_frames.h is for the other commands. Wants a session that furnish_libraries() has seen.
#pragma once

#include "tests/native/roundtrip/valid_frames.h"
#include "wire/library_spec.h"

namespace sluice::test {

// Handles that a frame gives to what it creates.
inline constexpr uint64_t kNewObject = handle_id(HandleKind::kLibraryObject, 209),
                          kNextObject = handle_id(HandleKind::kLibraryObject, 208);

// Every function that crosses the wire, of every library.
const std::vector<const wire::FunctionSpec*>& library_functions();

// Gives the worker one object of each kind, and the stand-ins of NVIDIA's libraries. The worker's
// table of them is the process's, so it is emptied before.
void furnish_libraries();
// A generator of cuRAND's that computes in host memory.
uint64_t host_generator();
uint64_t library_object(uint8_t type);

ValidFrame library_frame(FurnishedRig& rig, const wire::FunctionSpec& f);

// Those commands of cuDNN that have no table: its backend and CTC.
void add_hand_written_frames(FurnishedRig& rig, std::vector<ValidFrame>* all);
// NCCL's groups.
void add_nccl_frames(FurnishedRig& rig, std::vector<ValidFrame>* all);

}  // namespace sluice::test
