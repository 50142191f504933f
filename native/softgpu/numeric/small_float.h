// SPDX-License-Identifier: Apache-2.0
// Conversions between double and the 16-bit floating-point formats, in every IEEE rounding mode.
// Used by the float and convert handlers. A double holds every half, bfloat16 and float exactly,
// so one rounding from double is correct rounding.
#pragma once

#include <bit>
#include <cstdint>

namespace sluice::softgpu {

enum class Rounding : uint8_t { kNearestEven, kZero, kDown, kUp, kNearestAway };

// Mantissa and exponent bits of a format with an implicit leading one.
struct SmallFormat {
  int mantissa;
  int exponent;
};
constexpr SmallFormat kHalf{10, 5};
constexpr SmallFormat kBfloat16{7, 8};

constexpr uint16_t kSmallNan = 0x7fff;  // what the device's 16-bit instructions produce

constexpr uint16_t to_small(double value, SmallFormat format, Rounding rounding) {
  uint64_t bits = std::bit_cast<uint64_t>(value);
  uint16_t sign = static_cast<uint16_t>(bits >> 63) << 15;
  int exponent = static_cast<int>(bits >> 52 & 0x7ff);
  uint64_t mantissa = bits & ((1ull << 52) - 1);
  int bias = (1 << (format.exponent - 1)) - 1;
  uint16_t infinity = static_cast<uint16_t>(((1 << format.exponent) - 1) << format.mantissa);
  if (exponent == 0x7ff) return mantissa != 0 ? kSmallNan : sign | infinity;
  if (exponent == 0) {  // zero, or far below every format's smallest number
    bool away = mantissa != 0 &&
                ((rounding == Rounding::kUp && !sign) || (rounding == Rounding::kDown && sign));
    return sign | (away ? 1 : 0);
  }
  mantissa |= 1ull << 52;
  int target = exponent - 1023 + bias;
  // Bits to drop: all below the format's mantissa, more for subnormal results.
  int drop = 52 - format.mantissa;
  if (target < 1) {
    drop += 1 - target;
    target = 0;
  }
  uint64_t kept = drop > 63 ? 0 : mantissa >> drop;
  uint64_t rest = drop > 63 ? mantissa : mantissa & ((1ull << drop) - 1);
  bool up = false;
  if (rest != 0) {
    bool above = drop <= 63 && rest > (1ull << (drop - 1));
    bool half = drop <= 63 && rest == (1ull << (drop - 1));
    switch (rounding) {
      case Rounding::kNearestEven:
        up = above || (half && (kept & 1));
        break;
      case Rounding::kNearestAway:
        up = above || half;
        break;
      case Rounding::kZero:
        break;
      case Rounding::kDown:
        up = sign != 0;
        break;
      case Rounding::kUp:
        up = sign == 0;
        break;
    }
  }
  kept += up;
  // `kept` carries its leading one into the exponent field, also when rounding overflows it.
  uint64_t result =
      target == 0 ? kept : (static_cast<uint64_t>(target - 1) << format.mantissa) + kept;
  if (result >= infinity) {
    bool to_infinity = rounding == Rounding::kNearestEven || rounding == Rounding::kNearestAway ||
                       (rounding == Rounding::kUp && !sign) ||
                       (rounding == Rounding::kDown && sign);
    result = to_infinity ? infinity : infinity - 1u;
  }
  return static_cast<uint16_t>(sign | result);
}

constexpr double from_small(uint16_t bits, SmallFormat format) {
  uint64_t sign = static_cast<uint64_t>(bits >> 15) << 63;
  int exponent = bits >> format.mantissa & ((1 << format.exponent) - 1);
  uint64_t mantissa = bits & ((1u << format.mantissa) - 1);
  int bias = (1 << (format.exponent - 1)) - 1;
  if (exponent == (1 << format.exponent) - 1) {
    return std::bit_cast<double>(sign | 0x7ffull << 52 | mantissa << (52 - format.mantissa));
  }
  if (exponent == 0) {
    double scale =
        std::bit_cast<double>(static_cast<uint64_t>(1023 + 1 - bias - format.mantissa) << 52);
    double magnitude = static_cast<double>(mantissa) * scale;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<double>(sign | static_cast<uint64_t>(exponent - bias + 1023) << 52 |
                               mantissa << (52 - format.mantissa));
}

}  // namespace sluice::softgpu
