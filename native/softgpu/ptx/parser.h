// SPDX-License-Identifier: Apache-2.0
// Parses PTX text into a ptx::Module. Called when a module or library is loaded.
// The text must outlive the result. Anything that is not PTX, or is PTX that this parser does not
// know, raises PtxError; no input may crash it or make it allocate without bound.
#pragma once

#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "softgpu/ptx/ast.h"
#include "softgpu/ptx/lexer.h"

namespace sluice::softgpu::ptx {

class Parser {
 public:
  explicit Parser(std::string_view text);
  std::unique_ptr<Module> parse();

 private:
  // A name in scope inside a function body: a register, a run of registers or a variable.
  struct Entry {
    enum class Kind : uint8_t { kRegister, kRegisterRun, kVariable } kind;
    uint32_t index;
    uint32_t count;
  };
  using Scope = std::unordered_map<std::string_view, Entry>;

  // parser.cc: tokens and module-level directives.
  void advance();
  Token take();
  bool accept(char punct);
  bool accept_word(std::string_view word);
  void expect(char punct);
  std::string_view expect_word();
  uint64_t expect_integer();
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void unsupported(const std::string& what) const;
  bool is_punct(char punct) const;
  void parse_version();
  void parse_target();
  void parse_module_directive();
  void parse_function(bool external, bool weak, bool entry);
  void parse_function_attributes(Function& function);
  void parse_formals(std::vector<Variable>& into, char close);
  void skip_debug_directive(std::string_view directive);
  void skip_braces();

  // declarations.cc: variables and initialisers.
  std::vector<Variable> parse_variables(Space space, bool external, bool weak);
  Variable parse_variable_tail(Space space, Type type, uint32_t align, uint32_t vector);
  // `managed`: whether it may be, and whether it is; nullptr: it may not.
  Type parse_declared_type(uint32_t& align, uint32_t& vector, bool* managed = nullptr);
  void parse_initialiser(Variable& variable);
  void parse_initialiser_list(Variable& variable, int depth);
  InitElement parse_initialiser_element(Type type);
  uint64_t parse_constant();
  uint64_t parse_constant_term(int depth);

  // body.cc: statements and operands.
  void parse_body(Function& function);
  void parse_block(int depth, uint32_t parent);
  void parse_body_directive(std::string_view directive);
  void parse_registers();
  void parse_prototype();
  void parse_branch_targets(std::string_view label);
  void parse_instruction(Statement statement);
  void parse_call(Statement& statement);
  Operand parse_operand(int depth);
  Operand parse_address();
  Operand resolve(std::string_view name);
  bool find_register(std::string_view name, uint32_t& index) const;
  uint32_t register_operand();

  Lexer lexer_;
  Token token_;
  Module* module_ = nullptr;
  Function* function_ = nullptr;
  std::vector<Scope> scopes_;
  std::unordered_map<std::string, uint32_t> variable_index_;
  uint32_t block_ = 0;
  size_t statements_ = 0;
};

// The text as a module.
std::unique_ptr<Module> parse(std::string_view text);

}  // namespace sluice::softgpu::ptx
