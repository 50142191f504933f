// SPDX-License-Identifier: Apache-2.0
// setp, set, selp and slct.
#include <cmath>

#include "softgpu/ops/float_format.h"
#include "softgpu/ops/tables.h"

namespace sluice::softgpu {
namespace {

enum class Comparison : uint8_t {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,  // signed, or ordered
  kLo,
  kLs,
  kHi,
  kHs,  // unsigned
  kEqu,
  kNeu,
  kLtu,
  kLeu,
  kGtu,
  kGeu,  // true if unordered
  kNum,
  kNan,
};

constexpr std::string_view kNames[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",
                                       "lo",  "ls",  "hi",  "hs",  "equ", "neu",
                                       "ltu", "leu", "gtu", "geu", "num", "nan"};

enum class Combine : uint8_t { kNone, kAnd, kOr, kXor };

Comparison take_comparison(Decoder& d) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (d.take(kNames[i])) return static_cast<Comparison>(i);
  }
  d.fail("a comparison is missing");
}

Combine take_combine(Decoder& d) {
  std::string_view name = d.take_one_of({"and", "or", "xor"});
  return name == "and"   ? Combine::kAnd
         : name == "or"  ? Combine::kOr
         : name == "xor" ? Combine::kXor
                         : Combine::kNone;
}

// One bit per lane, for all lanes: bits of lanes that do not execute are dropped by the caller.
template <class T, class Op>
uint32_t bits(const T* a, const T* b) {
  uint32_t result = 0;
  for (uint32_t l = 0; l < kWarpSize; ++l) result |= static_cast<uint32_t>(Op{}(a[l], b[l])) << l;
  return result;
}

#define SLUICE_COMPARISON(Name, expression) \
  struct Name {                             \
    template <class T>                      \
    bool operator()(T a, T b) const {       \
      return expression;                    \
    }                                       \
  }
SLUICE_COMPARISON(Eq, a == b);
SLUICE_COMPARISON(Ne, a != b);
SLUICE_COMPARISON(Lt, a < b);
SLUICE_COMPARISON(Le, a <= b);
SLUICE_COMPARISON(Unordered, a != a || b != b);
#undef SLUICE_COMPARISON

template <class T>
uint32_t integer_bits(Comparison comparison, const T* a, const T* b) {
  switch (comparison) {
    case Comparison::kEq:
      return bits<T, Eq>(a, b);
    case Comparison::kNe:
      return bits<T, Ne>(a, b);
    case Comparison::kLt:
    case Comparison::kLo:
      return bits<T, Lt>(a, b);
    case Comparison::kLe:
    case Comparison::kLs:
      return bits<T, Le>(a, b);
    case Comparison::kGt:
    case Comparison::kHi:
      return bits<T, Lt>(b, a);
    default:
      return bits<T, Le>(b, a);
  }
}

template <class T>
uint32_t ordered_bits(Comparison comparison, const T* a, const T* b) {
  uint32_t nan = bits<T, Unordered>(a, b);
  switch (comparison) {
    case Comparison::kEq:
      return bits<T, Eq>(a, b);
    case Comparison::kNe:
      return bits<T, Ne>(a, b) & ~nan;
    case Comparison::kLt:
      return bits<T, Lt>(a, b);
    case Comparison::kLe:
      return bits<T, Le>(a, b);
    case Comparison::kGt:
      return bits<T, Lt>(b, a);
    case Comparison::kGe:
      return bits<T, Le>(b, a);
    case Comparison::kEqu:
      return bits<T, Eq>(a, b) | nan;
    case Comparison::kNeu:
      return bits<T, Ne>(a, b) | nan;
    case Comparison::kLtu:
      return bits<T, Lt>(a, b) | nan;
    case Comparison::kLeu:
      return bits<T, Le>(a, b) | nan;
    case Comparison::kGtu:
      return bits<T, Lt>(b, a) | nan;
    case Comparison::kGeu:
      return bits<T, Le>(b, a) | nan;
    case Comparison::kNum:
      return ~nan;
    default:
      return nan;
  }
}

