// SPDX-License-Identifier: Apache-2.0
#include "softgpu/interp/warp.h"

#include <algorithm>
#include <cstring>

#include "softgpu/interp/block.h"
#include "softgpu/interp/builtin.h"
#include "softgpu/interp/launch_state.h"

namespace sluice::softgpu {
namespace {

constexpr uint32_t kMostGroups = 2 * kWarpSize;
constexpr uint32_t kFairness = 256;    // backward branches before other groups get a turn
constexpr uint32_t kSlice = 1u << 14;  // backward branches before other warps get a turn
constexpr uint32_t kCooperativeSlice = 64;
constexpr uint32_t kDeepestCall = 4096;
constexpr uintptr_t kFrameAlign = 64;

}  // namespace

void Warp::start(const Function& kernel, uint32_t index, uint32_t lanes, const LaneIds* ids,
                 uint8_t* local) {
  index_ = index;
  live_ = lanes;
  ids_ = ids;
  local_ = local;
  backward_ = 0;
  groups_.clear();
  groups_.reserve(kMostGroups);
  while (!frames_.empty()) drop_frame(frames_.back().get());
  Frame* frame = take_frame(kernel);
  frame->lanes = lanes;
  groups_.push_back(Group{frame, 0, lanes, Group::State::kReady, 0, 0, 0});
}

Frame* Warp::take_frame(const Function& function) {
  auto found = std::find_if(spare_.begin(), spare_.end(),
                            [&](const auto& frame) { return frame->function == &function; });
  std::unique_ptr<Frame> frame;
  if (found != spare_.end()) {
    frame = std::move(*found);
    *found = std::move(spare_.back());
    spare_.pop_back();
  } else {
    frame = std::make_unique<Frame>();
    frame->function = &function;
    frame->storage.reset(new uint8_t[function.frame_bytes + kFrameAlign]());
    uintptr_t start = reinterpret_cast<uintptr_t>(frame->storage.get());
    frame->regs =
        frame->storage.get() + ((start + kFrameAlign - 1) / kFrameAlign * kFrameAlign - start);
    for (const Constant& constant : function.constants) {
      uint8_t* slot = frame->regs + constant.slot;
      if (constant.width == 0) {
        std::memcpy(slot, &constant.bits, 4);
      } else {
        for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
          std::memcpy(slot + static_cast<size_t>(lane) * constant.width, &constant.bits,
                      constant.width);
        }
      }
    }
  }
  frame->caller = nullptr;
  frame->depth = 0;
  frame->local_frame = 0;
  frames_.push_back(std::move(frame));
  return frames_.back().get();
}

void Warp::drop_frame(Frame* frame) {
  auto found = std::find_if(frames_.begin(), frames_.end(),
                            [&](const auto& held) { return held.get() == frame; });
  spare_.push_back(std::move(*found));
  frames_.erase(found);
}

// Joins groups that stand at the same place, then picks the one to run: the deepest call first,
// then the lowest instruction, among those that have not just had a long turn.
Group* Warp::choose() {
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& first = groups_[i];
    if (first.state != Group::State::kReady) continue;
    for (size_t j = i + 1; j < groups_.size();) {
      Group& other = groups_[j];
      if (other.state == Group::State::kReady && other.frame == first.frame &&
          other.pc == first.pc) {
        first.mask |= other.mask;
        first.patience = std::min(first.patience, other.patience);
        other = groups_.back();
        groups_.pop_back();
      } else {
        ++j;
      }
    }
  }
  for (int attempt = 0; attempt < 2; ++attempt) {
    Group* best = nullptr;
    bool waiting = false;
    for (Group& group : groups_) {
      if (group.state != Group::State::kReady) continue;
      if (group.patience != 0) {
        waiting = true;
        continue;
      }
      if (!best || group.frame->depth > best->frame->depth ||
          (group.frame->depth == best->frame->depth && group.pc < best->pc)) {
        best = &group;
      }
    }
    if (best || !waiting) return best;
    for (Group& group : groups_) group.patience = 0;
  }
  return nullptr;
}

void Warp::enter(Exec& exec, const Group& group) {
  exec.regs = group.frame->regs;
  exec.local_frame = group.frame->local_frame;
}

WarpOutcome Warp::run(Exec& exec) {
  exec.lanes = ids_;
  exec.warp_id = index_;
  exec.local = local_;
  uint32_t slice = exec.launch->cooperative ? kCooperativeSlice : kSlice;
  while (Group* group = choose()) {
    WarpOutcome outcome = WarpOutcome::kDone;
    enter(exec, *group);
    if (!step(exec, *group, outcome)) return outcome;
    if (backward_ >= slice) {
      backward_ = 0;
      exec.rest_ns = 0;
      return WarpOutcome::kYielded;
    }
    bool any_ready = std::any_of(groups_.begin(), groups_.end(),
                                 [](const Group& g) { return g.state == Group::State::kReady; });
    if (!any_ready && !settle_waiting(exec) && exec.fault != Fault::kNone) {
      return WarpOutcome::kFaulted;
    }
  }
  if (groups_.empty()) return WarpOutcome::kDone;
  return WarpOutcome::kBlocked;
}

