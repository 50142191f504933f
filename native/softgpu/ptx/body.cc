// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "softgpu/ptx/parser.h"

namespace sluice::softgpu::ptx {
namespace {

constexpr size_t kMostRegisters = 1u << 20;
constexpr size_t kMostStatements = 1u << 24;

}  // namespace

void Parser::parse_body(Function& function) {
  function_ = &function;
  scopes_.clear();
  scopes_.emplace_back();
  for (const Variable& variable : function.results) function.locals.push_back(variable);
  for (const Variable& variable : function.parameters) function.locals.push_back(variable);
  // Views must outlive the growth of `locals`: they point at the formals, which stay put.
  uint32_t index = 0;
  for (const auto* formals : {&function.results, &function.parameters}) {
    for (const Variable& variable : *formals) {
      scopes_.back()[std::string_view(variable.name)] = Entry{Entry::Kind::kVariable, index++, 1};
    }
  }
  parse_block(0, 0);
  function_ = nullptr;
  scopes_.clear();
}

void Parser::parse_block(int depth, uint32_t parent) {
  if (depth > 64) fail("blocks are nested too deeply");
  uint32_t block = static_cast<uint32_t>(function_->block_parent.size());
  function_->block_parent.push_back(parent);
  expect('{');
  for (block_ = block; !accept('}'); block_ = block) {
    if (++statements_ > kMostStatements) fail("module is too long");
    if (accept(';')) continue;
    if (is_punct('{')) {
      scopes_.emplace_back();
      parse_block(depth + 1, block);
      scopes_.pop_back();
      continue;
    }
    Statement statement;
    statement.line = token_.line;
    statement.block = block;
    if (accept('@')) {
      statement.guard_negated = accept('!');
      statement.guard = static_cast<int32_t>(register_operand());
      statement.text = expect_word();
      parse_instruction(std::move(statement));
      continue;
    }
    std::string_view word = expect_word();
    if (word[0] == '.') {
      parse_body_directive(word);
    } else if (accept(':')) {
      if (accept_word(".callprototype")) {
        parse_prototype();
      } else if (accept_word(".branchtargets")) {
        parse_branch_targets(word);
      } else if (accept_word(".calltargets")) {
        while (!accept(';')) {
          if (token_.kind == TokenKind::kEnd) fail("unexpected end of text");
          advance();
        }
      } else {
        statement.kind = Statement::Kind::kLabel;
        statement.text = word;
        function_->body.push_back(std::move(statement));
      }
    } else {
      statement.text = word;
      parse_instruction(std::move(statement));
    }
  }
}

void Parser::parse_body_directive(std::string_view directive) {
  if (directive == ".reg") {
    parse_registers();
    return;
  }
  bool external = false;
  if (directive == ".extern") {
    external = true;
    directive = expect_word();
  }
  if (directive == ".local" || directive == ".shared" || directive == ".param" ||
      directive == ".global" || directive == ".const") {
    Space space = directive == ".local"    ? Space::kLocal
                  : directive == ".shared" ? Space::kShared
                  : directive == ".param"  ? Space::kParam
                  : directive == ".const"  ? Space::kConst
                                           : Space::kGlobal;
    for (;;) {
      // The name is looked up by a view of the text, as `locals` moves when it grows.
      uint32_t align = 0;
      uint32_t vector = 1;
      Type type = parse_declared_type(align, vector);
      do {
        std::string_view name = token_.text;
        Variable variable = parse_variable_tail(space, type, align, vector);
        variable.external = external;
        if (accept('=')) parse_initialiser(variable);
        scopes_.back()[name] =
            Entry{Entry::Kind::kVariable, static_cast<uint32_t>(function_->locals.size()), 1};
        function_->locals.push_back(std::move(variable));
      } while (accept(','));
      expect(';');
      return;
    }
  }
  skip_debug_directive(directive);
}

void Parser::parse_registers() {
  uint32_t align = 0;
  uint32_t vector = 1;
  std::string_view word = token_.text;
  Type type = parse_declared_type(align, vector);
  if (vector != 1) unsupported("vector registers are not supported: " + std::string(word));
  do {
    std::string_view name = expect_word();
    uint64_t count = 1;
    Entry::Kind kind = Entry::Kind::kRegister;
    if (accept('<')) {
      count = expect_integer();
      expect('>');
      kind = Entry::Kind::kRegisterRun;
    }
    if (count > kMostRegisters || function_->registers.size() + count > kMostRegisters) {
      fail("too many registers");
    }
    Entry entry{kind, static_cast<uint32_t>(function_->registers.size()),
                static_cast<uint32_t>(count)};
    function_->registers.resize(function_->registers.size() + count, type);
    scopes_.back()[name] = entry;
  } while (accept(','));
  expect(';');
}

// Calls through a pointer pass what the call names; the prototype adds nothing to that.
void Parser::parse_prototype() {
  while (!accept(';')) {
    if (token_.kind == TokenKind::kEnd) fail("unexpected end of text");
    advance();
  }
}

void Parser::parse_branch_targets(std::string_view label) {
  std::vector<std::string_view>& targets = function_->branch_targets[label];
  do {
    targets.push_back(expect_word());
  } while (accept(','));
  expect(';');
}

void Parser::parse_instruction(Statement statement) {
  std::string_view root = statement.text.substr(0, statement.text.find('.'));
  if (root == "call") {
    parse_call(statement);
  } else if (!is_punct(';')) {
    do {
      Operand operand = parse_operand(0);
      if (accept('|')) {
        if (accept_word("_")) {
          operand.second = -2;
        } else {
          operand.second = static_cast<int32_t>(register_operand());
        }
      }
      statement.operands.push_back(std::move(operand));
      if (statement.operands.size() > 64) fail("too many operands");
    } while (accept(','));
  }
  expect(';');
  function_->body.push_back(std::move(statement));
}

// call (results), target, (arguments), prototype;  operands: results, target, arguments.
void Parser::parse_call(Statement& statement) {
  Operand results;
  results.kind = Operand::Kind::kVector;
  Operand arguments = results;
  auto list = [&](Operand& into) {
    if (accept(')')) return;
    do {
      into.elements.push_back(parse_operand(1));
    } while (accept(','));
    expect(')');
  };
  if (accept('(')) {
    list(results);
    expect(',');
  }
  Operand target = parse_operand(0);
  if (accept(',')) {
    if (accept('(')) {
      list(arguments);
      if (accept(',')) expect_word();
    } else {
      expect_word();
    }
  }
  statement.operands.push_back(std::move(results));
  statement.operands.push_back(std::move(target));
  statement.operands.push_back(std::move(arguments));
}

Operand Parser::parse_operand(int depth) {
  if (depth > 4) fail("operand is nested too deeply");
  Operand operand;
  if (accept('!')) {
    operand = resolve(expect_word());
    operand.negated = true;
    return operand;
  }
  if (accept('[')) return parse_address();
  if (accept('{')) {
    operand.kind = Operand::Kind::kVector;
    if (accept('}')) return operand;
    do {
      operand.elements.push_back(parse_operand(depth + 1));
      if (operand.elements.size() > 64) fail("vector is too long");
    } while (accept(','));
    expect('}');
    return operand;
  }
  bool negative = accept('-');
  if (negative && token_.kind == TokenKind::kWord) fail("a register cannot be negated here");
  switch (token_.kind) {
    case TokenKind::kWord: {
      std::string_view name = take().text;
      operand = resolve(name);
      // Variables may be written with an offset outside brackets: "mov.u64 %rd1, table+16".
      if (operand.kind == Operand::Kind::kVariable || operand.kind == Operand::Kind::kName) {
        if (is_punct('+') || is_punct('-')) operand.bits = parse_constant();
      }
      return operand;
    }
    case TokenKind::kFloat32:
    case TokenKind::kFloat64: {
      Token token = take();
      bool wide = token.kind == TokenKind::kFloat64;
      operand.kind = wide ? Operand::Kind::kFloat64 : Operand::Kind::kFloat32;
      operand.bits = token.bits ^ (negative ? 1ull << (wide ? 63 : 31) : 0);
      return operand;
    }
    case TokenKind::kInteger:
      operand.kind = Operand::Kind::kInteger;
      operand.bits = negative ? -parse_constant_term(0) : parse_constant();
      return operand;
    default:
      if (is_punct('~') || is_punct('+')) {
        operand.kind = Operand::Kind::kInteger;
        operand.bits = parse_constant_term(0);
        return operand;
      }
      fail("expected an operand but found '" + std::string(token_.text) + "'");
  }
}

Operand Parser::parse_address() {
  Operand address;
  address.kind = Operand::Kind::kAddress;
  if (token_.kind == TokenKind::kWord) {
    address.elements.push_back(resolve(take().text));
    if (is_punct('+') || is_punct('-')) address.bits = parse_constant();
  } else {
    Operand base;
    base.kind = Operand::Kind::kInteger;
    base.bits = parse_constant();
    address.elements.push_back(std::move(base));
  }
  if (is_punct(',')) unsupported("texture and tensor addresses are not supported");
  expect(']');
  return address;
}

bool Parser::find_register(std::string_view name, uint32_t& index) const {
  // Runs are declared as %r<10>: the name is the prefix, the number follows it.
  size_t digits = name.size();
  while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
  uint64_t number = 0;
  bool numbered = digits < name.size() && name.size() - digits <= 9;
  for (size_t i = digits; numbered && i < name.size(); ++i) {
    number = number * 10 + static_cast<uint64_t>(name[i] - '0');
  }
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    auto exact = scope->find(name);
    if (exact != scope->end() && exact->second.kind == Entry::Kind::kRegister) {
      index = exact->second.index;
      return true;
    }
    // The prefix itself may end in digits ("%tmp1_<4>" does not, "%r1<4>" would).
    uint64_t suffix = 0;
    uint64_t scale = 1;
    for (size_t cut = name.size(); cut > digits && name.size() - cut < 9;) {
      --cut;
      suffix += static_cast<uint64_t>(name[cut] - '0') * scale;
      scale *= 10;
      auto run = scope->find(name.substr(0, cut));
      if (run != scope->end() && run->second.kind == Entry::Kind::kRegisterRun &&
          suffix < run->second.count) {
        index = run->second.index + static_cast<uint32_t>(suffix);
        return true;
      }
    }
  }
  return false;
}

Operand Parser::resolve(std::string_view name) {
  Operand operand;
  if (name == "_") return operand;
  operand.name = name;
  if (find_register(name, operand.index)) {
    operand.kind = Operand::Kind::kRegister;
    return operand;
  }
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    auto found = scope->find(name);
    if (found != scope->end() && found->second.kind == Entry::Kind::kVariable) {
      operand.kind = Operand::Kind::kVariable;
      operand.local = true;
      operand.index = found->second.index;
      return operand;
    }
  }
  auto global = variable_index_.find(std::string(name));
  if (global != variable_index_.end()) {
    operand.kind = Operand::Kind::kVariable;
    operand.index = global->second;
    return operand;
  }
  operand.kind = Operand::Kind::kName;
  return operand;
}

uint32_t Parser::register_operand() {
  std::string_view name = expect_word();
  uint32_t index = 0;
  if (!find_register(name, index)) fail("unknown register " + std::string(name));
  return index;
}

}  // namespace sluice::softgpu::ptx
