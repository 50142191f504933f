// SPDX-License-Identifier: Apache-2.0
// atom and red. Blocks run on several host threads and memory may be shared with the host, so every
// one is a real atomic of the host, lane after lane.
#include <algorithm>
#include <type_traits>

#include "softgpu/interp/access.h"
#include "softgpu/ops/float_format.h"
#include "softgpu/ops/tables.h"

namespace sluice::softgpu {
namespace {

// Each operator maps the old value and the operand to the new one.
struct Min {
  template <class T>
  T operator()(T old, T b) const {
    return std::min(old, b);
  }
};
struct Max {
  template <class T>
  T operator()(T old, T b) const {
    return std::max(old, b);
  }
};
struct And {
  template <class T>
  T operator()(T old, T b) const {
    return old & b;
  }
};
struct Or {
  template <class T>
  T operator()(T old, T b) const {
    return old | b;
  }
};
struct Xor {
  template <class T>
  T operator()(T old, T b) const {
    return old ^ b;
  }
};
struct Exchange {
  template <class T>
  T operator()(T, T b) const {
    return b;
  }
};
struct Increment {
  template <class T>
  T operator()(T old, T b) const {
    return old >= b ? T(0) : static_cast<T>(old + 1);
  }
};
struct Decrement {
  template <class T>
  T operator()(T old, T b) const {
    return old == 0 || old > b ? b : static_cast<T>(old - 1);
  }
};

// r[0] address, r[1] old value (or -1 for red), r[2] operand, r[3] second operand of cas.
template <class T, class Op>
bool update(Exec& x, const Instr& in) {
  if (!resolve(x, in, sizeof(T), sizeof(T), Access::kWrite)) return false;
  T* d = in.r[1] >= 0 ? x.reg<T>(in.r[1]) : nullptr;
  const T* b = x.reg<T>(in.r[2]);
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
    uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
    T* word = reinterpret_cast<T*>(x.ptr[lane]);
    T old;
    if constexpr (std::is_same_v<Op, Exchange>) {
      old = __atomic_exchange_n(word, b[lane], __ATOMIC_SEQ_CST);
    } else {
      old = __atomic_load_n(word, __ATOMIC_RELAXED);
      T next;
      do {
        next = static_cast<T>(Op{}(static_cast<T>(old), b[lane]));
      } while (!__atomic_compare_exchange_n(word, &old, next, false, __ATOMIC_SEQ_CST,
                                            __ATOMIC_RELAXED));
    }
    if (d) d[lane] = old;
  }
  return true;
}

// Sums of unsigned type, so that overflow wraps.
template <class T>
bool add_integer(Exec& x, const Instr& in) {
  if (!resolve(x, in, sizeof(T), sizeof(T), Access::kWrite)) return false;
  T* d = in.r[1] >= 0 ? x.reg<T>(in.r[1]) : nullptr;
  const T* b = x.reg<T>(in.r[2]);
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
    uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
    T old = __atomic_fetch_add(reinterpret_cast<T*>(x.ptr[lane]), b[lane], __ATOMIC_SEQ_CST);
    if (d) d[lane] = old;
  }
  return true;
}

template <class T>
bool compare_and_swap(Exec& x, const Instr& in) {
  if (!resolve(x, in, sizeof(T), sizeof(T), Access::kWrite)) return false;
  T* d = in.r[1] >= 0 ? x.reg<T>(in.r[1]) : nullptr;
  const T* wanted = x.reg<T>(in.r[2]);
  const T* next = x.reg<T>(in.r[3]);
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
    uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
    T old = wanted[lane];
    __atomic_compare_exchange_n(reinterpret_cast<T*>(x.ptr[lane]), &old, next[lane], false,
                                __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    if (d) d[lane] = old;
  }
  return true;
}