// Runs `group` until it must be weighed against others again. False: leave the warp with `outcome`.
bool Warp::step(Exec& exec, Group& group, WarpOutcome& outcome) {
  const Instr* code = group.frame->function->code.data();
  uint32_t pc = group.pc;
  const uint32_t active = group.mask;
  const bool alone = groups_.size() == 1;
  uint32_t limit = UINT32_MAX;
  for (const Group& other : groups_) {
    if (&other != &group && other.frame == group.frame && other.pc > pc &&
        other.state != Group::State::kAtBarrier) {
      limit = std::min(limit, other.pc);
    }
  }
  exec.active = active;
  for (;;) {
    const Instr& instr = code[pc];
    uint32_t lanes = active;
    if (instr.guard >= 0) {
      uint32_t guard = exec.pred(instr.guard);
      lanes &= instr.guard_negated ? ~guard : guard;
    }
    if (instr.control == Control::kPlain) {
      if (lanes != 0) {
        exec.mask = lanes;
        if (!instr.fn(exec, instr)) {
          exec.fault_text +=
              " (" + group.frame->function->name + ", PTX line " + std::to_string(instr.line) + ")";
          outcome = WarpOutcome::kFaulted;
          return false;
        }
      }
      if (++pc == limit) {
        group.pc = pc;
        return true;
      }
      continue;
    }
    if (instr.control == Control::kBranch && (lanes == active || lanes == 0)) {
      if (lanes == 0) {
        if (++pc == limit) {
          group.pc = pc;
          return true;
        }
        continue;
      }
      bool back = instr.target <= pc;
      pc = instr.target;
      if (back) {
        exec.view.tick();
        if (exec.launch->stopped()) {
          exec.fail(Fault::kAborted, "stopped");
          outcome = WarpOutcome::kFaulted;
          return false;
        }
        ++backward_;
        bool pause =
            alone ? backward_ >= kSlice || exec.launch->cooperative : backward_ % kFairness == 0;
        if (pause) {
          if (!alone) group.patience = 1;
          group.pc = pc;
          return true;
        }
      }
      if (!alone) {
        group.pc = pc;
        return true;
      }
      continue;
    }
    group.pc = pc;
    bool reschedule = true;
    if (!execute(exec, group, instr, reschedule)) {
      exec.fault_text +=
          " (" + group.frame->function->name + ", PTX line " + std::to_string(instr.line) + ")";
      outcome = WarpOutcome::kFaulted;
      return false;
    }
    if (instr.control == Control::kYield) {
      outcome = WarpOutcome::kYielded;
      return false;
    }
    if (reschedule) return true;
    pc = group.pc;
  }
}

bool Warp::execute(Exec& exec, Group& group, const Instr& instr, bool& reschedule) {
  uint32_t lanes = group.mask;
  if (instr.guard >= 0) {
    uint32_t guard = exec.pred(instr.guard);
    lanes &= instr.guard_negated ? ~guard : guard;
  }
  if (lanes == 0 && instr.control != Control::kBranch) {
    ++group.pc;
    return true;
  }
  switch (instr.control) {
    case Control::kPlain:
      break;
    case Control::kBranch:
      return branch(group, lanes, instr.target);
    case Control::kBranchIndexed: {
      const auto& table = group.frame->function->branch_tables[instr.target];
      uint32_t first = static_cast<uint32_t>(__builtin_ctz(lanes));
      uint32_t index = exec.reg<uint32_t>(instr.r[0])[first];
      if (index >= table.size()) {
        return exec.fail(Fault::kIllegalInstruction, "brx.idx index is out of its table");
      }
      uint32_t same = 0;
      for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
        if (exec.reg<uint32_t>(instr.r[0])[lane] == index) same |= 1u << lane;
      }
      if (lanes != same) {  // lanes that go elsewhere come back to this instruction
        group.mask &= ~(lanes & ~same);
        groups_.push_back(
            Group{group.frame, group.pc, lanes & ~same, Group::State::kReady, 0, 0, 0});
      }
      return branch(group, same, table[index]);
    }
    case Control::kCall:
    case Control::kCallIndirect:
      return call(exec, group, instr, lanes);
    case Control::kReturn:
      return return_lanes(exec, group, lanes);
    case Control::kExit:
      exit_lanes(group, lanes);
      return true;
    case Control::kBarrierSync:
    case Control::kBarrierArrive:
    case Control::kBarrierReduce:
      if ((exec.reg<uint32_t>(instr.r[2])[__builtin_ctz(lanes)]) >= kBarriers) {
        return exec.fail(Fault::kIllegalInstruction, "barrier number is not below 16");
      }
      barrier(exec, group, instr, lanes);
      return true;
    case Control::kWarpBarrier:
      warp_barrier(exec, group, instr, lanes);
      return true;
    case Control::kWarpExchange:
      reschedule = false;
      if (groups_.size() != 1 || lanes != group.mask) reschedule = true;
      if (!warp_exchange(exec, group, instr, lanes)) return false;
      if (group.state != Group::State::kReady) reschedule = true;
      return true;
    case Control::kYield:
      ++group.pc;
      exec.mask = lanes;
      instr.fn(exec, instr);
      exec.view.tick();
      if (exec.launch->stopped()) return exec.fail(Fault::kAborted, "stopped");
      return true;
  }
  return exec.fail(Fault::kIllegalInstruction, "instruction has no control handler");
}

