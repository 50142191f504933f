// SPDX-License-Identifier: Apache-2.0
// A module in the form that the interpreter executes: functions as arrays of pre-decoded
// instructions whose operands are byte offsets into a warp's register frame.
// Made by program/decoder from a ptx::Module when a module is loaded, immutable afterwards, owned
// by the loaded module and read by every thread that runs one of its kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "softgpu/ptx/types.h"

namespace sluice::softgpu {

struct Exec;
struct Instr;
struct Function;

constexpr uint32_t kWarpSize = 32;

// Executes one instruction for the lanes of exec.mask. False: exec.fault says why.
using Handler = bool (*)(Exec& exec, const Instr& instr);

// What the warp scheduler has to do around an instruction; kPlain needs nothing but the handler.
enum class Control : uint8_t {
  kPlain,
  kBranch,
  kBranchIndexed,
  kCall,
  kCallIndirect,
  kReturn,
  kExit,
  kBarrierSync,
  kBarrierArrive,
  kBarrierReduce,
  kWarpBarrier,   // bar.warp.sync: lanes may meet at different places
  kWarpExchange,  // *.sync with a member mask: lanes must meet at this place
  kYield,         // nanosleep: a good moment to run another warp
};

struct Instr {
  Handler fn = nullptr;
  int32_t guard = -1;                               // slot of the guarding predicate, -1 for none
  uint32_t line = 0;                                // of the PTX text
  int32_t r[8] = {-1, -1, -1, -1, -1, -1, -1, -1};  // operand slots; meaning is the handler's
  uint64_t imm = 0;
  uint32_t target = 0;  // branch: instruction index; call and table branch: side table index
  Control control = Control::kPlain;
  bool guard_negated = false;
  Space space = Space::kGeneric;
  uint8_t size = 0;   // bytes of one memory element
  uint8_t count = 1;  // elements of a vector access
  uint8_t flags[3] = {0, 0, 0};
};

struct Parameter {
  uint32_t offset = 0;  // in the kernel's parameter block, or in the callee's local frame
  uint32_t size = 0;
};

// A call: where arguments lie in the caller's local frame, in the order of the callee's formals.
struct CallSite {
  const Function* callee = nullptr;  // null for an indirect call
  int32_t target_slot = -1;          // 64-bit slot with the function's address, if indirect
  std::vector<Parameter> results;
  std::vector<Parameter> arguments;
};

enum class Builtin : uint8_t { kNone, kPrintf, kAssertFail, kMalloc, kFree, kSetCondition };

struct Constant {
  int32_t slot;
  uint32_t width;  // bytes per lane; 0 for a predicate
  uint64_t bits;
};

struct Function {
  std::string name;
  bool entry = false;
  Builtin builtin = Builtin::kNone;
  std::vector<Instr> code;
  std::vector<Constant> constants;
  std::vector<CallSite> calls;
  std::vector<std::vector<uint32_t>> branch_tables;
  std::vector<Parameter> parameters;
  std::vector<Parameter> results;
  uint32_t parameter_bytes = 0;  // of an entry's parameter block
  uint32_t frame_bytes = 0;      // register frame of one warp
  uint32_t local_bytes = 0;      // local memory of one lane, without callees
  uint32_t static_shared = 0;
  uint32_t const_bytes = 0;                  // bytes of .const variables the module holds
  uint32_t max_threads[3] = {0, 0, 0};       // .maxntid, 0 where absent
  uint32_t required_threads[3] = {0, 0, 0};  // .reqntid, 0 where absent
  uint32_t register_words = 0;               // 32-bit registers that the PTX declares and uses
  bool has_calls = false;
};

// A .global or .const variable: where it lies on the device.
struct GlobalVariable {
  std::string name;
  uint64_t address = 0;
  uint64_t size = 0;
  bool constant = false;
  bool managed = false;
};

struct Program {
  std::vector<std::unique_ptr<Function>> functions;
  std::vector<GlobalVariable> variables;
  uint32_t ptx_version = 0;  // 10 * major + minor, as cuFuncGetAttribute tells it
  uint32_t target = 0;

  const Function* entry(const std::string& name) const;
  const GlobalVariable* variable(const std::string& name) const;
};

}  // namespace sluice::softgpu
