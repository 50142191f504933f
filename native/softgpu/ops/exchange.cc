// SPDX-License-Identifier: Apache-2.0
// Instructions in which the lanes of a warp look at each other: shfl, vote, match, redux, elect,
// activemask. The scheduler has brought the member lanes together before a handler runs.
#include <algorithm>

#include "softgpu/ops/lanes.h"
#include "softgpu/ops/tables.h"

namespace sluice::softgpu {
namespace {

// By convention r[7] is the member mask of a .sync form.
Instr& emit_sync(Decoder& d, Handler fn, bool sync, int32_t members) {
  Instr& instr = d.emit(fn, sync ? Control::kWarpExchange : Control::kPlain);
  instr.r[7] = members;
  return instr;
}

// ---- shfl
// ------------------------------------------------------------------------------------------

enum class Shuffle : uint8_t { kUp, kDown, kBfly, kIdx };

// r[0] result, r[1] in-range predicate or -1, r[2] value, r[3] lane operand, r[4] clamp and
// segment.
bool shuffle(Exec& x, const Instr& in) {
  uint32_t* d = x.reg<uint32_t>(in.r[0]);
  const uint32_t* a = x.reg<uint32_t>(in.r[2]);
  const uint32_t* b = x.reg<uint32_t>(in.r[3]);
  const uint32_t* c = x.reg<uint32_t>(in.r[4]);
  uint32_t result[kWarpSize];
  uint32_t in_range = 0;
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
    uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
    uint32_t shift = b[lane] & 0x1f;
    uint32_t clamp = c[lane] & 0x1f;
    uint32_t segment = c[lane] >> 8 & 0x1f;
    int32_t most = static_cast<int32_t>((lane & segment) | (clamp & ~segment));
    int32_t least = static_cast<int32_t>(lane & segment);
    int32_t from = 0;
    bool ok = false;
    switch (static_cast<Shuffle>(in.flags[0])) {
      case Shuffle::kUp:
        from = static_cast<int32_t>(lane) - static_cast<int32_t>(shift);
        ok = from >= most;
        break;
      case Shuffle::kDown:
        from = static_cast<int32_t>(lane + shift);
        ok = from <= most;
        break;
      case Shuffle::kBfly:
        from = static_cast<int32_t>(lane ^ shift);
        ok = from <= most;
        break;
      case Shuffle::kIdx:
        from = least | static_cast<int32_t>(shift & ~segment);
        ok = from <= most;
        break;
    }
    if (!ok) from = static_cast<int32_t>(lane);
    result[lane] = a[from];
    in_range |= static_cast<uint32_t>(ok) << lane;
  }
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
    uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
    d[lane] = result[lane];
  }
  if (in.r[1] >= 0) write_predicate(x, in.r[1], in_range);
  return true;
}

void decode_shfl(Decoder& d) {
  bool sync = d.take("sync");
  Shuffle mode = d.take("up")     ? Shuffle::kUp
                 : d.take("down") ? Shuffle::kDown
                 : d.take("bfly") ? Shuffle::kBfly
                                  : Shuffle::kIdx;
  if (mode == Shuffle::kIdx && !d.take("idx")) d.fail("a mode is missing");
  d.take_type();
  d.want_operands(sync ? 5 : 4, sync ? 5 : 4);
  int32_t value = d.source(1, Type::kB32);
  int32_t lane = d.source(2, Type::kB32);
  int32_t clamp = d.source(3, Type::kB32);
  int32_t members = sync ? d.source(4, Type::kB32) : -1;
  int32_t out = d.destination(0, Type::kB32);
  int32_t predicate = d.second_destination(d.operand(0));
  Instr& instr = emit_sync(d, shuffle, sync, members);
  instr.r[0] = out;
  instr.r[1] = predicate;
  instr.r[2] = value;
  instr.r[3] = lane;
  instr.r[4] = clamp;
  instr.flags[0] = static_cast<uint8_t>(mode);
}

// ---- vote, activemask, elect
// -------------------------------------------------------------------------

enum class Vote : uint8_t { kAll, kAny, kUni, kBallot };

bool vote(Exec& x, const Instr& in) {
  uint32_t held = x.pred(in.r[1]) & x.mask;
  Vote mode = static_cast<Vote>(in.flags[0]);
  if (mode == Vote::kBallot) {
    uint32_t* d = x.reg<uint32_t>(in.r[0]);
    x.each([=](uint32_t l) { d[l] = held; });
    return true;
  }
  bool all = held == x.mask;
  bool yes = mode == Vote::kAll ? all : mode == Vote::kAny ? held != 0 : all || held == 0;
  write_predicate(x, in.r[0], yes ? 0xffffffffu : 0);
  return true;
}

void decode_vote(Decoder& d) {
  bool sync = d.take("sync");
  std::string_view name = d.take_one_of({"all", "any", "uni", "ballot"});
  if (name.empty()) d.fail("a mode is missing");
  Vote mode = name == "all"   ? Vote::kAll
              : name == "any" ? Vote::kAny
              : name == "uni" ? Vote::kUni
                              : Vote::kBallot;
  d.take_type();
  d.want_operands(sync ? 3 : 2, sync ? 3 : 2);
  int32_t predicate = d.predicate(d.operand(1));
  int32_t members = sync ? d.source(2, Type::kB32) : -1;
  int32_t out =
      mode == Vote::kBallot ? d.destination(0, Type::kB32) : d.predicate_destination(d.operand(0));
  Instr& instr = emit_sync(d, vote, sync, members);
  instr.r[0] = out;
  instr.r[1] = predicate;
  instr.flags[0] = static_cast<uint8_t>(mode);
}

