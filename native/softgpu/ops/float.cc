// SPDX-License-Identifier: Apache-2.0
// Floating-point arithmetic for f32, f64, f16 and bf16, scalar and packed. Add, subtract, multiply,
// fused multiply-add, divide and square root are correctly rounded; the .approx functions use the
// host's library, which is more exact than CUDA promises.
#include <bit>
#include <cmath>
#include <limits>

#include "softgpu/ops/float_format.h"
#include "softgpu/ops/tables.h"

namespace sluice::softgpu {
namespace {

// ---- operators, on Format::Value
// ------------------------------------------------------------------

template <class F>
using V = typename F::Value;

template <class F>
struct Add {
  V<F> operator()(V<F> a, V<F> b, uint8_t) const { return a + b; }
};
template <class F>
struct Sub {
  V<F> operator()(V<F> a, V<F> b, uint8_t) const { return a - b; }
};
template <class F>
struct Mul {
  V<F> operator()(V<F> a, V<F> b, uint8_t) const { return a * b; }
};
template <class F>
struct Div {
  V<F> operator()(V<F> a, V<F> b, uint8_t) const { return a / b; }
};
template <class F>
struct Fma {
  V<F> operator()(V<F> a, V<F> b, V<F> c, uint8_t) const {
    if constexpr (sizeof(typename F::Storage) == 2) {
      return fused_to_odd(a, b, c);
    } else {
      return std::fma(a, b, c);
    }
  }
};
template <class F, bool kMax>
struct Extreme {
  V<F> operator()(V<F> a, V<F> b, uint8_t flags) const {
    bool negative = false;
    if (flags & kAbsXor) {
      negative = std::signbit(a) != std::signbit(b);
      a = std::fabs(a);
      b = std::fabs(b);
    }
    V<F> r;
    const bool nan_a = std::isnan(a), nan_b = std::isnan(b);
    if (nan_a || nan_b) {
      r = (flags & kNanWins) || (nan_a && nan_b) ? std::numeric_limits<V<F>>::quiet_NaN()
                                                 : (nan_a ? b : a);
    } else if (a == b) {
      r = std::signbit(a) == kMax ? b : a;  // -0 is less than +0
    } else {
      r = (a < b) == kMax ? b : a;
    }
    return negative ? -r : r;
  }
};
template <class F>
using Min = Extreme<F, false>;
template <class F>
using Max = Extreme<F, true>;
template <class F>
struct Min3 {
  V<F> operator()(V<F> a, V<F> b, V<F> c, uint8_t f) const {
    return Min<F>{}(Min<F>{}(a, b, f), c, f);
  }
};
template <class F>
struct Max3 {
  V<F> operator()(V<F> a, V<F> b, V<F> c, uint8_t f) const {
    return Max<F>{}(Max<F>{}(a, b, f), c, f);
  }
};
template <class F>
struct Sqrt {
  V<F> operator()(V<F> a, uint8_t) const { return std::sqrt(a); }
};
template <class F>
struct Rsqrt {
  V<F> operator()(V<F> a, uint8_t) const {
    return static_cast<V<F>>(1.0 / std::sqrt(static_cast<double>(a)));
  }
};
template <class F>
struct Rcp {
  V<F> operator()(V<F> a, uint8_t) const { return V<F>(1) / a; }
};
template <class F>
struct Sin {
  V<F> operator()(V<F> a, uint8_t) const { return std::sin(a); }
};
template <class F>
struct Cos {
  V<F> operator()(V<F> a, uint8_t) const { return std::cos(a); }
};
template <class F>
struct Exp2 {
  V<F> operator()(V<F> a, uint8_t) const { return std::exp2(a); }
};
template <class F>
struct Log2 {
  V<F> operator()(V<F> a, uint8_t) const { return std::log2(a); }
};
template <class F>
struct Tanh {
  V<F> operator()(V<F> a, uint8_t) const { return std::tanh(a); }
};

// ---- handlers
// --------------------------------------------------------------------------------------

// kParts: elements per register: 1, or 2 for the packed formats, whose storage is then uint32_t.
template <class F, int kParts, int kSources, class Op>
bool apply(Exec& x, const Instr& in) {
  using S = typename F::Storage;
  S* d = x.reg<S>(in.r[0]);
  const S* a = x.reg<S>(in.r[1]);
  const S* b = kSources > 1 ? x.reg<S>(in.r[2]) : nullptr;
  const S* c = kSources > 2 ? x.reg<S>(in.r[3]) : nullptr;
  const uint8_t flags = in.flags[0];
  const Rounding rounding = static_cast<Rounding>(in.flags[1]);
  auto compute = [=](uint32_t i) -> V<F> {
    if constexpr (kSources == 1) {
      return Op{}(F::load(a[i]), flags);
    } else if constexpr (kSources == 2) {
      return Op{}(F::load(a[i]), F::load(b[i]), flags);
    } else {
      return Op{}(F::load(a[i]), F::load(b[i]), F::load(c[i]), flags);
    }
  };
  if (kParts == 1 && flags == 0 && rounding == Rounding::kNearestEven) {
    x.each([=](uint32_t l) { d[l] = F::store(compute(l)); });
    return true;
  }
  constexpr bool kHost = sizeof(S) > 2;
  HostRounding host(kHost ? rounding : Rounding::kNearestEven);
  bool ftz = flags & kFtz;
  auto in_of = [ftz](S s) { return F::load(ftz ? F::flush(s) : s); };
  x.each([&](uint32_t l) {
    for (int part = 0; part < kParts; ++part) {
      uint32_t i = l * kParts + static_cast<uint32_t>(part);
      V<F> r;
      if constexpr (kSources == 1) {
        r = Op{}(in_of(a[i]), flags);
      } else if constexpr (kSources == 2) {
        r = Op{}(in_of(a[i]), in_of(b[i]), flags);
      } else {
        r = Op{}(in_of(a[i]), in_of(b[i]), in_of(c[i]), flags);
      }
      d[i] = finish<F>(r, flags, rounding);
    }
  });
  return true;
}

// Fused multiply-add is what numerical kernels consist of, and without the processor's own
// instruction it is a library call per lane. Chosen at decode time where the processor has it.
template <class F>
[[gnu::target("avx2,fma")]] bool fast_fma(Exec& x, const Instr& in) {
  if (x.mask != 0xffffffffu) return apply<F, 1, 3, Fma<F>>(x, in);
  V<F>* d = x.reg<V<F>>(in.r[0]);
  const V<F>* a = x.reg<V<F>>(in.r[1]);
  const V<F>* b = x.reg<V<F>>(in.r[2]);
  const V<F>* c = x.reg<V<F>>(in.r[3]);
  V<F> nan = std::bit_cast<V<F>>(F::store(std::numeric_limits<V<F>>::quiet_NaN()));
  SLUICE_INDEPENDENT_LANES
  for (uint32_t l = 0; l < kWarpSize; ++l) {
    V<F> r;
    if constexpr (sizeof(V<F>) == 4) {
      r = __builtin_fmaf(a[l], b[l], c[l]);
      r = std::isnan(r) ? nan : r;
    } else {
      r = __builtin_fma(a[l], b[l], c[l]);
    }
    d[l] = r;
  }
  return true;
}

// abs, neg and copysign only move bits. kOp: 0 abs, 1 neg, 2 copysign (sign of a, rest of b).
template <class S, int kParts, int kOp>
bool sign_bits(Exec& x, const Instr& in) {
  S* d = x.reg<S>(in.r[0]);
  const S* a = x.reg<S>(in.r[1]);
  const S* b = kOp == 2 ? x.reg<S>(in.r[2]) : nullptr;
  constexpr S kSign = static_cast<S>(S(1) << (8 * sizeof(S) - 1));
  const bool ftz = in.flags[0] & kFtz;
  x.each([=](uint32_t l) {
    for (int part = 0; part < kParts; ++part) {
      uint32_t i = l * kParts + static_cast<uint32_t>(part);
      S v = a[i];
      if constexpr (sizeof(S) == 4) {
        if (ftz) v = F32::flush(v);
      }
      if constexpr (kOp == 0) v = v & static_cast<S>(~kSign);
      if constexpr (kOp == 1) v = v ^ kSign;
      if constexpr (kOp == 2) v = (a[i] & kSign) | (b[i] & static_cast<S>(~kSign));
      d[i] = v;
    }
  });
  return true;
}

template <int kSources, template <class> class Op>
Handler pick(Decoder& d, Type type) {
  switch (type) {
    case Type::kF32:
      return apply<F32, 1, kSources, Op<F32>>;
    case Type::kF64:
      return apply<F64, 1, kSources, Op<F64>>;
    case Type::kF16:
      return apply<F16, 1, kSources, Op<F16>>;
    case Type::kF16x2:
      return apply<F16, 2, kSources, Op<F16>>;
    case Type::kBf16:
      return apply<Bf16, 1, kSources, Op<Bf16>>;
    case Type::kBf16x2:
      return apply<Bf16, 2, kSources, Op<Bf16>>;
    default:
      d.unsupported(std::string("type .") + type_name(type));
  }
}

template <int kOp>
Handler pick_sign(Decoder& d, Type type) {
  switch (type) {
    case Type::kF32:
      return sign_bits<uint32_t, 1, kOp>;
    case Type::kF64:
      return sign_bits<uint64_t, 1, kOp>;
    case Type::kF16:
    case Type::kBf16:
      return sign_bits<uint16_t, 1, kOp>;
    case Type::kF16x2:
    case Type::kBf16x2:
      return sign_bits<uint16_t, 2, kOp>;
    default:
      d.unsupported(std::string("type .") + type_name(type));
  }
}

struct Modifiers {
  uint8_t flags = 0;
  Rounding rounding = Rounding::kNearestEven;
  bool approximate = false;
};

Modifiers take_modifiers(Decoder& d) {
  Modifiers m;
  if (d.take("ftz")) m.flags |= kFtz;
  if (d.take("sat")) m.flags |= kSat;
  if (d.take("relu")) m.flags |= kRelu;
  if (d.take("NaN")) m.flags |= kNanWins;
  if (d.take("xorsign")) {
    if (!d.take("abs")) d.fail(".xorsign needs .abs");
    m.flags |= kAbsXor;
  }
  m.approximate = d.take("approx") || d.take("full");
  std::string_view rounding = d.take_one_of({"rn", "rz", "rm", "rp"});
  if (rounding == "rz") m.rounding = Rounding::kZero;
  if (rounding == "rm") m.rounding = Rounding::kDown;
  if (rounding == "rp") m.rounding = Rounding::kUp;
  return m;
}

template <int kSources, template <class> class Op>
void emit_float(Decoder& d) {
  Modifiers m = take_modifiers(d);
  Type type = d.take_type();
  Instr& instr = emit_plain(d, pick<kSources, Op>(d, type), type, type, kSources);
  instr.flags[0] = m.flags;
  instr.flags[1] = static_cast<uint8_t>(m.rounding);
}

void decode_fma(Decoder& d) {
  Modifiers m = take_modifiers(d);
  Type type = d.take_type();
  Handler fn = pick<3, Fma>(d, type);
  bool plain = m.flags == 0 && m.rounding == Rounding::kNearestEven;
  if (plain && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) {
    if (type == Type::kF32) fn = fast_fma<F32>;
    if (type == Type::kF64) fn = fast_fma<F64>;
  }
  Instr& instr = emit_plain(d, fn, type, type, 3);
  instr.flags[0] = m.flags;
  instr.flags[1] = static_cast<uint8_t>(m.rounding);
}

void decode_mad(Decoder& d) {
  if (!decode_integer_arithmetic(d)) decode_fma(d);
}

template <int kOp>
void emit_sign(Decoder& d) {
  Modifiers m = take_modifiers(d);
  Type type = d.take_type();
  emit_plain(d, pick_sign<kOp>(d, type), type, type, kOp == 2 ? 2 : 1).flags[0] = m.flags;
}

// testp: r[0] predicate, r[1] value, imm: which property.
enum class Property : uint8_t { kFinite, kInfinite, kNumber, kNan, kNormal, kSubnormal };

template <class F>
bool test_property(Exec& x, const Instr& in) {
  const auto* a = x.reg<typename F::Storage>(in.r[1]);
  uint32_t result = 0;
  x.each([&](uint32_t l) {
    auto v = F::load(a[l]);
    bool yes = false;
    switch (static_cast<Property>(in.imm)) {
      case Property::kFinite:
        yes = std::isfinite(v);
        break;
      case Property::kInfinite:
        yes = std::isinf(v);
        break;
      case Property::kNumber:
        yes = !std::isnan(v);
        break;
      case Property::kNan:
        yes = std::isnan(v);
        break;
      case Property::kNormal:
        yes = std::isnormal(v);
        break;
      case Property::kSubnormal:
        yes = std::fpclassify(v) == FP_SUBNORMAL;
        break;
    }
    result |= static_cast<uint32_t>(yes) << l;
  });
  write_predicate(x, in.r[0], result);
  return true;
}

void decode_testp(Decoder& d) {
  constexpr std::string_view kNames[] = {"finite",     "infinite", "number",
                                         "notanumber", "normal",   "subnormal"};
  int which = -1;
  for (int i = 0; i < 6; ++i) {
    if (d.take(kNames[i])) which = i;
  }
  if (which < 0) d.fail("a property is missing");
  Type type = d.take_type();
  if (type != Type::kF32 && type != Type::kF64) d.fail("needs .f32 or .f64");
  int32_t a = d.source(1, type);
  int32_t p = d.predicate_destination(d.operand(0));
  Instr& instr = d.emit(type == Type::kF32 ? test_property<F32> : test_property<F64>);
  instr.r[0] = p;
  instr.r[1] = a;
  instr.imm = static_cast<uint64_t>(which);
}

// add, sub, mul, ... of either kind; the type decides.
template <int kSources, template <class> class Op>
void decode_shared(Decoder& d) {
  if (!decode_integer_arithmetic(d)) emit_float<kSources, Op>(d);
}

template <template <class> class Two, template <class> class Three>
void decode_extreme(Decoder& d) {
  if (decode_integer_arithmetic(d)) return;
  d.operands() == 4 ? emit_float<3, Three>(d) : emit_float<2, Two>(d);
}

template <int kOp>
void decode_sign(Decoder& d) {
  if (!decode_integer_arithmetic(d)) emit_sign<kOp>(d);
}

template <template <class> class Op>
void decode_unary(Decoder& d) {
  emit_float<1, Op>(d);
}

}  // namespace

void add_float_arithmetic(OpcodeTable& table) {
  table["add"] = decode_shared<2, Add>;
  table["sub"] = decode_shared<2, Sub>;
  table["mul"] = decode_shared<2, Mul>;
  table["mad"] = decode_mad;
  table["fma"] = decode_fma;
  table["div"] = decode_shared<2, Div>;
  table["rem"] = [](Decoder& d) {
    if (!decode_integer_arithmetic(d)) d.fail("rem needs an integer type");
  };
  table["min"] = decode_extreme<Min, Min3>;
  table["max"] = decode_extreme<Max, Max3>;
  table["abs"] = decode_sign<0>;
  table["neg"] = decode_sign<1>;
  table["copysign"] = emit_sign<2>;
  table["sqrt"] = decode_unary<Sqrt>;
  table["rsqrt"] = decode_unary<Rsqrt>;
  table["rcp"] = decode_unary<Rcp>;
  table["sin"] = decode_unary<Sin>;
  table["cos"] = decode_unary<Cos>;
  table["ex2"] = decode_unary<Exp2>;
  table["lg2"] = decode_unary<Log2>;
  table["tanh"] = decode_unary<Tanh>;
  table["testp"] = decode_testp;
}

}  // namespace sluice::softgpu
