// SPDX-License-Identifier: Apache-2.0
// Branches, calls, exits and barriers. The warp scheduler executes these; here they are decoded.
#include <time.h>

#include <algorithm>

#include "softgpu/ops/lanes.h"
#include "softgpu/ops/tables.h"

namespace sluice::softgpu {
namespace {

void decode_bra(Decoder& d) {
  d.take("uni");
  d.want_operands(1, 1);
  if (d.operand(0).kind != ptx::Operand::Kind::kName) d.fail("a label is expected");
  d.emit(nullptr, Control::kBranch);
  d.branch_to(d.operand(0).name);
}

void decode_brx(Decoder& d) {
  if (!d.take("idx")) d.unsupported("only brx.idx is supported");
  d.take("uni");
  d.want_operands(2, 2);
  int32_t index = d.source(0, Type::kB32);
  auto list = d.function().branch_targets.find(d.operand(1).name);
  if (list == d.function().branch_targets.end()) d.fail("unknown .branchtargets label");
  Instr& instr = d.emit(nullptr, Control::kBranchIndexed);
  instr.r[0] = index;
  instr.target = d.branch_table(list->second);
}

void decode_call(Decoder& d) {
  d.take("uni");
  d.want_operands(3, 3);
  CallSite site;
  auto place = [&](const ptx::Operand& operand) {
    using Kind = ptx::Operand::Kind;
    if (operand.kind == Kind::kVariable && operand.local &&
        d.function().locals[operand.index].space == Space::kParam &&
        !d.is_kernel_parameter(operand.index)) {
      return Parameter{d.variable_offset(operand.index),
                       static_cast<uint32_t>(d.function().locals[operand.index].size)};
    }
    d.unsupported("call arguments and results must be .param variables");
  };
  for (const ptx::Operand& operand : d.operand(0).elements) site.results.push_back(place(operand));
  for (const ptx::Operand& operand : d.operand(2).elements) {
    site.arguments.push_back(place(operand));
  }
  const ptx::Operand& target = d.operand(1);
  Control control = Control::kCall;
  if (target.kind == ptx::Operand::Kind::kRegister) {
    control = Control::kCallIndirect;
    site.target_slot = d.source(target, Type::kB64);
  } else {
    auto found = d.scope().functions.find(target.name);
    if (found == d.scope().functions.end()) {
      throw PtxError(PtxError::Kind::kUnresolved, d.line(),
                     "unresolved function " + std::string(target.name));
    }
    Function* callee = found->second;
    site.callee = callee;
    if (callee->entry) d.unsupported("calls of kernels (dynamic parallelism)");
    size_t results = d.callee(target.name).results.size();
    size_t parameters = d.callee(target.name).parameters.size();
    if (callee->builtin == Builtin::kNone &&
        (site.arguments.size() != parameters || site.results.size() > results)) {
      d.fail("wrong number of arguments for " + std::string(target.name));
    }
    if (site.results.size() < results) site.results.clear();
  }
  d.output().has_calls = true;
  d.output().calls.push_back(std::move(site));
  Instr& instr = d.emit(nullptr, control);
  instr.target = static_cast<uint32_t>(d.output().calls.size() - 1);
}

void decode_ret(Decoder& d) {
  d.take("uni");
  d.emit(nullptr, Control::kReturn);
}

void decode_exit(Decoder& d) { d.emit(nullptr, Control::kExit); }

bool trap(Exec& x, const Instr&) { return x.fail(Fault::kTrap, "trap"); }
void decode_trap(Decoder& d) { d.emit(trap); }

// A breakpoint without a debugger ends the kernel, as on a device.
void decode_brkpt(Decoder& d) { d.emit(trap); }

// A warp that sleeps lets others go first; its thread of the host sleeps when none has anything to
// do (run_blocks).
bool sleep(Exec& x, const Instr& in) {
  const auto* wanted = x.reg<uint32_t>(in.r[0]);
  uint32_t longest = 0;
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1)
    longest = std::max(longest, wanted[__builtin_ctz(rest)]);
  x.rest_ns = std::min(x.rest_ns, longest);
  return true;
}

void decode_nanosleep(Decoder& d) {
  d.take_type();
  const int32_t nanoseconds = d.source(0, Type::kU32);
  d.emit(sleep, Control::kYield).r[0] = nanoseconds;
}

// bar{.cta}.sync/arrive/red, barrier{.cta}...; r[2]: number, r[3]: thread count, r[0]/r[1]: red.
void decode_barrier(Decoder& d) {
  bool cta = d.take("cta");
  (void)cta;
  d.take("aligned");
  if (d.take("warp")) {
    if (!d.take("sync")) d.fail(".sync is missing");
    int32_t members = d.source(0, Type::kB32);
    d.emit(nullptr, Control::kWarpBarrier).r[7] = members;
    return;
  }
  if (d.take("cluster")) {
    // Clusters hold one block here, so the cluster's barrier is the block's own.
    bool arrive = d.take("arrive");
    if (!arrive && !d.take("wait")) d.fail("needs .arrive or .wait");
    while (d.take_one_of({"release", "acquire", "relaxed"}) != "") {
    }
    if (arrive) return;
    int32_t zero = d.constant(Type::kB32, 0);
    d.emit(nullptr, Control::kBarrierSync).r[2] = zero;
    return;
  }
  if (d.take("red")) {
    std::string_view op = d.take_one_of({"popc", "and", "or"});
    if (op.empty()) d.fail("needs .popc, .and or .or");
    d.take_type();
    d.want_operands(3, 4);
    int32_t number = d.source(1, Type::kB32);
    int32_t count = d.operands() == 4 ? d.source(2, Type::kB32) : -1;
    int32_t predicate = d.predicate(d.operand(d.operands() - 1));
    int32_t result =
        op == "popc" ? d.destination(0, Type::kB32) : d.predicate_destination(d.operand(0));
    Instr& instr = d.emit(nullptr, Control::kBarrierReduce);
    instr.r[0] = result;
    instr.r[1] = predicate;
    instr.r[2] = number;
    instr.r[3] = count;
    instr.flags[0] = op == "popc" ? 0 : op == "and" ? 1 : 2;
    return;
  }
  bool arrive = d.take("arrive");
  if (!arrive && !d.take("sync")) d.fail("needs .sync, .arrive or .red");
  d.want_operands(arrive ? 2 : 1, 2);
  int32_t number = d.source(0, Type::kB32);
  int32_t count = d.operands() == 2 ? d.source(1, Type::kB32) : -1;
  Instr& instr = d.emit(nullptr, arrive ? Control::kBarrierArrive : Control::kBarrierSync);
  instr.r[2] = number;
  instr.r[3] = count;
}

}  // namespace

void add_control(OpcodeTable& table) {
  table["bra"] = decode_bra;
  table["brx"] = decode_brx;
  table["call"] = decode_call;
  table["ret"] = decode_ret;
  table["exit"] = decode_exit;
  table["trap"] = decode_trap;
  table["brkpt"] = decode_brkpt;
  table["nanosleep"] = decode_nanosleep;
  table["bar"] = decode_barrier;
  table["barrier"] = decode_barrier;
}

}  // namespace sluice::softgpu
