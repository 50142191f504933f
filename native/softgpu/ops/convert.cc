// SPDX-License-Identifier: Apache-2.0
// cvt between all scalar types, with every rounding and saturation mode, and the packing forms that
// make two 16-bit floats of two f32.
#include <cmath>
#include <limits>
#include <type_traits>

#include "softgpu/ops/float_format.h"
#include "softgpu/ops/tables.h"

namespace sluice::softgpu {
namespace {

// flags[0]: kFtz, kSat, kRelu; flags[1]: Rounding; flags[2]: round to an integral value.

// Every value of every source type is one of these three exactly.
struct Number {
  enum class Kind : uint8_t { kSigned, kUnsigned, kReal } kind;
  int64_t i = 0;
  uint64_t u = 0;
  double r = 0;
};

Number read_number(Exec& x, int32_t slot, Type type, uint32_t l, bool ftz) {
  auto whole = [](int64_t v) { return Number{Number::Kind::kSigned, v, 0, 0}; };
  auto natural = [](uint64_t v) { return Number{Number::Kind::kUnsigned, 0, v, 0}; };
  auto real = [](double v) { return Number{Number::Kind::kReal, 0, 0, v}; };
  switch (type) {
    case Type::kS8:
      return whole(static_cast<int8_t>(x.reg<uint16_t>(slot)[l]));
    case Type::kU8:
    case Type::kB8:
      return natural(static_cast<uint8_t>(x.reg<uint16_t>(slot)[l]));
    case Type::kS16:
      return whole(x.reg<int16_t>(slot)[l]);
    case Type::kU16:
    case Type::kB16:
      return natural(x.reg<uint16_t>(slot)[l]);
    case Type::kS32:
      return whole(x.reg<int32_t>(slot)[l]);
    case Type::kU32:
    case Type::kB32:
      return natural(x.reg<uint32_t>(slot)[l]);
    case Type::kS64:
      return whole(x.reg<int64_t>(slot)[l]);
    case Type::kU64:
    case Type::kB64:
      return natural(x.reg<uint64_t>(slot)[l]);
    case Type::kF16:
      return real(F16::load(x.reg<uint16_t>(slot)[l]));
    case Type::kBf16:
      return real(Bf16::load(x.reg<uint16_t>(slot)[l]));
    case Type::kF32: {
      uint32_t bits = x.reg<uint32_t>(slot)[l];
      return real(F32::load(ftz ? F32::flush(bits) : bits));
    }
    default:
      return real(x.reg<double>(slot)[l]);
  }
}

double round_integral(double v, Rounding rounding) {
  switch (rounding) {
    case Rounding::kZero:
      return std::trunc(v);
    case Rounding::kDown:
      return std::floor(v);
    case Rounding::kUp:
      return std::ceil(v);
    default: {
      double r = std::round(v);  // ties away from zero
      if (std::fabs(v - std::trunc(v)) == 0.5) r = 2 * std::round(v / 2);
      return std::copysign(r, v);
    }
  }
}

template <class T>
T to_integer(const Number& n, bool sat, Rounding rounding) {
  constexpr T kLeast = std::numeric_limits<T>::min();
  constexpr T kMost = std::numeric_limits<T>::max();
  if (n.kind == Number::Kind::kReal) {
    if (n.r != n.r) {
      // NaN: zero for up to 32 bits, the sign bit for 64, as the hardware does.
      if constexpr (sizeof(T) == 8) return static_cast<T>(1ull << 63);
      return 0;
    }
    double v = round_integral(n.r, rounding);
    if (v <= static_cast<double>(kLeast)) return kLeast;
    // For 64 bits kMost rounds up to 2^63 or 2^64, which is out of range already.
    if (v >= static_cast<double>(kMost)) return kMost;
    return static_cast<T>(v);
  }
  if (!sat) {
    return static_cast<T>(n.kind == Number::Kind::kSigned ? static_cast<uint64_t>(n.i) : n.u);
  }
  if (n.kind == Number::Kind::kSigned) {
    if (n.i < 0 && (!std::is_signed_v<T> || n.i < static_cast<int64_t>(kLeast))) return kLeast;
    if (n.i > 0 && static_cast<uint64_t>(n.i) > static_cast<uint64_t>(kMost)) return kMost;
    return static_cast<T>(n.i);
  }
  return n.u > static_cast<uint64_t>(kMost) ? kMost : static_cast<T>(n.u);
}

// A real number of the width of F, from any number, rounded once.
template <class F>
typename F::Storage to_real(const Number& n, const Instr& in) {
  Rounding rounding = static_cast<Rounding>(in.flags[1]);
  using V = typename F::Value;
  V v;
  if (n.kind == Number::Kind::kReal) {
    double r = in.flags[2] ? round_integral(n.r, rounding) : n.r;
    v = static_cast<V>(r);
  } else if constexpr (sizeof(typename F::Storage) == 2) {
    // 64-bit integers do not fit a double: keep the lost bits as a sticky one.
    uint64_t magnitude = n.kind == Number::Kind::kUnsigned ? n.u
                         : n.i < 0                         ? 0 - static_cast<uint64_t>(n.i)
                                                           : static_cast<uint64_t>(n.i);
    if (magnitude >> 53) magnitude = (magnitude >> 11 << 11) | ((magnitude & 0x7ff) ? 0x800 : 0);
    v = static_cast<double>(magnitude);
    if (n.kind == Number::Kind::kSigned && n.i < 0) v = -v;
  } else {
    v = n.kind == Number::Kind::kSigned ? static_cast<V>(n.i) : static_cast<V>(n.u);
  }
  return finish<F>(v, in.flags[0], rounding);
}

// The general conversion: r[0] result, r[1] source, size: source type, count: result type.
bool convert(Exec& x, const Instr& in) {
  Type from = static_cast<Type>(in.size);
  Type to = static_cast<Type>(in.count);
  bool sat = in.flags[0] & kSat;
  bool ftz = in.flags[0] & kFtz;
  Rounding rounding = static_cast<Rounding>(in.flags[1]);
  HostRounding host(is_float(to) && !in.flags[2] ? rounding : Rounding::kNearestEven);
  x.each([&](uint32_t l) {
    Number n = read_number(x, in.r[1], from, l, ftz);
    switch (to) {
      case Type::kS8:
        // NOLINTNEXTLINE(bugprone-signed-char-misuse): its sign fills the register
        x.reg<int16_t>(in.r[0])[l] = to_integer<int8_t>(n, sat, rounding);
        break;
      case Type::kU8:
      case Type::kB8:
        x.reg<uint16_t>(in.r[0])[l] = to_integer<uint8_t>(n, sat, rounding);
        break;
      case Type::kS16:
        x.reg<int16_t>(in.r[0])[l] = to_integer<int16_t>(n, sat, rounding);
        break;
      case Type::kU16:
      case Type::kB16:
        x.reg<uint16_t>(in.r[0])[l] = to_integer<uint16_t>(n, sat, rounding);
        break;
      case Type::kS32:
        x.reg<int32_t>(in.r[0])[l] = to_integer<int32_t>(n, sat, rounding);
        break;
      case Type::kU32:
      case Type::kB32:
        x.reg<uint32_t>(in.r[0])[l] = to_integer<uint32_t>(n, sat, rounding);
        break;
      case Type::kS64:
        x.reg<int64_t>(in.r[0])[l] = to_integer<int64_t>(n, sat, rounding);
        break;
      case Type::kU64:
      case Type::kB64:
        x.reg<uint64_t>(in.r[0])[l] = to_integer<uint64_t>(n, sat, rounding);
        break;
      case Type::kF16:
        x.reg<uint16_t>(in.r[0])[l] = to_real<F16>(n, in);
        break;
      case Type::kBf16:
        x.reg<uint16_t>(in.r[0])[l] = to_real<Bf16>(n, in);
        break;
      case Type::kF32:
        x.reg<uint32_t>(in.r[0])[l] = to_real<F32>(n, in);
        break;
      default:
        x.reg<uint64_t>(in.r[0])[l] = to_real<F64>(n, in);
        break;
    }
  });
  return true;
}

// Integer to integer without saturation is most of what compilers emit.
template <class D, class S>
struct Truncate {
  D operator()(S a) const { return static_cast<D>(a); }
};

template <class D>
Handler integer_from(Type from) {
  switch (from) {
    case Type::kU16:
      return lanes1<D, uint16_t, Truncate<D, uint16_t>>;
    case Type::kS16:
      return lanes1<D, int16_t, Truncate<D, int16_t>>;
    case Type::kU32:
      return lanes1<D, uint32_t, Truncate<D, uint32_t>>;
    case Type::kS32:
      return lanes1<D, int32_t, Truncate<D, int32_t>>;
    case Type::kU64:
      return lanes1<D, uint64_t, Truncate<D, uint64_t>>;
    case Type::kS64:
      return lanes1<D, int64_t, Truncate<D, int64_t>>;
    default:
      return nullptr;
  }
}

Handler fast_integer(Type to, Type from) {
  switch (size_of(to)) {
    case 2:
      return integer_from<uint16_t>(from);
    case 4:
      return integer_from<uint32_t>(from);
    case 8:
      return integer_from<uint64_t>(from);
    default:
      return nullptr;
  }
}

// Source or result registers may be wider than the type: bring them to the type's own width.
int32_t narrowed_source(Decoder& d, size_t index, Type type) {
  uint32_t own = d.register_width(d.operand(index));
  uint32_t width = std::max(2u, size_of(type));
  if (own == 0 || own == width) return d.source(index, type);
  if (own < width) d.fail("the source register is too small");
  int32_t wide = d.slot_of(d.operand(index).index);
  int32_t narrow = d.temporary(width);
  Type from = own == 4 ? Type::kU32 : Type::kU64;
  Instr& instr = d.emit(fast_integer(width == 2 ? Type::kU16 : Type::kU32, from));
  instr.r[0] = narrow;
  instr.r[1] = wide;
  return narrow;
}

void widen_result(Decoder& d, int32_t narrow, int32_t wide, uint32_t own, Type type) {
  bool sign = is_signed(type);
  Type from =
      size_of(type) <= 2 ? (sign ? Type::kS16 : Type::kU16) : (sign ? Type::kS32 : Type::kU32);
  Instr& instr = d.emit(fast_integer(own == 4 ? Type::kU32 : Type::kU64, from));
  instr.r[0] = wide;
  instr.r[1] = narrow;
}

struct Modes {
  uint8_t flags = 0;
  Rounding rounding = Rounding::kNearestEven;
  bool integral = false;
  bool given = false;
};

Modes take_modes(Decoder& d) {
  Modes m;
  struct Row {
    std::string_view name;
    Rounding rounding;
    bool integral;
  };
  constexpr Row kRows[] = {
      {"rni", Rounding::kNearestEven, true},  {"rzi", Rounding::kZero, true},
      {"rmi", Rounding::kDown, true},         {"rpi", Rounding::kUp, true},
      {"rn", Rounding::kNearestEven, false},  {"rz", Rounding::kZero, false},
      {"rm", Rounding::kDown, false},         {"rp", Rounding::kUp, false},
      {"rna", Rounding::kNearestAway, false},
  };
  for (const Row& row : kRows) {
    if (!d.take(row.name)) continue;
    m.rounding = row.rounding;
    m.integral = row.integral;
    m.given = true;
    break;
  }
  if (d.take("ftz")) m.flags |= kFtz;
  if (d.take("relu")) m.flags |= kRelu;
  if (d.take("satfinite")) d.unsupported(".satfinite");
  if (d.take("sat")) m.flags |= kSat;
  return m;
}

// cvt.rn.f16x2.f32 d, a, b: a becomes the high half.
template <class F>
bool pack_two(Exec& x, const Instr& in) {
  uint32_t* d = x.reg<uint32_t>(in.r[0]);
  const float* a = x.reg<float>(in.r[1]);
  const float* b = x.reg<float>(in.r[2]);
  Rounding rounding = static_cast<Rounding>(in.flags[1]);
  x.each([&](uint32_t l) {
    uint32_t high = finish<F>(a[l], in.flags[0], rounding);
    uint32_t low = finish<F>(b[l], in.flags[0], rounding);
    d[l] = high << 16 | low;
  });
  return true;
}

// tf32 is f32 with ten bits of mantissa.
bool to_tf32(Exec& x, const Instr& in) {
  uint32_t* d = x.reg<uint32_t>(in.r[0]);
  const uint32_t* a = x.reg<uint32_t>(in.r[1]);
  Rounding rounding = static_cast<Rounding>(in.flags[1]);
  x.each([&](uint32_t l) {
    uint32_t v = a[l];
    if ((v & 0x7f800000u) != 0x7f800000u) {
      uint32_t rest = v & 0x1fff;
      uint32_t kept = v & ~0x1fffu;
      bool up = rounding == Rounding::kNearestAway ? rest >= 0x1000
                : rounding == Rounding::kNearestEven
                    ? rest > 0x1000 || (rest == 0x1000 && (kept & 0x2000))
                    : false;
      v = kept + (up ? 0x2000 : 0);
    }
    d[l] = (in.flags[0] & kRelu) && (v >> 31) ? 0 : v;
  });
  return true;
}

void decode_cvt(Decoder& d) {
  if (d.take("pack")) d.unsupported("cvt.pack");
  Modes m = take_modes(d);
  Type to = d.take_type();
  Type from = d.take_type();
  if (to == Type::kF16x2 || to == Type::kBf16x2) {
    if (from != Type::kF32) d.unsupported("this packing");
    Instr& instr =
        emit_plain(d, to == Type::kF16x2 ? pack_two<F16> : pack_two<Bf16>, to, Type::kF32, 2);
    instr.flags[0] = m.flags;
    instr.flags[1] = static_cast<uint8_t>(m.rounding);
    return;
  }
  d.want_operands(2, 2);
  if (to == Type::kTf32) {
    if (from != Type::kF32) d.fail("tf32 comes from f32");
    Instr& instr = emit_plain(d, to_tf32, Type::kB32, Type::kF32, 1);
    instr.flags[0] = m.flags;
    instr.flags[1] = static_cast<uint8_t>(m.rounding);
    return;
  }
  if (from == Type::kF16x2 || from == Type::kBf16x2 || from == Type::kPred || to == Type::kPred ||
      size_of(to) == 16 || size_of(from) == 16 || from == Type::kTf32) {
    d.unsupported("this conversion");
  }
  // A real number becomes an integer towards zero unless the instruction says otherwise.
  if (!m.given && is_float(from) && !is_float(to)) m.rounding = Rounding::kZero;
  int32_t source = narrowed_source(d, 1, from);
  uint32_t own = d.register_width(d.operand(0));
  uint32_t width = std::max(2u, size_of(to));
  bool widens = own > width;
  int32_t result = widens ? d.temporary(width) : d.destination(0, to);
  bool plain =
      !is_float(from) && !is_float(to) && !(m.flags & kSat) && size_of(from) > 1 && size_of(to) > 1;
  Handler fn = plain ? fast_integer(to, from) : convert;
  Instr& instr = d.emit(fn ? fn : convert);
  instr.r[0] = result;
  instr.r[1] = source;
  instr.size = static_cast<uint8_t>(from);
  instr.count = static_cast<uint8_t>(to);
  instr.flags[0] = m.flags;
  instr.flags[1] = static_cast<uint8_t>(m.rounding);
  instr.flags[2] = m.integral;
  if (widens) widen_result(d, result, d.slot_of(d.operand(0).index), own, to);
}

}  // namespace

void add_convert(OpcodeTable& table) { table["cvt"] = decode_cvt; }

}  // namespace sluice::softgpu
