// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <string>
#include <utility>

#include "softgpu/ptx/parser.h"

namespace sluice::softgpu::ptx {
namespace {

constexpr uint64_t kLargestVariable = 1ull << 40;
constexpr size_t kMostInitialisers = 1u << 26;

uint64_t float_bits(const Token& token, Type type) {
  if (type == Type::kF32 && token.kind == TokenKind::kFloat64) {
    return std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(token.bits)));
  }
  if (type == Type::kF64 && token.kind == TokenKind::kFloat32) {
    float value = std::bit_cast<float>(static_cast<uint32_t>(token.bits));
    return std::bit_cast<uint64_t>(static_cast<double>(value));
  }
  return token.bits;
}

}  // namespace

Type Parser::parse_declared_type(uint32_t& align, uint32_t& vector, bool* managed) {
  for (;;) {
    std::string_view word = expect_word();
    if (word == ".align") {
      uint64_t value = expect_integer();
      if (value == 0 || value > 4096 || !std::has_single_bit(value)) fail("bad alignment");
      align = static_cast<uint32_t>(value);
    } else if (word == ".v2" || word == ".v4") {
      vector = word == ".v2" ? 2 : 4;
    } else if (word == ".ptr") {  // describes what a pointer parameter points to: a hint
      while (token_.kind == TokenKind::kWord && token_.text[0] == '.') {
        if (take().text == ".align") expect_integer();
      }
    } else if (word == ".attribute") {
      // .attribute(.managed): memory like any other here, as the host has it by copies.
      expect('(');
      if (std::string_view name = expect_word(); name != ".managed")
        unsupported("unsupported variable attribute " + std::string(name));
      expect(')');
      if (!managed) fail("only global variables can be managed");
      *managed = true;
    } else if (word[0] == '.') {
      std::optional<Type> type = type_named(word.substr(1));
      if (!type) unsupported("unsupported type " + std::string(word));
      while (accept_word(".ptr")) {
        while (token_.kind == TokenKind::kWord && token_.text[0] == '.') {
          if (take().text == ".align") expect_integer();
        }
      }
      return *type;
    } else {
      fail("expected a type but found '" + std::string(word) + "'");
    }
  }
}

std::vector<Variable> Parser::parse_variables(Space space, bool external, bool weak) {
  uint32_t align = 0;
  uint32_t vector = 1;
  bool managed = false;
  Type type = parse_declared_type(align, vector, space == Space::kGlobal ? &managed : nullptr);
  std::vector<Variable> variables;
  do {
    Variable variable = parse_variable_tail(space, type, align, vector);
    variable.external = external;
    variable.weak = weak;
    variable.managed = managed;
    if (accept('=')) parse_initialiser(variable);
    variables.push_back(std::move(variable));
  } while (accept(','));
  expect(';');
  return variables;
}

Variable Parser::parse_variable_tail(Space space, Type type, uint32_t align, uint32_t vector) {
  Variable variable;
  variable.space = space;
  variable.type = type;
  variable.line = token_.line;
  variable.element_size = size_of(type);
  if (type == Type::kPred) fail("a predicate cannot live in memory");
  variable.align = align != 0 ? align : size_of(type) * vector;
  variable.name = std::string(expect_word());
  uint64_t size = static_cast<uint64_t>(size_of(type)) * vector;
  while (accept('[')) {
    if (accept(']')) {
      variable.unsized = true;
      continue;
    }
    uint64_t bound = parse_constant();
    expect(']');
    if (bound > kLargestVariable || (bound != 0 && size > kLargestVariable / bound)) {
      fail("variable " + variable.name + " is too large");
    }
    size *= bound;
  }
  variable.size = variable.unsized ? 0 : size;
  return variable;
}

void Parser::parse_initialiser(Variable& variable) {
  if (is_punct('{')) {
    parse_initialiser_list(variable, 0);
  } else {
    variable.init.push_back(parse_initialiser_element(variable.type));
  }
  uint64_t bytes = variable.init.size() * variable.element_size;
  if (variable.unsized) {
    variable.size = bytes;
    variable.unsized = false;
  } else if (bytes > variable.size) {
    fail("too many initialisers for " + variable.name);
  }
}

void Parser::parse_initialiser_list(Variable& variable, int depth) {
  if (depth > 16) fail("initialiser is nested too deeply");
  expect('{');
  if (accept('}')) return;
  do {
    if (is_punct('{')) {
      parse_initialiser_list(variable, depth + 1);
    } else {
      variable.init.push_back(parse_initialiser_element(variable.type));
      if (variable.init.size() > kMostInitialisers) fail("initialiser is too long");
    }
  } while (accept(','));
  expect('}');
}

InitElement Parser::parse_initialiser_element(Type type) {
  InitElement element;
  if (token_.kind == TokenKind::kWord) {
    std::string_view word = take().text;
    if (word == "generic" && accept('(')) {
      element.generic = true;
      element.symbol = expect_word();
      expect(')');
    } else {
      element.symbol = word;
    }
    if (is_punct('+') || is_punct('-')) element.bits = parse_constant();
    return element;
  }
  // 0xFF00(symbol): one byte of an address, as nvcc writes structures with pointers inside.
  bool negative = accept('-');
  if (token_.kind == TokenKind::kFloat32 || token_.kind == TokenKind::kFloat64) {
    element.bits = float_bits(take(), type);
    if (negative) element.bits ^= type == Type::kF64 ? 1ull << 63 : 1ull << 31;
    return element;
  }
  uint64_t value = negative ? -parse_constant_term(0) : parse_constant();
  if (!negative && accept('(')) {
    element.mask_shift = value == 0 ? 0 : static_cast<uint32_t>(std::countr_zero(value));
    if (accept_word("generic")) {
      element.generic = true;
      expect('(');
      element.symbol = expect_word();
      expect(')');
    } else {
      element.symbol = expect_word();
    }
    if (is_punct('+') || is_punct('-')) element.bits = parse_constant();
    expect(')');
    return element;
  }
  element.bits = value;
  return element;
}

uint64_t Parser::parse_constant() {
  uint64_t value = is_punct('+') || is_punct('-') ? 0 : parse_constant_term(0);
  for (;;) {
    if (accept('+')) {
      value += parse_constant_term(0);
    } else if (accept('-')) {
      value -= parse_constant_term(0);
    } else if (accept('*')) {
      value *= parse_constant_term(0);
    } else {
      return value;
    }
  }
}

uint64_t Parser::parse_constant_term(int depth) {
  if (depth > 16) fail("constant expression is nested too deeply");
  if (accept('-')) return -parse_constant_term(depth + 1);
  if (accept('+')) return parse_constant_term(depth + 1);
  if (accept('~')) return ~parse_constant_term(depth + 1);
  return expect_integer();
}

}  // namespace sluice::softgpu::ptx