bool Warp::branch(Group& group, uint32_t taken, uint32_t target) {
  uint32_t staying = group.mask & ~taken;
  if (target <= group.pc) ++backward_;
  if (staying != 0 && taken != 0) {
    Group other = group;
    other.pc = group.pc + 1;
    other.mask = staying;
    group.mask = taken;
    group.pc = target;
    // Only divergence that branches backwards can starve the lanes that go on.
    if (target <= other.pc && backward_ % kFairness == 0) group.patience = 1;
    groups_.push_back(other);
  } else {
    group.pc = taken != 0 ? target : group.pc + 1;
  }
  return true;
}

void Warp::leave_behind(Group& group, uint32_t staying) {
  uint32_t going = group.mask & ~staying;
  if (going == 0) return;
  group.mask = staying;
  groups_.push_back(Group{group.frame, group.pc + 1, going, Group::State::kReady, 0, 0, 0});
}

bool Warp::call(Exec& exec, Group& group, const Instr& instr, uint32_t lanes) {
  const CallSite& site = group.frame->function->calls[instr.target];
  const Function* callee = site.callee;
  leave_behind(group, lanes);
  if (!callee) {
    const uint64_t* targets = exec.reg<uint64_t>(site.target_slot);
    uint64_t wanted = targets[__builtin_ctz(lanes)];
    uint32_t same = 0;
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
      if (targets[lane] == wanted) same |= 1u << lane;
    }
    if (same != lanes) {
      group.mask = same;
      groups_.push_back(Group{group.frame, group.pc, lanes & ~same, Group::State::kReady, 0, 0, 0});
      lanes = same;
    }
    for (const auto& function : exec.launch->program->functions) {
      if (reinterpret_cast<uintptr_t>(function.get()) == wanted && !function->entry) {
        callee = function.get();
      }
    }
    if (!callee || callee->parameters.size() != site.arguments.size() ||
        callee->results.size() != site.results.size()) {
      return exec.fail(Fault::kIllegalInstruction,
                       "indirect call to something that is not such a function");
    }
  }
  uint32_t caller_base = group.frame->local_frame;
  if (callee->builtin != Builtin::kNone) {
    exec.mask = lanes;
    if (!call_builtin(exec, *callee, site)) return false;
    ++group.pc;
    return true;
  }
  Frame* caller = group.frame;
  uint32_t base = caller_base + caller->function->local_bytes;
  if (base + callee->local_bytes > exec.local_stride || caller->depth + 1 > kDeepestCall) {
    return exec.fail(Fault::kStackOverflow,
                     "device call stack overflow; CU_LIMIT_STACK_SIZE sets its size");
  }
  Frame* frame = take_frame(*callee);
  frame->caller = caller;
  frame->return_to = group.pc + 1;
  frame->site = &site;
  frame->depth = caller->depth + 1;
  frame->lanes = lanes;
  frame->local_frame = base;
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    uint8_t* local = exec.local + static_cast<size_t>(exec.local_stride) *
                                      static_cast<uint32_t>(__builtin_ctz(rest));
    for (size_t i = 0; i < site.arguments.size(); ++i) {
      std::memcpy(local + base + callee->parameters[i].offset,
                  local + caller_base + site.arguments[i].offset,
                  std::min(site.arguments[i].size, callee->parameters[i].size));
    }
  }
  group.frame = frame;
  group.pc = 0;
  return true;
}

bool Warp::return_lanes(Exec& exec, Group& group, uint32_t lanes) {
  Frame* frame = group.frame;
  Frame* caller = frame->caller;
  if (!caller) {
    exit_lanes(group, lanes);
    return true;
  }
  leave_behind(group, lanes);
  const CallSite& site = *frame->site;
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    uint8_t* local = exec.local + static_cast<size_t>(exec.local_stride) *
                                      static_cast<uint32_t>(__builtin_ctz(rest));
    for (size_t i = 0; i < site.results.size(); ++i) {
      std::memcpy(local + caller->local_frame + site.results[i].offset,
                  local + frame->local_frame + frame->function->results[i].offset,
                  std::min(site.results[i].size, frame->function->results[i].size));
    }
  }
  group.frame = caller;
  group.pc = frame->return_to;
  frame->lanes &= ~lanes;
  if (frame->lanes == 0) drop_frame(frame);
  return true;
}

void Warp::exit_lanes(Group& group, uint32_t lanes) {
  leave_behind(group, lanes);
  live_ &= ~lanes;
  for (Frame* frame = group.frame; frame != nullptr;) {
    Frame* caller = frame->caller;
    frame->lanes &= ~lanes;
    if (frame->lanes == 0) drop_frame(frame);
    frame = caller;
  }
  size_t index = static_cast<size_t>(&group - groups_.data());
  groups_[index] = groups_.back();
  groups_.pop_back();
}

}  // namespace sluice::softgpu
