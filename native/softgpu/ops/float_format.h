// SPDX-License-Identifier: Apache-2.0
// How the floating-point formats of PTX are read, computed with and written. Used by the float,
// compare and atomic handlers: an operator works on Format::Value, whatever the storage.
#pragma once

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>

#include "softgpu/numeric/small_float.h"
#include "softgpu/ops/lanes.h"

namespace sluice::softgpu {

// Meaning of Instr::flags in floating-point instructions.
constexpr uint8_t kFtz = 1;  // flags[0]
constexpr uint8_t kSat = 2;
constexpr uint8_t kRelu = 4;
constexpr uint8_t kNanWins = 8;  // min.NaN, max.NaN
constexpr uint8_t kAbsXor = 16;  // .xorsign.abs
// flags[1]: Rounding

struct F32 {
  using Storage = uint32_t;
  using Value = float;
  static Value load(Storage s) { return std::bit_cast<float>(s); }
  static Storage store(Value v) { return v == v ? std::bit_cast<uint32_t>(v) : 0x7fffffffu; }
  static Storage store(Value v, Rounding) { return store(v); }
  static Storage flush(Storage s) { return (s & 0x7f800000u) == 0 ? s & 0x80000000u : s; }
};

struct F64 {
  using Storage = uint64_t;
  using Value = double;
  static Value load(Storage s) { return std::bit_cast<double>(s); }
  static Storage store(Value v) { return std::bit_cast<uint64_t>(v); }
  static Storage store(Value v, Rounding) { return store(v); }
  static Storage flush(Storage s) { return s; }
};

// 16-bit formats are computed in double and rounded once; see fused() for the one case in which a
// double's own rounding could show.
template <SmallFormat kFormat>
struct Small {
  using Storage = uint16_t;
  using Value = double;
  static Value load(Storage s) { return from_small(s, kFormat); }
  static Storage store(Value v, Rounding rounding = Rounding::kNearestEven) {
    return to_small(v, kFormat, rounding);
  }
  static Storage flush(Storage s) {
    uint16_t exponent = static_cast<uint16_t>(((1 << kFormat.exponent) - 1) << kFormat.mantissa);
    return (s & exponent) == 0 ? s & 0x8000u : s;
  }
};
using F16 = Small<kHalf>;
using Bf16 = Small<kBfloat16>;

// a * b + c in double, rounded to odd, so that rounding again to 16 bits is correct.
inline double fused_to_odd(double a, double b, double c) {
  double sum = std::fma(a, b, c);
  if (!std::isfinite(sum)) return sum;
  double product = a * b;  // exact: 16-bit significands
  double back = sum - product;
  double error = (product - (sum - back)) + (c - back);
  if (error == 0) return sum;
  uint64_t bits = std::bit_cast<uint64_t>(sum);
  if (bits & 1) return sum;
  bool away = (error > 0) == (sum > 0);
  return std::bit_cast<double>(away ? bits + 1 : bits - 1);
}

// Sets the host's rounding mode for 32- and 64-bit operations.
class HostRounding {
 public:
  explicit HostRounding(Rounding rounding) : changed_(rounding != Rounding::kNearestEven) {
    if (!changed_) return;
    old_ = std::fegetround();
    std::fesetround(rounding == Rounding::kZero   ? FE_TOWARDZERO
                    : rounding == Rounding::kDown ? FE_DOWNWARD
                                                  : FE_UPWARD);
  }
  ~HostRounding() {
    if (changed_) std::fesetround(old_);
  }
  HostRounding(const HostRounding&) = delete;
  HostRounding& operator=(const HostRounding&) = delete;

 private:
  bool changed_;
  int old_ = 0;
};

// Result modifiers: saturation to [0, 1] turns NaN to zero, relu keeps it.
template <class Format>
typename Format::Storage finish(typename Format::Value v, uint8_t flags, Rounding rounding) {
  if (flags & kSat) {
    v = v > 0 ? (v < 1 ? v : typename Format::Value(1)) : typename Format::Value(0);
  }
  if ((flags & kRelu) && v < 0) v = 0;
  typename Format::Storage s = Format::store(v, rounding);
  return (flags & kFtz) ? Format::flush(s) : s;
}

}  // namespace sluice::softgpu
