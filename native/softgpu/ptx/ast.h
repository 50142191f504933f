// SPDX-License-Identifier: Apache-2.0
// What the parser hands to the decoder: a PTX module as declared functions, variables and
// statements with names already resolved to registers and variables.
// Everything owns its data except the string_views, which point into the module's text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "softgpu/ptx/types.h"

namespace sluice::softgpu::ptx {

// One element of an initialiser: a value, or the address of a symbol plus an offset.
struct InitElement {
  uint64_t bits = 0;
  std::string_view symbol;   // empty for a plain value
  bool generic = false;      // generic(symbol)
  uint32_t mask_shift = 64;  // mask(0xff00...) initialisers take one byte at this shift; 64: whole
};

struct Variable {
  std::string name;
  Space space = Space::kGlobal;
  Type type = Type::kB8;
  uint32_t align = 1;
  uint64_t size = 0;  // bytes; 0 for an array without a bound
  bool external = false;
  bool unsized = false;
  bool weak = false;
  bool managed = false;
  uint32_t line = 0;
  uint32_t element_size = 1;
  std::vector<InitElement> init;
};

struct Operand {
  enum class Kind : uint8_t {
    kRegister,  // index into Function::registers
    kVariable,  // index into Function::locals (local = true) or Module::variables
    kName,      // label, function or special register, resolved by the decoder
    kInteger,
    kFloat32,
    kFloat64,
    kAddress,  // elements[0] is the base, bits the offset
    kVector,   // elements
    kSink,     // "_"
  };
  Kind kind = Kind::kSink;
  bool negated = false;  // "!%p"
  bool local = false;
  uint32_t index = 0;
  uint64_t bits = 0;
  std::string_view name;
  std::vector<Operand> elements;
  int32_t second = -1;  // the predicate register of "%r1|%p1"; -2 for "|_"
};

struct Statement {
  enum class Kind : uint8_t { kInstruction, kLabel };
  Kind kind = Kind::kInstruction;
  bool guard_negated = false;
  uint32_t line = 0;
  int32_t guard = -1;     // register index
  uint32_t block = 0;     // of Function::block_parent: labels are local to their braces
  std::string_view text;  // the opcode with its modifiers, or the label
  std::vector<Operand> operands;
};

struct Function {
  std::string name;
  bool entry = false;
  bool external = false;
  bool weak = false;
  bool has_body = false;
  uint32_t line = 0;
  std::vector<Variable> results;
  std::vector<Variable> parameters;
  std::vector<Type> registers;
  // Variables of the body; formal results and then parameters come first.
  std::vector<Variable> locals;
  std::vector<Statement> body;
  std::vector<uint32_t> block_parent;  // nesting of the braces; block 0 is the body itself
  std::unordered_map<std::string_view, std::vector<std::string_view>> branch_targets;
  uint32_t max_threads[3] = {0, 0, 0};
  uint32_t required_threads[3] = {0, 0, 0};
};

struct Module {
  uint32_t version_major = 0;
  uint32_t version_minor = 0;
  std::string target;
  uint32_t target_number = 0;
  std::vector<Variable> variables;
  std::vector<Function> functions;
};

}  // namespace sluice::softgpu::ptx