// Floating point: parts of a word of type W, each in format F. kOp: 0 add, 1 min, 2 max.
template <class F, class W, int kOp>
bool update_real(Exec& x, const Instr& in) {
  using S = typename F::Storage;
  constexpr uint32_t kParts = sizeof(W) / sizeof(S);  // NOLINT(bugprone-sizeof-expression)
  if (!resolve(x, in, sizeof(W), sizeof(W), Access::kWrite)) return false;
  W* d = in.r[1] >= 0 ? x.reg<W>(in.r[1]) : nullptr;
  const W* b = x.reg<W>(in.r[2]);
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
    uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
    W* word = reinterpret_cast<W*>(x.ptr[lane]);
    W old = __atomic_load_n(word, __ATOMIC_RELAXED);
    W next;
    do {
      next = 0;
      for (uint32_t part = 0; part < kParts; ++part) {
        uint32_t shift = 8 * sizeof(S) * part;
        auto left = F::load(static_cast<S>(old >> shift));
        auto right = F::load(static_cast<S>(b[lane] >> shift));
        auto value = kOp == 0   ? left + right
                     : kOp == 1 ? std::fmin(left, right)
                                : std::fmax(left, right);
        next |= static_cast<W>(static_cast<W>(F::store(value)) << shift);
      }
    } while (
        !__atomic_compare_exchange_n(word, &old, next, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    if (d) d[lane] = old;
  }
  return true;
}

template <int kOp>
Handler real_handler(Decoder& d, Type type) {
  switch (type) {
    case Type::kF32:
      return update_real<F32, uint32_t, kOp>;
    case Type::kF64:
      return update_real<F64, uint64_t, kOp>;
    case Type::kF16:
      return update_real<F16, uint16_t, kOp>;
    case Type::kBf16:
      return update_real<Bf16, uint16_t, kOp>;
    case Type::kF16x2:
      return update_real<F16, uint32_t, kOp>;
    case Type::kBf16x2:
      return update_real<Bf16, uint32_t, kOp>;
    default:
      d.unsupported(std::string("type .") + type_name(type));
  }
}

template <class Op>
Handler integer_handler(Decoder& d, Type type) {
  switch (type) {
    case Type::kB32:
    case Type::kU32:
      return update<uint32_t, Op>;
    case Type::kS32:
      return update<int32_t, Op>;
    case Type::kB64:
    case Type::kU64:
      return update<uint64_t, Op>;
    case Type::kS64:
      return update<int64_t, Op>;
    default:
      d.unsupported(std::string("type .") + type_name(type));
  }
}

Handler handler_of(Decoder& d, std::string_view op, Type type) {
  bool real = is_float(type);
  bool wide = size_of(type) == 8;
  if (op == "add") {
    if (real) return real_handler<0>(d, type);
    return wide ? add_integer<uint64_t> : add_integer<uint32_t>;
  }
  if (op == "min") return real ? real_handler<1>(d, type) : integer_handler<Min>(d, type);
  if (op == "max") return real ? real_handler<2>(d, type) : integer_handler<Max>(d, type);
  if (real) d.fail("this operation needs an integer type");
  if (op == "and") return integer_handler<And>(d, type);
  if (op == "or") return integer_handler<Or>(d, type);
  if (op == "xor") return integer_handler<Xor>(d, type);
  if (op == "exch") return integer_handler<Exchange>(d, type);
  if (op == "inc") return integer_handler<Increment>(d, type);
  if (op == "dec") return integer_handler<Decrement>(d, type);
  if (size_of(type) == 2) return compare_and_swap<uint16_t>;
  return wide ? compare_and_swap<uint64_t> : compare_and_swap<uint32_t>;
}

void decode_update(Decoder& d, bool returns) {
  Space space = Space::kGeneric;
  if (d.take("global")) space = Space::kGlobal;
  if (d.take("shared") || d.take("shared::cta") || d.take("shared::cluster")) {
    space = Space::kShared;
  }
  // Every order and scope is met by a sequentially consistent atomic of the whole machine.
  while (!d.take_one_of({"relaxed", "acquire", "release", "acq_rel", "sc", "cta", "cluster", "gpu",
                         "sys", "noftz"})
              .empty()) {
  }
  std::string_view op =
      d.take_one_of({"add", "min", "max", "and", "or", "xor", "exch", "inc", "dec", "cas"});
  if (op.empty()) d.fail("an operation is missing");
  if (!d.take_one_of({"v2", "v4", "v8"}).empty()) d.unsupported("vector atomics");
  Type type = d.take_type();
  if (size_of(type) > 8) d.unsupported("128-bit atomics");
  Handler fn = handler_of(d, op, type);
  size_t at = returns ? 1 : 0;
  bool cas = op == "cas";
  d.want_operands(at + (cas ? 3 : 2), at + (cas ? 3 : 2));
  int32_t b = d.source(at + 1, type);
  int32_t c = cas ? d.source(at + 2, type) : -1;
  int32_t out = -1;
  if (returns && d.operand(0).kind != ptx::Operand::Kind::kSink) out = d.destination(0, type);
  Decoder::Address address = d.address(d.operand(at), space);
  Instr& instr = d.emit(fn);
  instr.r[0] = address.base;
  instr.r[1] = out;
  instr.r[2] = b;
  instr.r[3] = c;
  instr.imm = address.offset;
  instr.space = address.space;
  instr.flags[0] = address.base < 0 ? 0 : address.base_width == 8 ? kBase64 : kBase32;
  if (address.frame_relative) instr.flags[0] |= kFrameRelative;
}

void decode_atom(Decoder& d) { decode_update(d, true); }

void decode_red(Decoder& d) {
  if (d.take("async")) d.unsupported("red.async");
  decode_update(d, false);
}

}  // namespace

void add_atomics(OpcodeTable& table) {
  table["atom"] = decode_atom;
  table["red"] = decode_red;
}

}  // namespace sluice::softgpu