bool active_mask(Exec& x, const Instr& in) {
  uint32_t* d = x.reg<uint32_t>(in.r[0]);
  uint32_t mask = x.mask;
  x.each([=](uint32_t l) { d[l] = mask; });
  return true;
}

void decode_activemask(Decoder& d) {
  d.take_type();
  d.want_operands(1, 1);
  int32_t out = d.destination(0, Type::kB32);
  d.emit(active_mask).r[0] = out;
}

// The lowest member is the leader; r[0] (or a sink) its number, r[1] who it is.
bool elect(Exec& x, const Instr& in) {
  uint32_t leader = static_cast<uint32_t>(__builtin_ctz(x.mask));
  uint32_t* d = x.reg<uint32_t>(in.r[0]);
  x.each([=](uint32_t l) { d[l] = leader; });
  write_predicate(x, in.r[1], 1u << leader);
  return true;
}

void decode_elect(Decoder& d) {
  if (!d.take("sync")) d.fail("needs .sync");
  d.want_operands(2, 2);
  int32_t members = d.source(1, Type::kB32);
  int32_t out = d.destination(0, Type::kB32);
  int32_t predicate = d.second_destination(d.operand(0));
  if (predicate < 0) d.fail("needs a predicate");
  Instr& instr = emit_sync(d, elect, true, members);
  instr.r[0] = out;
  instr.r[1] = predicate;
}

// ---- match, redux
// -------------------------------------------------------------------------------------

// r[0] mask of equal lanes, r[1] predicate of .all or -1, r[2] value.
template <class T, bool kAll>
bool match(Exec& x, const Instr& in) {
  uint32_t* d = x.reg<uint32_t>(in.r[0]);
  const T* a = x.reg<T>(in.r[2]);
  uint32_t same[kWarpSize];
  bool all_same = true;
  x.each([&](uint32_t l) {
    same[l] = 0;
    for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
      uint32_t other = static_cast<uint32_t>(__builtin_ctz(rest));
      if (a[other] == a[l]) same[l] |= 1u << other;
    }
    all_same = all_same && same[l] == x.mask;
  });
  uint32_t mask = x.mask;
  x.each([&](uint32_t l) { d[l] = kAll ? (all_same ? mask : 0) : same[l]; });
  if (in.r[1] >= 0) write_predicate(x, in.r[1], all_same ? 0xffffffffu : 0);
  return true;
}

void decode_match(Decoder& d) {
  bool any = d.take("any");
  if (!any && !d.take("all")) d.fail("needs .any or .all");
  if (!d.take("sync")) d.fail("needs .sync");
  Type type = d.take_type();
  d.want_operands(3, 3);
  int32_t value = d.source(1, type);
  int32_t members = d.source(2, Type::kB32);
  int32_t out = d.destination(0, Type::kB32);
  int32_t predicate = d.second_destination(d.operand(0));
  bool wide = size_of(type) == 8;
  Handler fn = any ? (wide ? match<uint64_t, false> : match<uint32_t, false>)
                   : (wide ? match<uint64_t, true> : match<uint32_t, true>);
  Instr& instr = emit_sync(d, fn, true, members);
  instr.r[0] = out;
  instr.r[1] = predicate;
  instr.r[2] = value;
}

enum class Reduction : uint8_t { kAdd, kMin, kMax, kAnd, kOr, kXor };

template <class T>
bool reduce(Exec& x, const Instr& in) {
  T* d = x.reg<T>(in.r[0]);
  const T* a = x.reg<T>(in.r[1]);
  T total = a[__builtin_ctz(x.mask)];
  for (uint32_t rest = x.mask & (x.mask - 1); rest != 0; rest &= rest - 1) {
    T v = a[__builtin_ctz(rest)];
    switch (static_cast<Reduction>(in.flags[0])) {
      case Reduction::kAdd:
        total = static_cast<T>(static_cast<uint32_t>(total) + static_cast<uint32_t>(v));
        break;
      case Reduction::kMin:
        total = std::min(total, v);
        break;
      case Reduction::kMax:
        total = std::max(total, v);
        break;
      case Reduction::kAnd:
        total &= v;
        break;
      case Reduction::kOr:
        total |= v;
        break;
      case Reduction::kXor:
        total ^= v;
        break;
    }
  }
  x.each([=](uint32_t l) { d[l] = total; });
  return true;
}

void decode_redux(Decoder& d) {
  if (!d.take("sync")) d.fail("needs .sync");
  constexpr std::string_view kNames[] = {"add", "min", "max", "and", "or", "xor"};
  int which = -1;
  for (int i = 0; i < 6; ++i) {
    if (d.take(kNames[i])) which = i;
  }
  if (which < 0) d.fail("an operation is missing");
  Type type = d.take_type();
  if (is_float(type)) d.unsupported("floating-point redux");
  d.want_operands(3, 3);
  int32_t value = d.source(1, type);
  int32_t members = d.source(2, Type::kB32);
  int32_t out = d.destination(0, type);
  Instr& instr = emit_sync(d, is_signed(type) ? reduce<int32_t> : reduce<uint32_t>, true, members);
  instr.r[0] = out;
  instr.r[1] = value;
  instr.flags[0] = static_cast<uint8_t>(which);
}

}  // namespace

void add_warp_exchange(OpcodeTable& table) {
  table["shfl"] = decode_shfl;
  table["vote"] = decode_vote;
  table["activemask"] = decode_activemask;
  table["elect"] = decode_elect;
  table["match"] = decode_match;
  table["redux"] = decode_redux;
}

}  // namespace sluice::softgpu
