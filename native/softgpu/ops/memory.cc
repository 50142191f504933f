// SPDX-License-Identifier: Apache-2.0
// Loads, stores, asynchronous copies to shared memory (done at once) and fences.
#include <atomic>
#include <bit>
#include <cstring>

#include "softgpu/interp/access.h"
#include "softgpu/ops/lanes.h"
#include "softgpu/ops/tables.h"

namespace sluice::softgpu {
namespace {

struct Wide128 {
  uint64_t low, high;
};

// One naturally aligned element, read or written in one piece as the device would.
template <class M>
M read(const uint8_t* from) {
  if constexpr (sizeof(M) <= 8) {
    return __atomic_load_n(reinterpret_cast<const M*>(from), __ATOMIC_RELAXED);
  } else {
    M value;
    std::memcpy(&value, from, sizeof(M));
    return value;
  }
}

template <class M>
void write(uint8_t* to, M value) {
  if constexpr (sizeof(M) <= 8) {
    __atomic_store_n(reinterpret_cast<M*>(to), value, __ATOMIC_RELAXED);
  } else {
    std::memcpy(to, &value, sizeof(M));
  }
}

// Destinations are r[1..count]; M is the type in memory, R that of the register.
template <class M, class R>
bool load(Exec& x, const Instr& in) {
  uint32_t bytes = sizeof(M) * in.count;
  if (!resolve(x, in, bytes, bytes, Access::kRead)) return false;
  for (uint32_t i = 0; i < in.count; ++i) {
    if (in.r[1 + i] < 0) continue;
    R* d = x.reg<R>(in.r[1 + i]);
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): its sign fills the register
    x.each([&](uint32_t l) { d[l] = static_cast<R>(read<M>(x.ptr[l] + i * sizeof(M))); });
  }
  return true;
}

template <class M, class R>
bool store(Exec& x, const Instr& in) {
  uint32_t bytes = sizeof(M) * in.count;
  if (!resolve(x, in, bytes, bytes, Access::kWrite)) return false;
  for (uint32_t i = 0; i < in.count; ++i) {
    const R* s = x.reg<R>(in.r[1 + i]);
    x.each([&](uint32_t l) { write<M>(x.ptr[l] + i * sizeof(M), static_cast<M>(s[l])); });
  }
  return true;
}

template <template <class, class> class Make, class M, class S>
Handler by_register(uint32_t width, bool is_signed) {
  if (is_signed) {
    switch (width) {
      case 2:
        return Make<S, int16_t>::fn;
      case 4:
        return Make<S, int32_t>::fn;
      default:
        return Make<S, int64_t>::fn;
    }
  }
  switch (width) {
    case 2:
      return Make<M, uint16_t>::fn;
    case 4:
      return Make<M, uint32_t>::fn;
    default:
      return Make<M, uint64_t>::fn;
  }
}

template <class M, class R>
struct Load {
  static constexpr Handler fn = load<M, R>;
};
template <class M, class R>
struct Store {
  static constexpr Handler fn = store<M, R>;
};

template <template <class, class> class Make>
Handler memory_handler(Decoder& d, uint32_t bytes, uint32_t width, bool is_signed) {
  if (width < bytes) d.fail("the register is narrower than the access");
  switch (bytes) {
    case 1:
      return by_register<Make, uint8_t, int8_t>(width, is_signed);
    case 2:
      return by_register<Make, uint16_t, int16_t>(width, is_signed);
    case 4:
      return by_register<Make, uint32_t, int32_t>(width, is_signed);
    case 8:
      return by_register<Make, uint64_t, int64_t>(8, is_signed);
    case 16:
      return Make<Wide128, Wide128>::fn;
    default:
      d.fail("bad access size");
  }
}

Space take_space(Decoder& d) {
  struct Row {
    const char* name;
    Space space;
  };
  constexpr Row kRows[] = {
      {"global", Space::kGlobal},      {"shared", Space::kShared},
      {"shared::cta", Space::kShared}, {"shared::cluster", Space::kShared},
      {"local", Space::kLocal},        {"const", Space::kConst},
      {"param", Space::kParam},        {"param::entry", Space::kParam},
      {"param::func", Space::kParam},
  };
  for (const Row& row : kRows) {
    if (d.take(row.name)) return row.space;
  }
  return Space::kGeneric;
}

// Orders, scopes and cache hints: x86 orders ordinary accesses at least as strongly.
bool take_hints(Decoder& d) {
  bool strong = false;
  for (;;) {
    std::string_view hint = d.take_one_of({"volatile",
                                           "relaxed",
                                           "acquire",
                                           "release",
                                           "mmio",
                                           "weak",
                                           "cta",
                                           "cluster",
                                           "gpu",
                                           "sys",
                                           "ca",
                                           "cg",
                                           "cs",
                                           "cv",
                                           "lu",
                                           "wb",
                                           "wt",
                                           "nc",
                                           "unified",
                                           "L1::evict_normal",
                                           "L1::evict_unchanged",
                                           "L1::evict_first",
                                           "L1::evict_last",
                                           "L1::no_allocate",
                                           "L2::64B",
                                           "L2::128B",
                                           "L2::256B",
                                           "L2::evict_first",
                                           "L2::evict_last",
                                           "L2::evict_normal"});
    if (hint.empty()) return strong;
    strong |= hint == "release";
    if (hint == "L2::cache_hint") d.unsupported("L2 cache policies");
  }
}

void set_address(Decoder& d, Instr& instr, const Decoder::Address& address) {
  instr.r[0] = address.base;
  instr.imm = address.offset;
  instr.space = address.space;
  instr.flags[0] = address.base < 0 ? 0 : address.base_width == 8 ? kBase64 : kBase32;
  if (address.frame_relative) instr.flags[0] |= kFrameRelative;
  (void)d;
}

Decoder::Address decode_address(Decoder& d, size_t index, Space space) {
  Decoder::Address address = d.address(d.operand(index), space);
  // In a device function a register holding a parameter's address points into local memory.
  if (address.space == Space::kParam && address.base >= 0 && !d.function().entry) {
    address.space = Space::kLocal;
  }
  return address;
}

void decode_access(Decoder& d, bool is_load) {
  Space space = take_space(d);
  take_hints(d);
  std::string_view vector = d.take_one_of({"v2", "v4", "v8"});
  Type type = d.take_type();
  if (type == Type::kPred) d.fail("a predicate cannot live in memory");
  d.want_operands(2, 2);
  const ptx::Operand& data = d.operand(is_load ? 0 : 1);
  std::vector<const ptx::Operand*> parts;
  if (data.kind == ptx::Operand::Kind::kVector) {
    for (const ptx::Operand& element : data.elements) parts.push_back(&element);
  } else {
    parts.push_back(&data);
  }
  size_t wanted = vector.empty() ? 1 : static_cast<size_t>(vector[1] - '0');
  if (parts.size() != wanted) d.fail("the vector's length does not match");
  if (wanted > 7) d.unsupported(".v8");
  uint32_t bytes = size_of(type);
  uint32_t width = 0;
  int32_t slots[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
  for (const ptx::Operand* part : parts) {
    uint32_t own = d.register_width(*part);
    if (own == 0) continue;
    if (width != 0 && own != width) d.unsupported("registers of different sizes in one vector");
    width = own;
  }
  if (width == 0) width = std::max(2u, bytes);
  Type as = width == 2   ? Type::kB16
            : width == 4 ? Type::kB32
            : width == 8 ? Type::kB64
                         : Type::kB128;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (is_load) {
      if (parts[i]->kind == ptx::Operand::Kind::kSink) continue;
      slots[1 + i] = d.destination(*parts[i], as);
    } else {
      // A floating-point literal converts by the instruction's type, not the register's.
      bool literal = d.register_width(*parts[i]) == 0;
      slots[1 + i] = d.source(*parts[i], literal && size_of(type) == width ? type : as);
    }
  }
  Decoder::Address address = decode_address(d, is_load ? 1 : 0, space);
  Handler fn = is_load ? memory_handler<Load>(d, bytes, width, is_signed(type))
                       : memory_handler<Store>(d, bytes, width, is_signed(type));
  Instr& instr = d.emit(fn);
  for (int i = 1; i < 8; ++i) instr.r[i] = slots[i];
  instr.count = static_cast<uint8_t>(parts.size());
  set_address(d, instr, address);
}

void decode_ld(Decoder& d) { decode_access(d, true); }
void decode_st(Decoder& d) { decode_access(d, false); }
void decode_ldu(Decoder& d) { decode_access(d, true); }

// cp.async: r[0] shared address, r[1] global address (64-bit), r[2] bytes to read (32-bit) or -1.
// imm: offset of the destination; target: index of nothing; size: bytes to write; sources' offset
// is folded into a temporary by the decoder.
bool copy_async(Exec& x, const Instr& in) {
  if (!resolve(x, in, in.size, in.size, Access::kWrite)) return false;
  uint8_t* to[kWarpSize];
  std::memcpy(to, x.ptr, sizeof to);
  Instr source = in;
  source.space = Space::kGlobal;
  source.r[0] = in.r[1];
  source.imm = in.target;
  source.flags[0] = kBase64;
  const uint32_t* sizes = in.r[2] >= 0 ? x.reg<uint32_t>(in.r[2]) : nullptr;
  uint32_t all = x.mask;
  if (sizes) {  // lanes that copy nothing must not touch their source
    for (uint32_t rest = all; rest != 0; rest &= rest - 1) {
      uint32_t l = static_cast<uint32_t>(__builtin_ctz(rest));
      if (sizes[l] == 0) x.mask &= ~(1u << l);
    }
  }
  if (x.mask != 0 && !resolve(x, source, in.size, in.size, Access::kRead)) return false;
  for (uint32_t rest = all; rest != 0; rest &= rest - 1) {
    uint32_t l = static_cast<uint32_t>(__builtin_ctz(rest));
    uint32_t bytes = sizes ? std::min<uint32_t>(sizes[l], in.size) : in.size;
    std::memset(to[l] + bytes, 0, in.size - bytes);
    if (bytes != 0) std::memcpy(to[l], x.ptr[l], bytes);
  }
  x.mask = all;
  return true;
}

void decode_cp(Decoder& d) {
  if (!d.take("async")) d.unsupported("only cp.async is supported");
  if (d.take("commit_group") || d.take("wait_all")) return;
  if (d.take("wait_group")) {
    d.want_operands(1, 1);
    return;
  }
  if (d.take("bulk")) d.unsupported("bulk copies");
  d.take_one_of({"ca", "cg"});
  bool shared = d.take("shared") || d.take("shared::cta");
  if (!shared || !d.take("global")) d.fail("needs .shared.global");
  d.take_one_of({"L2::64B", "L2::128B", "L2::256B"});
  d.want_operands(3, 4);
  if (d.operand(2).kind != ptx::Operand::Kind::kInteger) d.fail("the size must be a constant");
  uint64_t size = d.operand(2).bits;
  if (size != 4 && size != 8 && size != 16) d.fail("the size must be 4, 8 or 16");
  int32_t sizes = d.operands() == 4 ? d.source(3, Type::kB32) : -1;
  Decoder::Address to = d.address(d.operand(0), Space::kShared);
  Decoder::Address from = d.address(d.operand(1), Space::kGlobal);
  if (from.base < 0 || from.base_width != 8) d.unsupported("this form of source address");
  if (from.offset > UINT32_MAX) d.unsupported("negative offsets of the source");
  Instr& instr = d.emit(copy_async);
  set_address(d, instr, to);
  instr.r[1] = from.base;
  instr.r[2] = sizes;
  instr.target = static_cast<uint32_t>(from.offset);
  instr.size = static_cast<uint8_t>(size);
}

bool fence(Exec&, const Instr&) {
  // A read-modify-write orders everything on x86, and ThreadSanitizer understands it.
  static std::atomic<int> fenced{0};
  fenced.fetch_add(0, std::memory_order_seq_cst);
  return true;
}

void decode_fence(Decoder& d) {
  if (d.take("proxy")) {
    while (d.has_modifiers()) d.take_any();
  }
  while (!d.take_one_of({"sc", "acq_rel", "acquire", "release", "cta", "cluster", "gpu", "sys",
                         "gl", "mbarrier_init"})
              .empty()) {
  }
  d.emit(fence);
}

}  // namespace

void add_memory(OpcodeTable& table) {
  table["ld"] = decode_ld;
  table["ldu"] = decode_ldu;
  table["st"] = decode_st;
  table["cp"] = decode_cp;
  table["fence"] = decode_fence;
  table["membar"] = decode_fence;
}

}  // namespace sluice::softgpu
