// SPDX-License-Identifier: Apache-2.0
// Turns the addresses of a memory instruction into host pointers, checking every one of them:
// global addresses against the device's ranges, the others against their windows.
// Called by the handlers of loads, stores, atomics and copies.
#pragma once

#include "softgpu/interp/exec.h"

namespace sluice::softgpu {

enum class Access : uint8_t { kRead, kWrite };

// Fills exec.ptr for the executing lanes from address operand r[0] (imm and flags as the decoder
// of memory instructions set them). `bytes` is the whole access of a lane, which must be a
// multiple-of-`align` address.
bool resolve(Exec& exec, const Instr& instr, uint32_t bytes, uint32_t align, Access access);

// One generic address of one lane; null if it may not be accessed.
uint8_t* resolve_generic(Exec& exec, uint32_t lane, uint64_t address, uint64_t bytes,
                         Access access);

// The host address behind a shared-window offset; null if out of the block's shared memory.
uint8_t* resolve_shared(Exec& exec, uint64_t offset, uint64_t bytes);

// Meaning of Instr::flags[0] in memory instructions.
constexpr uint8_t kBase64 = 1;         // r[0] holds 64-bit addresses
constexpr uint8_t kBase32 = 2;         // r[0] holds 32-bit addresses
constexpr uint8_t kFrameRelative = 4;  // counts from the function's local frame

}  // namespace sluice::softgpu
