// SPDX-License-Identifier: Apache-2.0
// The families of instructions; each function enters its opcodes into the decoder's table.
#pragma once

#include "softgpu/program/decoder.h"

namespace sluice::softgpu {

void add_moves(OpcodeTable& table);                // move.cc: mov, cvta, isspacep, prefetch, pragma
void add_integer_arithmetic(OpcodeTable& table);   // integer.cc
void add_float_arithmetic(OpcodeTable& table);     // float.cc, and the opcodes shared by both
bool decode_integer_arithmetic(Decoder& decoder);  // false: not an integer instruction
void add_bits(OpcodeTable& table);                 // bits.cc: logic, shifts, fields, permutes
void add_compare(OpcodeTable& table);              // compare.cc: setp, set, selp, slct
void add_convert(OpcodeTable& table);              // convert.cc: cvt
void add_memory(OpcodeTable& table);               // memory.cc: ld, st, cp.async, fences
void add_atomics(OpcodeTable& table);              // atomic.cc: atom, red
void add_control(OpcodeTable& table);              // control.cc: bra, call, bar, exit ...
void add_warp_exchange(OpcodeTable& table);        // exchange.cc: shfl, vote, match, redux ...

}  // namespace sluice::softgpu
