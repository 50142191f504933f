// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic: add, sub, mul, mad, div, rem, min, max, abs, neg, sad, carries, dot products.
#include "softgpu/ops/integer.h"

#include <limits>
#include <type_traits>

#include "softgpu/ops/tables.h"

namespace sluice::softgpu {
namespace {

template <class T>
using U = std::make_unsigned_t<T>;
// Arithmetic happens in an unsigned type that C++ does not promote to int.
template <class T>
using Work = std::conditional_t<(sizeof(T) < 4), uint32_t, U<T>>;

template <class T>
struct Wider {
  using type =
      std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
                         std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
};
template <>
struct Wider<int64_t> {
  using type = __int128;
};
template <>
struct Wider<uint64_t> {
  using type = unsigned __int128;
};
template <class T>
using Wide = typename Wider<T>::type;

template <class T>
struct Add {
  T operator()(T a, T b) const { return static_cast<T>(Work<T>(a) + Work<T>(b)); }
};
template <class T>
struct Sub {
  T operator()(T a, T b) const { return static_cast<T>(Work<T>(a) - Work<T>(b)); }
};
template <class T>
struct MulLo {
  T operator()(T a, T b) const { return static_cast<T>(Work<T>(a) * Work<T>(b)); }
};
template <class T>
struct MulHi {
  T operator()(T a, T b) const {
    return static_cast<T>((Wide<T>(a) * Wide<T>(b)) >> (8 * sizeof(T)));
  }
};
template <class T>
struct MulWide {
  Wide<T> operator()(T a, T b) const { return Wide<T>(a) * Wide<T>(b); }
};
template <class T>
struct MadLo {
  T operator()(T a, T b, T c) const { return static_cast<T>(Work<T>(a) * Work<T>(b) + Work<T>(c)); }
};
template <class T>
struct MadHi {
  T operator()(T a, T b, T c) const { return Add<T>{}(MulHi<T>{}(a, b), c); }
};
template <class T>
struct MadWide {
  Wide<T> operator()(T a, T b, Wide<T> c) const {
    return static_cast<Wide<T>>(Work<Wide<T>>(MulWide<T>{}(a, b)) + Work<Wide<T>>(c));
  }
};
// PTX leaves division by zero undefined; NVIDIA's code yields all ones. Minimum by -1 wraps.
template <class T>
struct Div {
  T operator()(T a, T b) const {
    if (b == 0) return static_cast<T>(-1);
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(-Work<T>(a));
    return static_cast<T>(a / b);
  }
};
template <class T>
struct Rem {
  T operator()(T a, T b) const {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
template <class T>
struct Min {
  T operator()(T a, T b) const { return a < b ? a : b; }
};
template <class T>
struct Max {
  T operator()(T a, T b) const { return a > b ? a : b; }
};
template <class T>
struct Abs {
  T operator()(T a) const { return a < 0 ? static_cast<T>(-Work<T>(a)) : a; }
};
template <class T>
struct Neg {
  T operator()(T a) const { return static_cast<T>(-Work<T>(a)); }
};
template <class T>
struct Sad {
  T operator()(T a, T b, T c) const {
    Work<T> distance = a < b ? Work<T>(b) - Work<T>(a) : Work<T>(a) - Work<T>(b);
    return static_cast<T>(Work<T>(c) + distance);
  }
};

int32_t saturate(int64_t value) {
  if (value > std::numeric_limits<int32_t>::max()) return std::numeric_limits<int32_t>::max();
  if (value < std::numeric_limits<int32_t>::min()) return std::numeric_limits<int32_t>::min();
  return static_cast<int32_t>(value);
}
struct AddSat {
  int32_t operator()(int32_t a, int32_t b) const { return saturate(int64_t{a} + b); }
};
struct SubSat {
  int32_t operator()(int32_t a, int32_t b) const { return saturate(int64_t{a} - b); }
};
struct MadHiSat {
  int32_t operator()(int32_t a, int32_t b, int32_t c) const {
    return saturate(((int64_t{a} * b) >> 32) + c);
  }
};

// 24-bit products, of the low 24 bits of each source.
template <bool kSigned>
int64_t low24(uint32_t value) {
  if constexpr (kSigned) return static_cast<int32_t>(value << 8) >> 8;
  return value & 0xffffff;
}
template <bool kSigned, bool kHigh>
struct Mul24 {
  uint32_t operator()(uint32_t a, uint32_t b) const {
    int64_t product = low24<kSigned>(a) * low24<kSigned>(b);
    return static_cast<uint32_t>(kHigh ? product >> 16 : product);
  }
};
template <bool kSigned, bool kHigh>
struct Mad24 {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t c) const {
    return Mul24<kSigned, kHigh>{}(a, b) + c;
  }
};

template <template <class> class Op>
struct Binary {
  template <class T>
  Handler operator()() const {
    return lanes2<T, T, T, Op<T>>;
  }
};
template <template <class> class Op>
struct Ternary {
  template <class T>
  Handler operator()() const {
    return lanes3<T, T, T, T, Op<T>>;
  }
};
template <template <class> class Op>
struct Unary {
  template <class T>
  Handler operator()() const {
    return lanes1<T, T, Op<T>>;
  }
};

template <template <class> class Op>
void binary(Decoder& d, Type type) {
  emit_plain(d, for_integer(d, type, Binary<Op>{}), type, type, 2);
}

// Packed 16-bit forms of sm_90: add, min and max of two halves.
template <class T, template <class> class Op>
struct Packed {
  uint32_t operator()(uint32_t a, uint32_t b) const {
    auto half = [](uint32_t v, int shift) { return static_cast<T>(v >> shift); };
    uint16_t low = static_cast<uint16_t>(Op<T>{}(half(a, 0), half(b, 0)));
    uint16_t high = static_cast<uint16_t>(Op<T>{}(half(a, 16), half(b, 16)));
    return static_cast<uint32_t>(high) << 16 | low;
  }
};

template <template <class> class Op>
bool packed(Decoder& d) {
  bool is_signed = d.take("s16x2");
  if (!is_signed && !d.take("u16x2")) return false;
  Handler fn = is_signed ? lanes2<uint32_t, uint32_t, uint32_t, Packed<int16_t, Op>>
                         : lanes2<uint32_t, uint32_t, uint32_t, Packed<uint16_t, Op>>;
  emit_plain(d, fn, Type::kB32, Type::kB32, 2);
  return true;
}

Type widened(Decoder& d, Type type) {
  switch (type) {
    case Type::kU16:
      return Type::kU32;
    case Type::kS16:
      return Type::kS32;
    case Type::kU32:
      return Type::kU64;
    case Type::kS32:
      return Type::kS64;
    default:
      d.unsupported("this type has no .wide form");
  }
}

// ---- carries: one bit per lane, kept in a predicate of the frame -------------------------------

enum class Carry : uint8_t { kAdd, kSub, kMadLo, kMadHi };

// flags[0]: read the carry, flags[1]: write it. r[4] is the carry's slot.
template <class T, Carry kOp>
bool carry(Exec& x, const Instr& in) {
  using W = unsigned __int128;
  T* d = x.reg<T>(in.r[0]);
  const T* a = x.reg<T>(in.r[1]);
  const T* b = x.reg<T>(in.r[2]);
  const T* c = in.r[3] >= 0 ? x.reg<T>(in.r[3]) : nullptr;
  uint32_t held = x.pred(in.r[4]);
  uint32_t out = held;
  constexpr int kBits = 8 * sizeof(T);
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
    uint32_t l = static_cast<uint32_t>(__builtin_ctz(rest));
    uint32_t in_bit = in.flags[0] ? held >> l & 1 : 0;
    W value;
    if constexpr (kOp == Carry::kAdd) {
      value = W(a[l]) + b[l] + in_bit;
    } else if constexpr (kOp == Carry::kSub) {
      value = W(a[l]) - b[l] - in_bit;
    } else {
      W product =
          in.flags[2]
              ? static_cast<W>(static_cast<__int128>(static_cast<std::make_signed_t<T>>(a[l])) *
                               static_cast<std::make_signed_t<T>>(b[l]))
              : W(a[l]) * b[l];
      T part = static_cast<T>(kOp == Carry::kMadHi ? product >> kBits : product);
      value = W(part) + c[l] + in_bit;
    }
    d[l] = static_cast<T>(value);
    out = (out & ~(1u << l)) | (static_cast<uint32_t>(value >> kBits) & 1) << l;
  }
  if (in.flags[1]) x.pred(in.r[4]) = out;
  return true;
}

template <Carry kOp>
Handler carry_handler(Type type) {
  return size_of(type) == 8 ? carry<uint64_t, kOp> : carry<uint32_t, kOp>;
}

void emit_carry(Decoder& d, Handler fn, Type type, bool reads, bool writes, size_t sources) {
  Instr& instr = emit_plain(d, fn, type, type, sources);
  instr.r[4] = d.carry_slot();
  instr.flags[0] = reads;
  instr.flags[1] = writes;
  instr.flags[2] = is_signed(type);
}

// ---- decoders -----------------------------------------------------------------------------------

void decode_addc(Decoder& d) {
  bool writes = d.take("cc");
  emit_carry(d, carry_handler<Carry::kAdd>(d.take_type()), d.last_type(), true, writes, 2);
}

void decode_subc(Decoder& d) {
  bool writes = d.take("cc");
  emit_carry(d, carry_handler<Carry::kSub>(d.take_type()), d.last_type(), true, writes, 2);
}

void decode_madc(Decoder& d) {
  bool writes = d.take("cc");
  bool high = d.take("hi");
  if (!high && !d.take("lo")) d.fail("madc needs .lo or .hi");
  Type type = d.take_type();
  emit_carry(d, high ? carry_handler<Carry::kMadHi>(type) : carry_handler<Carry::kMadLo>(type),
             type, true, writes, 3);
}

void decode_mul24(Decoder& d) {
  bool high = d.take("hi");
  if (!high && !d.take("lo")) d.fail("needs .lo or .hi");
  bool is_s = is_signed(d.take_type());
  using T = uint32_t;
  Handler fn =
      high ? (is_s ? lanes2<T, T, T, Mul24<true, true>> : lanes2<T, T, T, Mul24<false, true>>)
           : (is_s ? lanes2<T, T, T, Mul24<true, false>> : lanes2<T, T, T, Mul24<false, false>>);
  emit_plain(d, fn, Type::kU32, Type::kU32, 2);
}

void decode_mad24(Decoder& d) {
  bool high = d.take("hi");
  if (!high && !d.take("lo")) d.fail("needs .lo or .hi");
  bool is_s = is_signed(d.take_type());
  using T = uint32_t;
  Handler fn =
      high ? (is_s ? lanes3<T, T, T, T, Mad24<true, true>> : lanes3<T, T, T, T, Mad24<false, true>>)
           : (is_s ? lanes3<T, T, T, T, Mad24<true, false>>
                   : lanes3<T, T, T, T, Mad24<false, false>>);
  emit_plain(d, fn, Type::kU32, Type::kU32, 3);
}

void decode_sad(Decoder& d) {
  Type type = d.take_type();
  emit_plain(d, for_integer(d, type, Ternary<Sad>{}), type, type, 3);
}

// flags[0]: a is signed, flags[1]: b is signed, flags[2]: dp2a takes b's high half.
template <int kTerms>
bool dot(Exec& x, const Instr& in) {
  uint32_t* d = x.reg<uint32_t>(in.r[0]);
  const uint32_t* a = x.reg<uint32_t>(in.r[1]);
  const uint32_t* b = x.reg<uint32_t>(in.r[2]);
  const uint32_t* c = x.reg<uint32_t>(in.r[3]);
  x.each([&](uint32_t l) {
    uint32_t sum = c[l];
    for (int i = 0; i < kTerms; ++i) {
      constexpr int kBits = 32 / kTerms;
      uint32_t left = a[l] << (32 - kBits * (i + 1));
      int64_t av = in.flags[0] ? static_cast<int32_t>(left) >> (32 - kBits)
                               : static_cast<int64_t>(left >> (32 - kBits));
      int shift = 8 * i + (in.flags[2] ? 16 : 0);
      uint8_t byte = static_cast<uint8_t>(b[l] >> shift);
      int64_t bv = in.flags[1] ? static_cast<int8_t>(byte) : byte;
      sum += static_cast<uint32_t>(av * bv);
    }
    d[l] = sum;
  });
  return true;
}

void decode_dp4a(Decoder& d) {
  bool a = is_signed(d.take_type());
  bool b = is_signed(d.take_type());
  Instr& instr = emit_plain(d, dot<4>, Type::kB32, Type::kB32, 3);
  instr.flags[0] = a;
  instr.flags[1] = b;
}

void decode_dp2a(Decoder& d) {
  bool high = d.take("hi");
  if (!high && !d.take("lo")) d.fail("needs .lo or .hi");
  bool a = is_signed(d.take_type());
  bool b = is_signed(d.take_type());
  Instr& instr = emit_plain(d, dot<2>, Type::kB32, Type::kB32, 3);
  instr.flags[0] = a;
  instr.flags[1] = b;
  instr.flags[2] = high;
}

}  // namespace

bool decode_integer_arithmetic(Decoder& d) {
  std::string_view root = d.root();
  if (root == "add" && packed<Add>(d)) return true;
  if (root == "min" && packed<Min>(d)) return true;
  if (root == "max" && packed<Max>(d)) return true;
  Type type = d.peek_type();
  if (is_float(type)) return false;
  if (root == "add" || root == "sub") {
    bool add = root == "add";
    bool cc = d.take("cc");
    bool sat = d.take("sat");
    d.take_type();
    if (cc) {
      emit_carry(d, add ? carry_handler<Carry::kAdd>(type) : carry_handler<Carry::kSub>(type), type,
                 false, true, 2);
    } else if (sat) {
      if (type != Type::kS32) d.fail(".sat needs .s32");
      using T = int32_t;
      emit_plain(d, add ? lanes2<T, T, T, AddSat> : lanes2<T, T, T, SubSat>, type, type, 2);
    } else if (add) {
      binary<Add>(d, type);
    } else {
      binary<Sub>(d, type);
    }
  } else if (root == "mul" || root == "mad") {
    bool mul = root == "mul";
    std::string_view part = d.take_one_of({"lo", "hi", "wide"});
    if (part.empty()) d.fail("needs .lo, .hi or .wide");
    bool cc = !mul && d.take("cc");
    bool sat = !mul && d.take("sat");
    d.take_type();
    if (cc) {
      emit_carry(
          d, part == "hi" ? carry_handler<Carry::kMadHi>(type) : carry_handler<Carry::kMadLo>(type),
          type, false, true, 3);
    } else if (sat) {
      if (type != Type::kS32 || part != "hi") d.fail(".sat needs .hi.s32");
      emit_plain(d, lanes3<int32_t, int32_t, int32_t, int32_t, MadHiSat>, type, type, 3);
    } else if (part == "wide") {
      Type result = widened(d, type);
      auto pick = [&]<class T>() -> Handler {
        if constexpr (sizeof(T) == 8) {
          return nullptr;
        } else if (mul) {
          return lanes2<Wide<T>, T, T, MulWide<T>>;
        } else {
          return lanes3<Wide<T>, T, T, Wide<T>, MadWide<T>>;
        }
      };
      Handler fn = for_integer(d, type, pick);
      if (mul) {
        emit_plain(d, fn, result, type, 2);
      } else {
        d.want_operands(4, 4);
        int32_t a = d.source(1, type), b = d.source(2, type), c = d.source(3, result);
        int32_t out = d.destination(0, result);
        Instr& instr = d.emit(fn);
        instr.r[0] = out;
        instr.r[1] = a;
        instr.r[2] = b;
        instr.r[3] = c;
      }
    } else if (mul) {
      part == "lo" ? binary<MulLo>(d, type) : binary<MulHi>(d, type);
    } else {
      emit_plain(d,
                 part == "lo" ? for_integer(d, type, Ternary<MadLo>{})
                              : for_integer(d, type, Ternary<MadHi>{}),
                 type, type, 3);
    }
  } else if (root == "div") {
    d.take_type();
    binary<Div>(d, type);
  } else if (root == "rem") {
    d.take_type();
    binary<Rem>(d, type);
  } else if (root == "min" || root == "max") {
    bool relu = d.take("relu");
    if (relu) d.unsupported(".relu on integers");
    d.take_type();
    root == "min" ? binary<Min>(d, type) : binary<Max>(d, type);
  } else if (root == "abs" || root == "neg") {
    d.take_type();
    emit_plain(
        d, root == "abs" ? for_integer(d, type, Unary<Abs>{}) : for_integer(d, type, Unary<Neg>{}),
        type, type, 1);
  } else {
    return false;
  }
  return true;
}

void add_integer_arithmetic(OpcodeTable& table) {
  table["addc"] = decode_addc;
  table["subc"] = decode_subc;
  table["madc"] = decode_madc;
  table["mul24"] = decode_mul24;
  table["mad24"] = decode_mad24;
  table["sad"] = decode_sad;
  table["dp4a"] = decode_dp4a;
  table["dp2a"] = decode_dp2a;
}

}  // namespace sluice::softgpu
