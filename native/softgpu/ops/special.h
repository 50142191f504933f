// SPDX-License-Identifier: Apache-2.0
// Special registers (%tid, %clock, ...) and the few address and predicate moves that the decoder
// itself inserts. Called by program/decode.cc and ops/move.cc.
#pragma once

#include <optional>
#include <string_view>

#include "softgpu/program/program.h"

namespace sluice::softgpu {

struct SpecialRegister {
  Handler fn;         // writes r[0]
  uint32_t width;     // bytes; 4 or 8
  uint64_t argument;  // goes to Instr::imm
};

std::optional<SpecialRegister> special_register(std::string_view name);
Handler special_resize(uint32_t from, uint32_t to);

Handler dynamic_shared_address(uint32_t width);  // r[0] = start of dynamic shared memory + imm
Handler local_address(uint32_t width);           // r[0] = the frame's local memory + imm
Handler kernel_parameter_address();              // r[0] = generic address of the block + imm
Handler negate_predicate();                      // r[0] = !r[1]

}  // namespace sluice::softgpu