template <class F>
uint32_t float_bits(Exec& x, const Instr& in, Comparison comparison) {
  using S = typename F::Storage;
  using T = typename F::Value;
  const S* a = x.reg<S>(in.r[2]);
  const S* b = x.reg<S>(in.r[3]);
  T left[kWarpSize];
  T right[kWarpSize];
  bool ftz = in.flags[2] & kFtz;
  for (uint32_t l = 0; l < kWarpSize; ++l) {
    left[l] = F::load(ftz ? F::flush(a[l]) : a[l]);
    right[l] = F::load(ftz ? F::flush(b[l]) : b[l]);
  }
  return ordered_bits(comparison, left, right);
}

uint32_t combined(Exec& x, Combine combine, uint32_t value, int32_t slot) {
  switch (combine) {
    case Combine::kAnd:
      return value & x.pred(slot);
    case Combine::kOr:
      return value | x.pred(slot);
    case Combine::kXor:
      return value ^ x.pred(slot);
    default:
      return value;
  }
}

// r[0], r[1]: predicates; r[2], r[3]: sources; r[4]: combined predicate. flags: comparison,
// combine, ftz. Evaluate<...> yields the lanes' bits.
template <uint32_t (*kEvaluate)(Exec&, const Instr&, Comparison)>
bool set_predicate(Exec& x, const Instr& in) {
  uint32_t value = kEvaluate(x, in, static_cast<Comparison>(in.flags[0]));
  Combine combine = static_cast<Combine>(in.flags[1]);
  uint32_t held = combine == Combine::kNone ? 0 : x.pred(in.r[4]);
  auto join = [&](uint32_t v) {
    switch (combine) {
      case Combine::kAnd:
        return v & held;
      case Combine::kOr:
        return v | held;
      case Combine::kXor:
        return v ^ held;
      default:
        return v;
    }
  };
  if (in.r[0] >= 0) write_predicate(x, in.r[0], join(value));
  if (in.r[1] >= 0) write_predicate(x, in.r[1], join(~value));
  return true;
}

// set: as setp, but the result is all ones or 1.0 in a register. count: 4 u32/s32, 5 f32, 2 16-bit.
template <uint32_t (*kEvaluate)(Exec&, const Instr&, Comparison)>
bool set_value(Exec& x, const Instr& in) {
  uint32_t value = combined(x, static_cast<Combine>(in.flags[1]),
                            kEvaluate(x, in, static_cast<Comparison>(in.flags[0])), in.r[4]);
  if (in.size == 2) {
    uint16_t* d = x.reg<uint16_t>(in.r[0]);
    uint16_t one = static_cast<uint16_t>(in.imm);
    x.each([&](uint32_t l) { d[l] = value >> l & 1 ? one : 0; });
  } else {
    uint32_t* d = x.reg<uint32_t>(in.r[0]);
    uint32_t one = static_cast<uint32_t>(in.imm);
    x.each([&](uint32_t l) { d[l] = value >> l & 1 ? one : 0; });
  }
  return true;
}

template <class T>
uint32_t evaluate_integer(Exec& x, const Instr& in, Comparison comparison) {
  return integer_bits<T>(comparison, x.reg<T>(in.r[2]), x.reg<T>(in.r[3]));
}

