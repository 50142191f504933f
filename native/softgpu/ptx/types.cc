// SPDX-License-Identifier: Apache-2.0
#include "softgpu/ptx/types.h"

namespace sluice::softgpu {
namespace {

struct TypeRow {
  Type type;
  const char* name;
  uint32_t size;
};

constexpr TypeRow kTypes[] = {
    {Type::kNone, "none", 0},     {Type::kPred, "pred", 4},   {Type::kB8, "b8", 1},
    {Type::kB16, "b16", 2},       {Type::kB32, "b32", 4},     {Type::kB64, "b64", 8},
    {Type::kB128, "b128", 16},    {Type::kU8, "u8", 1},       {Type::kU16, "u16", 2},
    {Type::kU32, "u32", 4},       {Type::kU64, "u64", 8},     {Type::kS8, "s8", 1},
    {Type::kS16, "s16", 2},       {Type::kS32, "s32", 4},     {Type::kS64, "s64", 8},
    {Type::kF16, "f16", 2},       {Type::kF16x2, "f16x2", 4}, {Type::kBf16, "bf16", 2},
    {Type::kBf16x2, "bf16x2", 4}, {Type::kTf32, "tf32", 4},   {Type::kF32, "f32", 4},
    {Type::kF64, "f64", 8},
};

const TypeRow& row(Type type) { return kTypes[static_cast<size_t>(type)]; }

}  // namespace

uint32_t size_of(Type type) { return row(type).size; }

bool is_signed(Type type) { return type >= Type::kS8 && type <= Type::kS64; }

bool is_unsigned_or_bits(Type type) { return type >= Type::kB8 && type <= Type::kU64; }

bool is_float(Type type) { return type >= Type::kF16; }

std::optional<Type> type_named(std::string_view name) {
  if (name == "none") return std::nullopt;
  for (const TypeRow& candidate : kTypes) {
    if (name == candidate.name) return candidate.type;
  }
  return std::nullopt;
}

const char* type_name(Type type) { return row(type).name; }

}  // namespace sluice::softgpu
