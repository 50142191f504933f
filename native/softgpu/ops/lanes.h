// SPDX-License-Identifier: Apache-2.0
// The shapes that most handlers have: one result from one, two or three sources, lane by lane.
// Used by the families in ops/. Operators are stateless function objects.
#pragma once

#include <cstdint>

#include "softgpu/interp/exec.h"
#include "softgpu/program/decoder.h"

namespace sluice::softgpu {

template <class D, class A, class Op>
bool lanes1(Exec& x, const Instr& in) {
  D* d = x.reg<D>(in.r[0]);
  const A* a = x.reg<A>(in.r[1]);
  x.each([=](uint32_t l) { d[l] = static_cast<D>(Op{}(a[l])); });
  return true;
}

template <class D, class A, class B, class Op>
bool lanes2(Exec& x, const Instr& in) {
  D* d = x.reg<D>(in.r[0]);
  const A* a = x.reg<A>(in.r[1]);
  const B* b = x.reg<B>(in.r[2]);
  x.each([=](uint32_t l) { d[l] = static_cast<D>(Op{}(a[l], b[l])); });
  return true;
}

template <class D, class A, class B, class C, class Op>
bool lanes3(Exec& x, const Instr& in) {
  D* d = x.reg<D>(in.r[0]);
  const A* a = x.reg<A>(in.r[1]);
  const B* b = x.reg<B>(in.r[2]);
  const C* c = x.reg<C>(in.r[3]);
  x.each([=](uint32_t l) { d[l] = static_cast<D>(Op{}(a[l], b[l], c[l])); });
  return true;
}

// Writes the bits of `value` that belong to executing lanes.
inline void write_predicate(Exec& x, int32_t slot, uint32_t value) {
  uint32_t& d = x.pred(slot);
  d = (d & ~x.mask) | (value & x.mask);
}

// Emits an instruction of `sources` operands of one type and a result of another.
inline Instr& emit_plain(Decoder& d, Handler fn, Type result, Type type, size_t sources) {
  d.want_operands(sources + 1, sources + 1);
  int32_t slots[4] = {-1, -1, -1, -1};
  for (size_t i = 1; i <= sources; ++i) slots[i] = d.source(i, type);
  slots[0] = d.destination(0, result);
  Instr& instr = d.emit(fn);
  for (size_t i = 0; i < 4; ++i) instr.r[i] = slots[i];
  return instr;
}

}  // namespace sluice::softgpu