template <template <uint32_t (*)(Exec&, const Instr&, Comparison)> class Make>
Handler pick(Decoder& d, Type type, Comparison comparison) {
  bool as_unsigned = comparison >= Comparison::kLo && comparison <= Comparison::kHs;
  if (is_float(type)) {
    if (as_unsigned) d.fail("this comparison needs an integer type");
  } else if (comparison > Comparison::kHs) {
    d.fail("this comparison needs a floating-point type");
  }
  bool sign = is_signed(type) && !as_unsigned;
  switch (type) {
    case Type::kF32:
      return Make<float_bits<F32>>::fn;
    case Type::kF64:
      return Make<float_bits<F64>>::fn;
    case Type::kF16:
      return Make<float_bits<F16>>::fn;
    case Type::kBf16:
      return Make<float_bits<Bf16>>::fn;
    case Type::kB16:
    case Type::kU16:
    case Type::kS16:
      return sign ? Make<evaluate_integer<int16_t>>::fn : Make<evaluate_integer<uint16_t>>::fn;
    case Type::kB32:
    case Type::kU32:
    case Type::kS32:
      return sign ? Make<evaluate_integer<int32_t>>::fn : Make<evaluate_integer<uint32_t>>::fn;
    case Type::kB64:
    case Type::kU64:
    case Type::kS64:
      return sign ? Make<evaluate_integer<int64_t>>::fn : Make<evaluate_integer<uint64_t>>::fn;
    default:
      d.unsupported(std::string("type .") + type_name(type));
  }
}

template <uint32_t (*kEvaluate)(Exec&, const Instr&, Comparison)>
struct MakePredicate {
  static constexpr Handler fn = set_predicate<kEvaluate>;
};
template <uint32_t (*kEvaluate)(Exec&, const Instr&, Comparison)>
struct MakeValue {
  static constexpr Handler fn = set_value<kEvaluate>;
};

// Packed halves compare into two predicates: "setp.lt.f16x2 p|q".
template <class F>
bool set_packed(Exec& x, const Instr& in) {
  const uint16_t* a = x.reg<uint16_t>(in.r[2]);
  const uint16_t* b = x.reg<uint16_t>(in.r[3]);
  uint32_t value[2];
  for (uint32_t part = 0; part < 2; ++part) {
    double left[kWarpSize];
    double right[kWarpSize];
    for (uint32_t l = 0; l < kWarpSize; ++l) {
      left[l] = F::load(a[2 * l + part]);
      right[l] = F::load(b[2 * l + part]);
    }
    value[part] =
        combined(x, static_cast<Combine>(in.flags[1]),
                 ordered_bits(static_cast<Comparison>(in.flags[0]), left, right), in.r[4]);
  }
  if (in.r[0] >= 0) write_predicate(x, in.r[0], value[0]);
  if (in.r[1] >= 0) write_predicate(x, in.r[1], value[1]);
  return true;
}

void decode_setp(Decoder& d) {
  Comparison comparison = take_comparison(d);
  Combine combine = take_combine(d);
  bool ftz = d.take("ftz");
  Type type = d.take_type();
  bool packed = type == Type::kF16x2 || type == Type::kBf16x2;
  d.want_operands(combine == Combine::kNone ? 3 : 4, combine == Combine::kNone ? 3 : 4);
  Handler fn = packed ? (type == Type::kF16x2 ? set_packed<F16> : set_packed<Bf16>)
                      : pick<MakePredicate>(d, type, comparison);
  int32_t a = d.source(1, type);
  int32_t b = d.source(2, type);
  int32_t c = combine == Combine::kNone ? -1 : d.predicate(d.operand(3));
  int32_t p =
      d.operand(0).kind == ptx::Operand::Kind::kSink ? -1 : d.predicate_destination(d.operand(0));
  int32_t q = d.second_destination(d.operand(0));
  Instr& instr = d.emit(fn);
  instr.r[0] = p;
  instr.r[1] = q;
  instr.r[2] = a;
  instr.r[3] = b;
  instr.r[4] = c;
  instr.flags[0] = static_cast<uint8_t>(comparison);
  instr.flags[1] = static_cast<uint8_t>(combine);
  instr.flags[2] = ftz ? kFtz : 0;
}

