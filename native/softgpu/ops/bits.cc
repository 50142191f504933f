// SPDX-License-Identifier: Apache-2.0
// Logic, shifts, funnel shifts, bit fields, counts, permutes and three-input logic.
#include "softgpu/ops/integer.h"
#include "softgpu/ops/tables.h"

namespace sluice::softgpu {
namespace {

template <class T>
struct And {
  T operator()(T a, T b) const { return a & b; }
};
template <class T>
struct Or {
  T operator()(T a, T b) const { return a | b; }
};
template <class T>
struct Xor {
  T operator()(T a, T b) const { return a ^ b; }
};
template <class T>
struct Not {
  T operator()(T a) const { return static_cast<T>(~a); }
};
template <class T>
struct LogicalNot {
  T operator()(T a) const { return a == 0; }
};

// Shift amounts are 32-bit and clamped to the width, as PTX says.
template <class T>
struct ShiftLeft {
  T operator()(T a, uint32_t n) const {
    return n >= 8 * sizeof(T) ? T(0) : static_cast<T>(std::make_unsigned_t<T>(a) << n);
  }
};
template <class T>
struct ShiftRight {
  T operator()(T a, uint32_t n) const {
    if (n >= 8 * sizeof(T)) return a < 0 ? static_cast<T>(-1) : T(0);
    return static_cast<T>(a >> n);
  }
};

// Predicates hold a bit per lane: 0 and, 1 or, 2 xor, 3 not.
template <int kOp>
bool predicate_logic(Exec& x, const Instr& in) {
  uint32_t a = x.pred(in.r[1]);
  uint32_t b = kOp == 3 ? 0 : x.pred(in.r[2]);
  uint32_t value = kOp == 0 ? a & b : kOp == 1 ? a | b : kOp == 2 ? a ^ b : ~a;
  write_predicate(x, in.r[0], value);
  return true;
}

template <int kOp>
void emit_predicate_logic(Decoder& d) {
  d.want_operands(kOp == 3 ? 2 : 3, kOp == 3 ? 2 : 3);
  int32_t a = d.predicate(d.operand(1));
  int32_t b = kOp == 3 ? -1 : d.predicate(d.operand(2));
  int32_t out = d.predicate_destination(d.operand(0));
  Instr& instr = d.emit(predicate_logic<kOp>);
  instr.r[0] = out;
  instr.r[1] = a;
  instr.r[2] = b;
}

// Bits have no sign: every type of a width works on the unsigned one.
Type bits_type(Decoder& d) {
  Type type = d.take_type();
  if (is_float(type)) d.fail("needs a .b type");
  switch (size_of(type)) {
    case 2:
      return Type::kB16;
    case 4:
      return Type::kB32;
    case 8:
      return Type::kB64;
    default:
      d.unsupported("this width");
  }
}

template <int kPredicate, template <class> class Op>
void decode_binary_logic(Decoder& d) {
  if (d.take("pred")) return emit_predicate_logic<kPredicate>(d);
  Type type = bits_type(d);
  auto pick = []<class T>() -> Handler { return lanes2<T, T, T, Op<T>>; };
  emit_plain(d, for_integer(d, type, pick), type, type, 2);
}

void decode_not(Decoder& d) {
  if (d.take("pred")) return emit_predicate_logic<3>(d);
  Type type = bits_type(d);
  auto pick = []<class T>() -> Handler { return lanes1<T, T, Not<T>>; };
  emit_plain(d, for_integer(d, type, pick), type, type, 1);
}

void decode_cnot(Decoder& d) {
  Type type = bits_type(d);
  auto pick = []<class T>() -> Handler { return lanes1<T, T, LogicalNot<T>>; };
  emit_plain(d, for_integer(d, type, pick), type, type, 1);
}

void emit_shift(Decoder& d, Handler fn, Type type) {
  d.want_operands(3, 3);
  int32_t a = d.source(1, type);
  int32_t n = d.source(2, Type::kU32);
  int32_t out = d.destination(0, type);
  Instr& instr = d.emit(fn);
  instr.r[0] = out;
  instr.r[1] = a;
  instr.r[2] = n;
}

void decode_shl(Decoder& d) {
  Type type = bits_type(d);
  auto pick = []<class T>() -> Handler { return lanes2<T, T, uint32_t, ShiftLeft<T>>; };
  emit_shift(d, for_integer(d, type, pick), type);
}

void decode_shr(Decoder& d) {
  Type type = d.take_type();
  auto pick = []<class T>() -> Handler { return lanes2<T, T, uint32_t, ShiftRight<T>>; };
  emit_shift(d, for_integer(d, type, pick), type);
}

// shf: the 64-bit value hi:lo shifted, one half of it taken.
template <bool kLeft, bool kWrap>
struct Funnel {
  uint32_t operator()(uint32_t lo, uint32_t hi, uint32_t n) const {
    n = kWrap ? n & 31 : (n > 32 ? 32 : n);
    uint64_t both = static_cast<uint64_t>(hi) << 32 | lo;
    return static_cast<uint32_t>(kLeft ? (both << n) >> 32 : both >> n);
  }
};

void decode_shf(Decoder& d) {
  bool left = d.take("l");
  if (!left && !d.take("r")) d.fail("needs .l or .r");
  bool wrap = d.take("wrap");
  if (!wrap && !d.take("clamp")) d.fail("needs .wrap or .clamp");
  d.take_type();
  using T = uint32_t;
  Handler fn = left ? (wrap ? lanes3<T, T, T, T, Funnel<true, true>>
                            : lanes3<T, T, T, T, Funnel<true, false>>)
                    : (wrap ? lanes3<T, T, T, T, Funnel<false, true>>
                            : lanes3<T, T, T, T, Funnel<false, false>>);
  emit_plain(d, fn, Type::kB32, Type::kB32, 3);
}

template <class T>
struct Population {
  uint32_t operator()(T a) const { return static_cast<uint32_t>(__builtin_popcountll(a)); }
};
template <class T>
struct LeadingZeros {
  uint32_t operator()(T a) const {
    if (a == 0) return 8 * sizeof(T);
    return static_cast<uint32_t>(__builtin_clzll(a)) - (64 - 8 * sizeof(T));
  }
};
template <class T>
struct Reverse {
  T operator()(T a) const {
    T r = 0;
    for (size_t i = 0; i < 8 * sizeof(T); ++i) r = static_cast<T>(r << 1 | (a >> i & 1));
    return r;
  }
};

template <template <class> class Op>
void decode_count(Decoder& d) {
  Type type = bits_type(d);
  if (type == Type::kB16) d.fail("needs .b32 or .b64");
  emit_plain(d,
             type == Type::kB64 ? lanes1<uint32_t, uint64_t, Op<uint64_t>>
                                : lanes1<uint32_t, uint32_t, Op<uint32_t>>,
             Type::kU32, type, 1);
}

void decode_brev(Decoder& d) {
  Type type = bits_type(d);
  if (type == Type::kB16) d.fail("needs .b32 or .b64");
  emit_plain(d,
             type == Type::kB64 ? lanes1<uint64_t, uint64_t, Reverse<uint64_t>>
                                : lanes1<uint32_t, uint32_t, Reverse<uint32_t>>,
             type, type, 1);
}

// bfind: position of the highest bit that differs from the sign; all ones if there is none.
template <class T, bool kAmount>
struct FindHighest {
  uint32_t operator()(T a) const {
    using U = std::make_unsigned_t<T>;
    U v = static_cast<U>(a < 0 ? ~a : a);
    if (v == 0) return 0xffffffffu;
    uint32_t position = 63 - static_cast<uint32_t>(__builtin_clzll(v));
    return kAmount ? 8 * sizeof(T) - 1 - position : position;
  }
};

void decode_bfind(Decoder& d) {
  bool amount = d.take("shiftamt");
  Type type = d.take_type();
  if (size_of(type) < 4) d.fail("needs a 32- or 64-bit type");
  auto pick = [amount]<class T>() -> Handler {
    return amount ? lanes1<uint32_t, T, FindHighest<T, true>>
                  : lanes1<uint32_t, T, FindHighest<T, false>>;
  };
  emit_plain(d, for_integer(d, type, pick), Type::kU32, type, 1);
}

// bfe: b is the position, c the length, of each only the low byte; beyond the value lies its sign.
template <class T>
struct Extract {
  T operator()(T a, uint32_t b, uint32_t c) const {
    constexpr uint32_t kBits = 8 * sizeof(T);
    using U = std::make_unsigned_t<T>;
    uint32_t position = b & 0xff;
    uint32_t length = c & 0xff;
    if (length == 0) return 0;
    uint32_t last = position + length - 1;
    bool negative = std::is_signed_v<T> && (U(a) >> (last < kBits ? last : kBits - 1) & 1);
    U field = position < kBits ? static_cast<U>(U(a) >> position) : U(0);
    uint32_t present = position < kBits ? kBits - position : 0;
    uint32_t kept = length < present ? length : present;
    U mask = kept >= kBits ? ~U(0) : static_cast<U>((U(1) << kept) - 1);
    field &= mask;
    return static_cast<T>(negative ? field | static_cast<U>(~mask) : field);
  }
};

void decode_bfe(Decoder& d) {
  Type type = d.take_type();
  if (size_of(type) < 4) d.fail("needs a 32- or 64-bit type");
  d.want_operands(4, 4);
  auto pick = []<class T>() -> Handler { return lanes3<T, T, uint32_t, uint32_t, Extract<T>>; };
  Handler fn = for_integer(d, type, pick);
  int32_t a = d.source(1, type), b = d.source(2, Type::kU32), c = d.source(3, Type::kU32);
  int32_t out = d.destination(0, type);
  Instr& instr = d.emit(fn);
  instr.r[0] = out;
  instr.r[1] = a;
  instr.r[2] = b;
  instr.r[3] = c;
}

template <class T>
bool insert(Exec& x, const Instr& in) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  T* d = x.reg<T>(in.r[0]);
  const T* a = x.reg<T>(in.r[1]);
  const T* b = x.reg<T>(in.r[2]);
  const uint32_t* c = x.reg<uint32_t>(in.r[3]);
  const uint32_t* e = x.reg<uint32_t>(in.r[4]);
  x.each([&](uint32_t l) {
    uint32_t position = c[l] & 0xff;
    uint32_t length = e[l] & 0xff;
    if (position >= kBits) {
      d[l] = b[l];
      return;
    }
    T mask = length >= kBits ? ~T(0) : static_cast<T>((T(1) << length) - 1);
    mask = static_cast<T>(mask << position);
    d[l] = (b[l] & ~mask) | (static_cast<T>(a[l] << position) & mask);
  });
  return true;
}

void decode_bfi(Decoder& d) {
  Type type = bits_type(d);
  if (type == Type::kB16) d.fail("needs .b32 or .b64");
  d.want_operands(5, 5);
  int32_t a = d.source(1, type), b = d.source(2, type);
  int32_t c = d.source(3, Type::kU32), e = d.source(4, Type::kU32);
  int32_t out = d.destination(0, type);
  Instr& instr = d.emit(type == Type::kB64 ? insert<uint64_t> : insert<uint32_t>);
  instr.r[0] = out;
  instr.r[1] = a;
  instr.r[2] = b;
  instr.r[3] = c;
  instr.r[4] = e;
}

struct Mask {
  uint32_t position(uint32_t a, bool clamp) const { return clamp ? (a > 32 ? 32 : a) : a & 31; }
  uint32_t length(uint32_t b, bool clamp) const { return clamp ? (b > 32 ? 32 : b) : b & 31; }
};
template <bool kClamp>
struct MakeMask {
  uint32_t operator()(uint32_t a, uint32_t b) const {
    uint64_t bits = (1ull << Mask{}.length(b, kClamp)) - 1;
    return static_cast<uint32_t>(bits << Mask{}.position(a, kClamp));
  }
};

void decode_bmsk(Decoder& d) {
  bool clamp = d.take("clamp");
  if (!clamp && !d.take("wrap")) d.fail("needs .clamp or .wrap");
  d.take_type();
  using T = uint32_t;
  emit_plain(d, clamp ? lanes2<T, T, T, MakeMask<true>> : lanes2<T, T, T, MakeMask<false>>,
             Type::kB32, Type::kB32, 2);
}

template <bool kSigned, bool kClamp>
struct SignExtend {
  uint32_t operator()(uint32_t a, uint32_t b) const {
    uint32_t n = kClamp ? (b > 32 ? 32 : b) : b & 31;
    if (n == 0) return 0;
    if (n == 32) return a;
    uint32_t shifted = a << (32 - n);
    return kSigned ? static_cast<uint32_t>(static_cast<int32_t>(shifted) >> (32 - n))
                   : shifted >> (32 - n);
  }
};

void decode_szext(Decoder& d) {
  bool clamp = d.take("clamp");
  if (!clamp && !d.take("wrap")) d.fail("needs .clamp or .wrap");
  bool sign = is_signed(d.take_type());
  using T = uint32_t;
  Handler fn = sign ? (clamp ? lanes2<T, T, T, SignExtend<true, true>>
                             : lanes2<T, T, T, SignExtend<true, false>>)
                    : (clamp ? lanes2<T, T, T, SignExtend<false, true>>
                             : lanes2<T, T, T, SignExtend<false, false>>);
  emit_plain(d, fn, Type::kB32, Type::kB32, 2);
}

// prmt: four bytes picked from b:a. flags[0]: 0 general, else the mode.
enum class Permute : uint8_t { kGeneral, kF4e, kB4e, kRc8, kEcl, kEcr, kRc16 };

uint32_t permute(uint32_t a, uint32_t b, uint32_t c, Permute mode) {
  uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  auto byte = [&](uint32_t i) { return static_cast<uint32_t>(bytes >> (8 * (i & 7)) & 0xff); };
  uint32_t result = 0;
  uint32_t n = c & 3;
  for (uint32_t i = 0; i < 4; ++i) {
    uint32_t value = 0;
    switch (mode) {
      case Permute::kGeneral: {
        uint32_t selector = c >> (4 * i) & 0xf;
        value = byte(selector & 7);
        if (selector & 8) value = value & 0x80 ? 0xff : 0;
        break;
      }
      case Permute::kF4e:
        value = byte(n + i);
        break;
      case Permute::kB4e:
        value = byte(n - i + 8);
        break;
      case Permute::kRc8:
        value = byte(n);
        break;
      case Permute::kEcl:
        value = byte(i < n ? n : i);
        break;
      case Permute::kEcr:
        value = byte(i > n ? n : i);
        break;
      case Permute::kRc16:
        value = byte((n & 1) * 2 + (i & 1));
        break;
    }
    result |= value << (8 * i);
  }
  return result;
}

bool do_permute(Exec& x, const Instr& in) {
  uint32_t* d = x.reg<uint32_t>(in.r[0]);
  const uint32_t* a = x.reg<uint32_t>(in.r[1]);
  const uint32_t* b = x.reg<uint32_t>(in.r[2]);
  const uint32_t* c = x.reg<uint32_t>(in.r[3]);
  Permute mode = static_cast<Permute>(in.flags[0]);
  x.each([=](uint32_t l) { d[l] = permute(a[l], b[l], c[l], mode); });
  return true;
}

void decode_prmt(Decoder& d) {
  d.take_type();
  constexpr std::string_view kModes[] = {"", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};
  uint8_t mode = 0;
  for (uint8_t i = 1; i < 7; ++i) {
    if (d.take(kModes[i])) mode = i;
  }
  emit_plain(d, do_permute, Type::kB32, Type::kB32, 3).flags[0] = mode;
}

uint32_t table_logic(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  uint32_t result = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    if (!(table >> i & 1)) continue;
    result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
  return result;
}

bool three_input_logic(Exec& x, const Instr& in) {
  uint32_t* d = x.reg<uint32_t>(in.r[0]);
  const uint32_t* a = x.reg<uint32_t>(in.r[1]);
  const uint32_t* b = x.reg<uint32_t>(in.r[2]);
  const uint32_t* c = x.reg<uint32_t>(in.r[3]);
  uint32_t table = static_cast<uint32_t>(in.imm);
  x.each([=](uint32_t l) { d[l] = table_logic(a[l], b[l], c[l], table); });
  return true;
}

void decode_lop3(Decoder& d) {
  if (d.take("and") || d.take("or")) d.unsupported("lop3 with a predicate");
  d.take_type();
  d.want_operands(5, 5);
  if (d.operand(4).kind != ptx::Operand::Kind::kInteger) d.fail("the table must be a constant");
  int32_t a = d.source(1, Type::kB32), b = d.source(2, Type::kB32), c = d.source(3, Type::kB32);
  int32_t out = d.destination(0, Type::kB32);
  Instr& instr = d.emit(three_input_logic);
  instr.r[0] = out;
  instr.r[1] = a;
  instr.r[2] = b;
  instr.r[3] = c;
  instr.imm = d.operand(4).bits & 0xff;
}

// fns: the position of the n-th set bit of the mask, counted up or down from a base.
struct FindNth {
  uint32_t operator()(uint32_t mask, uint32_t base, uint32_t offset_bits) const {
    int32_t offset = static_cast<int32_t>(offset_bits);
    if (base > 31) return 0xffffffffu;
    if (offset == 0) return mask >> base & 1 ? base : 0xffffffffu;
    int32_t step = offset > 0 ? 1 : -1;
    int32_t left = offset > 0 ? offset : -offset;
    for (int32_t p = static_cast<int32_t>(base); p >= 0 && p < 32; p += step) {
      if ((mask >> p & 1) && --left == 0) return static_cast<uint32_t>(p);
    }
    return 0xffffffffu;
  }
};

void decode_fns(Decoder& d) {
  d.take_type();
  using T = uint32_t;
  emit_plain(d, lanes3<T, T, T, T, FindNth>, Type::kB32, Type::kB32, 3);
}

}  // namespace

void add_bits(OpcodeTable& table) {
  table["and"] = decode_binary_logic<0, And>;
  table["or"] = decode_binary_logic<1, Or>;
  table["xor"] = decode_binary_logic<2, Xor>;
  table["not"] = decode_not;
  table["cnot"] = decode_cnot;
  table["shl"] = decode_shl;
  table["shr"] = decode_shr;
  table["shf"] = decode_shf;
  table["popc"] = decode_count<Population>;
  table["clz"] = decode_count<LeadingZeros>;
  table["brev"] = decode_brev;
  table["bfind"] = decode_bfind;
  table["bfe"] = decode_bfe;
  table["bfi"] = decode_bfi;
  table["bmsk"] = decode_bmsk;
  table["szext"] = decode_szext;
  table["prmt"] = decode_prmt;
  table["lop3"] = decode_lop3;
  table["fns"] = decode_fns;
}

}  // namespace sluice::softgpu
