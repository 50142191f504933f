// SPDX-License-Identifier: Apache-2.0
// How lanes of a warp, and warps of a block, wait for one another: instructions with a member mask,
// warp barriers and block barriers.
#include "softgpu/interp/block.h"
#include "softgpu/interp/launch_state.h"
#include "softgpu/interp/warp.h"

namespace sluice::softgpu {
namespace {

uint32_t popcount(uint32_t mask) { return static_cast<uint32_t>(__builtin_popcount(mask)); }

}  // namespace

bool Warp::warp_exchange(Exec& exec, Group& group, const Instr& instr, uint32_t lanes) {
  leave_behind(group, lanes);
  group.members = exec.reg<uint32_t>(instr.r[7])[__builtin_ctz(lanes)];
  group.state = Group::State::kAtWarpSync;
  return run_exchange(exec, group);
}

// Executes the exchange that `group` waits at if every living member has come.
bool Warp::run_exchange(Exec& exec, Group& group) {
  uint32_t present = group.mask;
  uint32_t missing = group.members & live_ & ~present;
  if (missing != 0) {
    for (const Group& other : groups_) {
      if (other.state == Group::State::kAtWarpSync && other.frame == group.frame &&
          other.pc == group.pc) {
        present |= other.mask;
      }
    }
    if ((group.members & live_ & ~present) != 0) return true;
    for (Group& other : groups_) {
      if (&other != &group && other.state == Group::State::kAtWarpSync &&
          other.frame == group.frame && other.pc == group.pc) {
        other.state = Group::State::kReady;
        other.pc = group.pc + 1;
      }
    }
  }
  const Instr& instr = group.frame->function->code[group.pc];
  enter(exec, group);
  exec.mask = exec.active = present;
  group.state = Group::State::kReady;
  ++group.pc;
  return instr.fn(exec, instr);
}

void Warp::warp_barrier(Exec& exec, Group& group, const Instr& instr, uint32_t lanes) {
  leave_behind(group, lanes);
  group.members = exec.reg<uint32_t>(instr.r[7])[__builtin_ctz(lanes)];
  group.state = Group::State::kAtWarpSync;
  if ((group.members & live_ & ~group.mask) == 0) {
    group.state = Group::State::kReady;
    ++group.pc;
  }
}

// Called when no group can run: lets those go whose members have all come or exited meanwhile.
bool Warp::settle_waiting(Exec& exec) {
  bool settled = false;
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_[i];
    if (group.state != Group::State::kAtWarpSync) continue;
    const Instr& instr = group.frame->function->code[group.pc];
    if (instr.control == Control::kWarpExchange) {
      if (!run_exchange(exec, group)) return false;
      settled |= group.state == Group::State::kReady;
      continue;
    }
    uint32_t present = 0;
    auto meets = [&](const Group& other) {
      return other.state == Group::State::kAtWarpSync && other.members == group.members &&
             other.frame->function->code[other.pc].control == Control::kWarpBarrier;
    };
    for (const Group& other : groups_) {
      if (meets(other)) present |= other.mask;
    }
    if ((group.members & live_ & ~present) != 0) continue;
    uint32_t members = group.members;
    for (Group& other : groups_) {
      if (other.state == Group::State::kAtWarpSync && other.members == members &&
          other.frame->function->code[other.pc].control == Control::kWarpBarrier) {
        other.state = Group::State::kReady;
        ++other.pc;
      }
    }
    settled = true;
  }
  return settled;
}

void Warp::barrier(Exec& exec, Group& group, const Instr& instr, uint32_t lanes) {
  leave_behind(group, lanes);
  uint32_t first = static_cast<uint32_t>(__builtin_ctz(lanes));
  uint32_t number = exec.reg<uint32_t>(instr.r[2])[first];
  uint32_t expected = instr.r[3] >= 0 ? exec.reg<uint32_t>(instr.r[3])[first] : 0;
  uint32_t trues = 0;
  if (instr.control == Control::kBarrierReduce) {
    trues = popcount(exec.pred(instr.r[1]) & lanes);
  }
  exec.block->arrive(exec, number, popcount(lanes), expected, trues);
  if (instr.control == Control::kBarrierArrive) {
    ++group.pc;
    return;
  }
  group.state = Group::State::kAtBarrier;
  group.barrier = number;
}

void Warp::release(Exec& exec, uint32_t barrier, uint32_t popcount, bool all, bool any) {
  for (Group& group : groups_) {
    if (group.state != Group::State::kAtBarrier || group.barrier != barrier) continue;
    const Instr& instr = group.frame->function->code[group.pc];
    if (instr.control == Control::kBarrierReduce) {
      enter(exec, group);
      exec.mask = group.mask;
      if (instr.flags[0] == 0) {
        uint32_t* result = exec.reg<uint32_t>(instr.r[0]);
        exec.each([&](uint32_t lane) { result[lane] = popcount; });
      } else {
        uint32_t& result = exec.pred(instr.r[0]);
        bool value = instr.flags[0] == 1 ? all : any;
        result = value ? result | group.mask : result & ~group.mask;
      }
    }
    group.state = Group::State::kReady;
    ++group.pc;
  }
}

}  // namespace sluice::softgpu