void decode_set(Decoder& d) {
  Comparison comparison = take_comparison(d);
  Combine combine = take_combine(d);
  bool ftz = d.take("ftz");
  Type result = d.take_type();
  Type type = d.take_type();
  if (type == Type::kF16x2 || type == Type::kBf16x2) d.unsupported("packed types");
  Handler fn = pick<MakeValue>(d, type, comparison);
  int32_t a = d.source(1, type);
  int32_t b = d.source(2, type);
  int32_t c = combine == Combine::kNone ? -1 : d.predicate(d.operand(3));
  int32_t out = d.destination(0, result);
  Instr& instr = d.emit(fn);
  instr.r[0] = out;
  instr.r[2] = a;
  instr.r[3] = b;
  instr.r[4] = c;
  instr.size = static_cast<uint8_t>(size_of(result));
  instr.imm = result == Type::kF32    ? 0x3f800000u
              : result == Type::kF16  ? 0x3c00u
              : result == Type::kBf16 ? 0x3f80u
                                      : ~0ull;
  instr.flags[0] = static_cast<uint8_t>(comparison);
  instr.flags[1] = static_cast<uint8_t>(combine);
  instr.flags[2] = ftz ? kFtz : 0;
}

template <class T>
bool select(Exec& x, const Instr& in) {
  T* d = x.reg<T>(in.r[0]);
  const T* a = x.reg<T>(in.r[1]);
  const T* b = x.reg<T>(in.r[2]);
  uint32_t p = x.pred(in.r[3]);
  x.each([=](uint32_t l) { d[l] = p >> l & 1 ? a[l] : b[l]; });
  return true;
}

void decode_selp(Decoder& d) {
  Type type = d.take_type();
  d.want_operands(4, 4);
  int32_t a = d.source(1, type);
  int32_t b = d.source(2, type);
  int32_t p = d.predicate(d.operand(3));
  int32_t out = d.destination(0, type);
  Handler fn = size_of(type) == 8   ? select<uint64_t>
               : size_of(type) == 4 ? select<uint32_t>
                                    : select<uint16_t>;
  Instr& instr = d.emit(fn);
  instr.r[0] = out;
  instr.r[1] = a;
  instr.r[2] = b;
  instr.r[3] = p;
}

template <class T, bool kFloat>
bool choose(Exec& x, const Instr& in) {
  T* d = x.reg<T>(in.r[0]);
  const T* a = x.reg<T>(in.r[1]);
  const T* b = x.reg<T>(in.r[2]);
  const uint32_t* c = x.reg<uint32_t>(in.r[3]);
  x.each([&](uint32_t l) {
    bool first;
    if constexpr (kFloat) {
      uint32_t v = in.flags[0] ? F32::flush(c[l]) : c[l];
      first = F32::load(v) >= 0;
    } else {
      first = static_cast<int32_t>(c[l]) >= 0;
    }
    d[l] = first ? a[l] : b[l];
  });
  return true;
}

void decode_slct(Decoder& d) {
  bool ftz = d.take("ftz");
  Type type = d.take_type();
  Type by = d.take_type();
  if (by != Type::kS32 && by != Type::kF32) d.fail("the condition is .s32 or .f32");
  bool real = by == Type::kF32;
  Handler fn = size_of(type) == 8   ? (real ? choose<uint64_t, true> : choose<uint64_t, false>)
               : size_of(type) == 4 ? (real ? choose<uint32_t, true> : choose<uint32_t, false>)
                                    : (real ? choose<uint16_t, true> : choose<uint16_t, false>);
  d.want_operands(4, 4);
  int32_t a = d.source(1, type), b = d.source(2, type), c = d.source(3, by);
  int32_t out = d.destination(0, type);
  Instr& instr = d.emit(fn);
  instr.r[0] = out;
  instr.r[1] = a;
  instr.r[2] = b;
  instr.r[3] = c;
  instr.flags[0] = ftz;
}

}  // namespace

void add_compare(OpcodeTable& table) {
  table["setp"] = decode_setp;
  table["set"] = decode_set;
  table["selp"] = decode_selp;
  table["slct"] = decode_slct;
}

}  // namespace sluice::softgpu
