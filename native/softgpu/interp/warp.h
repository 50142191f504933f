// SPDX-License-Identifier: Apache-2.0
// A warp: 32 lanes that share a register frame per function call, executed in lockstep where they
// agree and as separate groups where they diverge.
// Scheduling: the group in the deepest call, then at the lowest instruction, runs first, and groups
// that reach the same place are joined; that reconverges structured code at its join points. A
// group that keeps branching backwards while others wait is put behind them after a while, so that
// lanes of one warp may wait for each other (locks), as on hardware since Volta.
// Owned by its block; runs on the block's thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "softgpu/interp/exec.h"
#include "softgpu/program/program.h"

namespace sluice::softgpu {

struct Frame {
  const Function* function = nullptr;
  Frame* caller = nullptr;
  uint32_t return_to = 0;  // instruction index in the caller
  const CallSite* site = nullptr;
  uint32_t depth = 0;
  uint32_t lanes = 0;        // lanes that have not returned yet
  uint32_t local_frame = 0;  // start of its locals in each lane's local memory
  std::unique_ptr<uint8_t[]> storage;
  uint8_t* regs = nullptr;  // storage, aligned for vectors
};

struct Group {
  enum class State : uint8_t { kReady, kAtBarrier, kAtWarpSync };
  Frame* frame = nullptr;
  uint32_t pc = 0;
  uint32_t mask = 0;
  State state = State::kReady;
  uint32_t barrier = 0;   // kAtBarrier
  uint32_t members = 0;   // kAtWarpSync: lanes that must come
  uint32_t patience = 0;  // kReady: rounds it lets others go first
};

// What a warp tells its block when it stops running.
enum class WarpOutcome : uint8_t { kDone, kBlocked, kYielded, kFaulted };

class Warp {
 public:
  // `lanes`: those that exist, in the low bits.
  void start(const Function& kernel, uint32_t index, uint32_t lanes, const LaneIds* ids,
             uint8_t* local);
  WarpOutcome run(Exec& exec);

  // Sets the groups that wait at `barrier` going again; `result`, if the barrier reduces, goes to
  // their destination.
  void release(Exec& exec, uint32_t barrier, uint32_t popcount, bool all, bool any);
  uint32_t live() const { return live_; }
  bool done() const { return groups_.empty(); }

 private:
  Group* choose();
  bool step(Exec& exec, Group& group, WarpOutcome& outcome);
  void enter(Exec& exec, const Group& group);
  bool execute(Exec& exec, Group& group, const Instr& instr, bool& reschedule);
  bool branch(Group& group, uint32_t taken, uint32_t target);
  bool call(Exec& exec, Group& group, const Instr& instr, uint32_t lanes);
  bool return_lanes(Exec& exec, Group& group, uint32_t lanes);
  void exit_lanes(Group& group, uint32_t lanes);
  bool warp_exchange(Exec& exec, Group& group, const Instr& instr, uint32_t lanes);
  void warp_barrier(Exec& exec, Group& group, const Instr& instr, uint32_t lanes);
  bool settle_waiting(Exec& exec);
  bool run_exchange(Exec& exec, Group& group);
  void barrier(Exec& exec, Group& group, const Instr& instr, uint32_t lanes);
  // Splits `lanes` off `group` into a group of its own that goes on after the instruction.
  void leave_behind(Group& group, uint32_t staying);
  Frame* take_frame(const Function& function);
  void drop_frame(Frame* frame);

  uint32_t index_ = 0;
  uint32_t live_ = 0;
  const LaneIds* ids_ = nullptr;
  uint8_t* local_ = nullptr;
  uint32_t backward_ = 0;  // backward branches since others last had their turn
  std::vector<Group> groups_;
  std::vector<std::unique_ptr<Frame>> frames_;
  std::vector<std::unique_ptr<Frame>> spare_;
};

}  // namespace sluice::softgpu
