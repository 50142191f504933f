// SPDX-License-Identifier: Apache-2.0
// mov (with packing and unpacking of vectors), cvta, isspacep, and instructions without effect
// here.
#include "softgpu/interp/access.h"
#include "softgpu/ops/lanes.h"
#include "softgpu/ops/special.h"
#include "softgpu/ops/tables.h"

namespace sluice::softgpu {
namespace {

struct Wide128 {
  uint64_t low, high;
};

template <class T>
bool copy(Exec& x, const Instr& in) {
  T* d = x.reg<T>(in.r[0]);
  const T* a = x.reg<T>(in.r[1]);
  x.each([=](uint32_t l) { d[l] = a[l]; });
  return true;
}

bool copy_predicate(Exec& x, const Instr& in) {
  write_predicate(x, in.r[0], x.pred(in.r[1]));
  return true;
}

Handler copy_of_width(Decoder& d, uint32_t width) {
  switch (width) {
    case 2:
      return copy<uint16_t>;
    case 4:
      return copy<uint32_t>;
    case 8:
      return copy<uint64_t>;
    case 16:
      return copy<Wide128>;
    default:
      d.fail("bad register width");
  }
}

// r[0] is the packed register, r[1..] its parts from the low end.
template <class Whole, class Part, bool kPack>
bool repack(Exec& x, const Instr& in) {
  constexpr uint32_t kParts = sizeof(Whole) / sizeof(Part);
  uint8_t* whole = x.reg<uint8_t>(in.r[0]);
  for (uint32_t part = 0; part < kParts; ++part) {
    if (in.r[1 + part] < 0) continue;
    Part* p = x.reg<Part>(in.r[1 + part]);
    uint8_t* w = whole + part * sizeof(Part);
    x.each([=](uint32_t l) {
      if constexpr (kPack) {
        __builtin_memcpy(w + l * sizeof(Whole), &p[l], sizeof(Part));
      } else {
        __builtin_memcpy(&p[l], w + l * sizeof(Whole), sizeof(Part));
      }
    });
  }
  return true;
}

template <bool kPack>
Handler repack_of(uint32_t whole, uint32_t parts) {
  if (whole == 4 && parts == 2) return repack<uint32_t, uint16_t, kPack>;
  if (whole == 8 && parts == 2) return repack<uint64_t, uint32_t, kPack>;
  if (whole == 8 && parts == 4) return repack<uint64_t, uint16_t, kPack>;
  if (whole == 16 && parts == 2) return repack<Wide128, uint64_t, kPack>;
  if (whole == 16 && parts == 4) return repack<Wide128, uint32_t, kPack>;
  return nullptr;
}

Type part_type(uint32_t bytes) {
  return bytes == 2 ? Type::kB16 : bytes == 4 ? Type::kB32 : Type::kB64;
}

void decode_byte_pack(Decoder& d, bool pack);

void decode_repack(Decoder& d, Type type, bool pack) {
  const ptx::Operand& vector = d.operand(pack ? 1 : 0);
  const ptx::Operand& whole = d.operand(pack ? 0 : 1);
  uint32_t bytes = size_of(type);
  uint32_t parts = static_cast<uint32_t>(vector.elements.size());
  if (parts != 0 && bytes / parts == 1) return decode_byte_pack(d, pack);
  Handler fn = pack ? repack_of<true>(bytes, parts) : repack_of<false>(bytes, parts);
  if (!fn) d.fail("a vector of this many elements does not make up the type");
  int32_t slots[5] = {-1, -1, -1, -1, -1};
  slots[0] = pack ? d.destination(whole, type) : d.source(whole, type);
  for (uint32_t i = 0; i < parts; ++i) {
    Type part = part_type(bytes / parts);
    if (pack) {
      slots[1 + i] = d.source(vector.elements[i], part);
    } else if (vector.elements[i].kind != ptx::Operand::Kind::kSink) {
      slots[1 + i] = d.destination(vector.elements[i], part);
    }
  }
  // A packed register may also be one of its parts: work on a copy.
  int32_t temporary = d.temporary(bytes);
  if (pack) {
    Instr& instr = d.emit(fn);
    instr.r[0] = temporary;
    for (uint32_t i = 0; i < parts; ++i) instr.r[1 + i] = slots[1 + i];
    Instr& move = d.emit(copy_of_width(d, bytes));
    move.r[0] = slots[0];
    move.r[1] = temporary;
  } else {
    Instr& move = d.emit(copy_of_width(d, bytes));
    move.r[0] = temporary;
    move.r[1] = slots[0];
    Instr& instr = d.emit(fn);
    instr.r[0] = temporary;
    for (uint32_t i = 0; i < parts; ++i) instr.r[1 + i] = slots[1 + i];
  }
}

// Vectors of bytes live in 16-bit registers: r[0] whole (count bytes), r[1..] parts.
template <class Whole, bool kPack>
bool repack_bytes(Exec& x, const Instr& in) {
  Whole* w = x.reg<Whole>(in.r[0]);
  x.each([&](uint32_t l) {
    Whole value = 0;
    for (uint32_t part = 0; part < sizeof(Whole); ++part) {
      if (in.r[1 + part] < 0) continue;
      uint16_t* p = x.reg<uint16_t>(in.r[1 + part]);
      if constexpr (kPack) {
        value |= static_cast<Whole>(static_cast<Whole>(p[l] & 0xff) << (8 * part));
      } else {
        p[l] = static_cast<uint8_t>(w[l] >> (8 * part));
      }
    }
    if constexpr (kPack) w[l] = value;
  });
  return true;
}

void decode_byte_pack(Decoder& d, bool pack) {
  const ptx::Operand& vector = d.operand(pack ? 1 : 0);
  const ptx::Operand& whole = d.operand(pack ? 0 : 1);
  size_t parts = vector.elements.size();
  if (parts != 2 && parts != 4) d.fail("a vector of bytes has 2 or 4 elements");
  Type type = parts == 2 ? Type::kB16 : Type::kB32;
  int32_t slots[5] = {-1, -1, -1, -1, -1};
  slots[0] = pack ? d.destination(whole, type) : d.source(whole, type);
  for (size_t i = 0; i < parts; ++i) {
    if (pack) {
      slots[1 + i] = d.source(vector.elements[i], Type::kB8);
    } else if (vector.elements[i].kind != ptx::Operand::Kind::kSink) {
      slots[1 + i] = d.destination(vector.elements[i], Type::kB8);
    }
  }
  Handler fn = parts == 2 ? (pack ? repack_bytes<uint16_t, true> : repack_bytes<uint16_t, false>)
                          : (pack ? repack_bytes<uint32_t, true> : repack_bytes<uint32_t, false>);
  Instr& instr = d.emit(fn);
  for (size_t i = 0; i < 5; ++i) instr.r[i] = slots[i];
}

void decode_mov(Decoder& d) {
  d.want_operands(2, 2);
  Type type = d.take_type();
  using Kind = ptx::Operand::Kind;
  if (type == Type::kPred) {
    int32_t from = d.predicate(d.operand(1));
    int32_t to = d.predicate_destination(d.operand(0));
    Instr& instr = d.emit(copy_predicate);
    instr.r[0] = to;
    instr.r[1] = from;
    return;
  }
  if (d.operand(1).kind == Kind::kVector) return decode_repack(d, type, true);
  if (d.operand(0).kind == Kind::kVector) return decode_repack(d, type, false);
  if (d.operand(1).kind == Kind::kName) {
    std::optional<SpecialRegister> special = special_register(d.operand(1).name);
    if (special && special->width == size_of(type)) {
      int32_t to = d.destination(0, type);
      Instr& instr = d.emit(special->fn);
      instr.r[0] = to;
      instr.imm = special->argument;
      return;
    }
  }
  int32_t from = d.source(1, type);
  int32_t to = d.destination(0, type);
  Instr& instr = d.emit(copy_of_width(d, std::max(2u, size_of(type))));
  instr.r[0] = to;
  instr.r[1] = from;
}

// ---- address spaces
// ------------------------------------------------------------------------------

// The windows of shared and local memory are host addresses, so generic is window plus offset.
template <class T, Space kSpace, bool kToSpace>
bool convert_address(Exec& x, const Instr& in) {
  T* d = x.reg<T>(in.r[0]);
  const T* a = x.reg<T>(in.r[1]);
  uint64_t base = reinterpret_cast<uintptr_t>(kSpace == Space::kShared ? x.shared : x.local);
  uint64_t stride = kSpace == Space::kLocal ? x.local_stride : 0;
  x.each([=](uint32_t l) {
    uint64_t shift = base + stride * l;
    d[l] = static_cast<T>(kToSpace ? a[l] - shift : a[l] + shift);
  });
  return true;
}

Space take_space(Decoder& d) {
  std::string_view name = d.take_one_of({"global", "shared", "shared::cta", "local", "const",
                                         "param", "param::entry", "shared::cluster"});
  if (name == "global") return Space::kGlobal;
  if (name == "local") return Space::kLocal;
  if (name == "const") return Space::kConst;
  if (name == "param" || name == "param::entry") return Space::kParam;
  if (name.empty()) d.fail("a state space is missing");
  return Space::kShared;
}

void decode_cvta(Decoder& d) {
  bool to = d.take("to");
  Space space = take_space(d);
  Type type = d.take_type();
  if (size_of(type) != 8) d.unsupported("32-bit generic addresses");
  if (space == Space::kParam && !d.function().entry) space = Space::kLocal;
  // cvta accepts a variable or parameter by name, even with an offset.
  int32_t from = d.source(1, type);
  int32_t dest = d.destination(0, type);
  Handler fn = copy<uint64_t>;
  if (space == Space::kShared) {
    fn = to ? convert_address<uint64_t, Space::kShared, true>
            : convert_address<uint64_t, Space::kShared, false>;
  } else if (space == Space::kLocal) {
    fn = to ? convert_address<uint64_t, Space::kLocal, true>
            : convert_address<uint64_t, Space::kLocal, false>;
  }
  Instr& instr = d.emit(fn);
  instr.r[0] = dest;
  instr.r[1] = from;
}

bool is_space(Exec& x, const Instr& in) {
  const uint64_t* a = x.reg<uint64_t>(in.r[1]);
  uint32_t result = 0;
  auto within = [](uint64_t address, const void* base, uint64_t size) {
    uint64_t start = reinterpret_cast<uintptr_t>(base);
    return base && address >= start && address - start < size;
  };
  x.each([&](uint32_t l) {
    const uint8_t* local = x.local ? x.local + static_cast<size_t>(x.local_stride) * l : nullptr;
    bool shared = within(a[l], x.shared, x.shared_size);
    bool is_local = within(a[l], local, x.local_stride);
    bool param = within(a[l], x.params, x.params_size);
    bool yes = false;
    switch (in.space) {
      case Space::kShared:
        yes = shared;
        break;
      case Space::kLocal:
        yes = is_local;
        break;
      case Space::kParam:
        yes = param;
        break;
      case Space::kGlobal:
        yes = !shared && !is_local && !param;
        break;
      default:
        break;  // constants are held in global memory: never told apart
    }
    result |= static_cast<uint32_t>(yes) << l;
  });
  write_predicate(x, in.r[0], result);
  return true;
}

void decode_isspacep(Decoder& d) {
  Space space = take_space(d);
  d.want_operands(2, 2);
  int32_t from = d.source(1, Type::kB64);
  int32_t dest = d.predicate_destination(d.operand(0));
  Instr& instr = d.emit(is_space);
  instr.r[0] = dest;
  instr.r[1] = from;
  instr.space = space;
}

// Hints: caches are the host's own.
void decode_hint(Decoder& d) {
  while (d.has_modifiers()) d.take_any();
}

}  // namespace

void add_moves(OpcodeTable& table) {
  table["mov"] = decode_mov;
  table["cvta"] = decode_cvta;
  table["isspacep"] = decode_isspacep;
  for (std::string_view hint :
       {"prefetch", "prefetchu", "applypriority", "discard", "setmaxnreg", "griddepcontrol"}) {
    table[hint] = decode_hint;
  }
}

}  // namespace sluice::softgpu
