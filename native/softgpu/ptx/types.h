// SPDX-License-Identifier: Apache-2.0
// The scalar types and state spaces of PTX, as named by its instructions and declarations.
// Used by the lexer, the parser, the decoder and the launch code (parameter layout). Owns nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace sluice::softgpu {

enum class Type : uint8_t {
  kNone,
  kPred,
  kB8,
  kB16,
  kB32,
  kB64,
  kB128,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kF16x2,
  kBf16,
  kBf16x2,
  kTf32,
  kF32,
  kF64,
};

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kConst, kParam };

// Size in bytes; a predicate counts as 4 because a register of it holds one bit per lane.
uint32_t size_of(Type type);
bool is_signed(Type type);
bool is_unsigned_or_bits(Type type);
bool is_float(Type type);

// The type called `name` (without the leading dot), if there is one.
std::optional<Type> type_named(std::string_view name);
const char* type_name(Type type);

}  // namespace sluice::softgpu
