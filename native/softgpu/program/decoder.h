// SPDX-License-Identifier: Apache-2.0
// Turns a parsed function into executable instructions. program/decode.cc drives it; the files in
// ops/ each decode one family of instructions through the interface below and own its handlers.
// Raises PtxError for every opcode, modifier or operand that is not understood: an instruction is
// either executed as PTX defines it or refused at load.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "softgpu/program/program.h"
#include "softgpu/ptx/ast.h"
#include "softgpu/ptx/lexer.h"

namespace sluice::softgpu {

// What a function's code may refer to beyond itself.
struct LinkScope {
  const ptx::Module* module = nullptr;
  std::vector<uint64_t> variable_address;  // by index into module->variables, not .shared
  std::unordered_map<std::string_view, Function*> functions;
  // Static shared variables (offset in the window) and the .global and .const ones of bodies.
  std::unordered_map<const ptx::Variable*, uint64_t> placed;
};

class Decoder;
using DecodeFn = void (*)(Decoder&);

// Opcode roots ("add", "ld", ...) and what decodes them; each ops/ file adds its own.
using OpcodeTable = std::unordered_map<std::string_view, DecodeFn>;
const OpcodeTable& opcode_table();

class Decoder {
 public:
  Decoder(const LinkScope& scope, const ptx::Function& source, Function& target);
  void run();

  // The instruction being decoded.
  std::string_view root() const { return root_; }
  const ptx::Operand& operand(size_t index) const;
  size_t operands() const { return statement_->operands.size(); }
  void want_operands(size_t least, size_t most) const;

  // Modifiers are consumed by name; done() fails on what nobody asked for.
  bool take(std::string_view modifier);
  std::string_view take_one_of(std::initializer_list<std::string_view> modifiers);
  // The next modifier that is a type.
  Type take_type();
  Type peek_type() const;
  Type last_type() const { return last_type_; }
  bool has_modifiers() const { return !modifiers_.empty(); }
  std::string_view peek() const { return modifiers_.empty() ? "" : modifiers_.front(); }
  std::string_view take_any();

  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void unsupported(const std::string& what) const;

  // Operand slots. A source may be a register, a constant, a special register or an address.
  int32_t source(const ptx::Operand& operand, Type type);
  int32_t source(size_t index, Type type) { return source(operand(index), type); }
  int32_t destination(const ptx::Operand& operand, Type type);
  int32_t destination(size_t index, Type type) { return destination(operand(index), type); }
  // Predicates; a negated source gets a temporary.
  int32_t predicate(const ptx::Operand& operand);
  int32_t predicate_destination(const ptx::Operand& operand);
  // The predicate of "%r1|%p1", -1 if absent.
  int32_t second_destination(const ptx::Operand& operand);

  // Bytes of the register named by an operand; 0 if it is none.
  uint32_t register_width(const ptx::Operand& operand) const;
  int32_t constant(Type type, uint64_t bits);
  int32_t constant_of_width(uint32_t width, uint64_t bits);
  int32_t temporary(uint32_t width);
  int32_t slot_of(uint32_t register_index);
  // The condition code of add.cc and friends: a predicate of the function.
  int32_t carry_slot();

  // An address operand as base slot (-1: none), constant offset and effective space.
  struct Address {
    int32_t base = -1;
    uint32_t base_width = 8;
    uint64_t offset = 0;
    Space space = Space::kGeneric;
    bool frame_relative = false;  // offset counts from the running function's local frame
  };
  Address address(const ptx::Operand& operand, Space space);

  // Appends an instruction under the statement's guard. The reference is good until the next.
  Instr& emit(Handler fn, Control control = Control::kPlain);

  uint32_t line() const { return statement_->line; }
  // The declaration of a function that the module calls.
  const ptx::Function& callee(std::string_view name) const;

  const ptx::Function& function() const { return source_; }
  const LinkScope& scope() const { return scope_; }
  Function& output() { return target_; }
  bool is_kernel_parameter(uint32_t index) const;
  // Where a variable in .param or .local lies: in the parameter block or the local frame.
  uint32_t variable_offset(uint32_t index) const { return local_offset_[index]; }
  // Branch targets are resolved when all labels are known.
  void branch_to(std::string_view label);
  uint32_t branch_table(const std::vector<std::string_view>& labels);

 private:
  void layout_locals();
  void decode(const ptx::Statement& statement);
  int32_t special_source(std::string_view name, Type type);
  int32_t address_of(const ptx::Operand& operand, Type type);
  uint32_t allocate(uint32_t width);
  void link_branches();

  const LinkScope& scope_;
  const ptx::Function& source_;
  Function& target_;
  const ptx::Statement* statement_ = nullptr;
  std::string_view root_;
  Type last_type_ = Type::kNone;
  int32_t carry_slot_ = -1;
  std::vector<std::string_view> modifiers_;
  std::vector<int32_t> register_slot_;
  std::vector<uint32_t> local_offset_;
  std::map<std::pair<uint32_t, uint64_t>, int32_t> constants_;
  struct Branch {
    size_t index;  // of the instruction
    uint32_t block;
    std::string_view label;
  };
  struct Table {
    uint32_t block;
    std::vector<std::string_view> labels;
  };
  uint32_t label(uint32_t block, std::string_view name, uint32_t line) const;

  std::map<std::pair<uint32_t, std::string_view>, uint32_t> labels_;  // by block and name
  std::vector<Branch> branches_;
  std::vector<Table> tables_;
  std::vector<Instr> pending_;
};

}  // namespace sluice::softgpu
