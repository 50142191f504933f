// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "softgpu/align.h"
#include "softgpu/ops/special.h"
#include "softgpu/program/decoder.h"

namespace sluice::softgpu {
namespace {

// A frame must stay addressable by an int32_t slot; this is far above what a compiler emits.
constexpr uint64_t kLargestFrame = 1ull << 28;

}  // namespace

Decoder::Decoder(const LinkScope& scope, const ptx::Function& source, Function& target)
    : scope_(scope), source_(source), target_(target) {
  register_slot_.assign(source.registers.size(), -1);
}

void Decoder::run() {
  target_.name = source_.name;
  target_.entry = source_.entry;
  std::copy(source_.max_threads, source_.max_threads + 3, target_.max_threads);
  std::copy(source_.required_threads, source_.required_threads + 3, target_.required_threads);
  layout_locals();
  for (const ptx::Statement& statement : source_.body) {
    if (statement.kind == ptx::Statement::Kind::kLabel) {
      auto fresh =
          labels_.try_emplace({statement.block, statement.text}, target_.code.size()).second;
      if (!fresh) {
        throw PtxError(PtxError::Kind::kSyntax, statement.line,
                       "label " + std::string(statement.text) + " is defined twice");
      }
      continue;
    }
    decode(statement);
  }
  // A body may end without ret; so may a label at its very end be a branch target.
  Instr end;
  end.control = Control::kReturn;
  end.line = source_.body.empty() ? source_.line : source_.body.back().line;
  target_.code.push_back(end);
  link_branches();
}

// Formals of an entry are its parameter block; everything else in .param and .local lives in the
// lane's local memory, callers and callees exchanging it by copy.
void Decoder::layout_locals() {
  uint64_t local = 0;
  uint64_t block = 0;
  local_offset_.assign(source_.locals.size(), 0);
  size_t formals = source_.results.size() + source_.parameters.size();
  for (size_t i = 0; i < source_.locals.size(); ++i) {
    const ptx::Variable& variable = source_.locals[i];
    bool formal = i < formals;
    uint32_t align = std::max(variable.align, 1u);
    if (formal && source_.entry) {
      local_offset_[i] = static_cast<uint32_t>(align_up(block, align));
      block = local_offset_[i] + variable.size;
      target_.parameters.push_back({local_offset_[i], static_cast<uint32_t>(variable.size)});
      if (block > 32764) {
        throw PtxError(PtxError::Kind::kSyntax, variable.line, "parameters exceed 32764 bytes");
      }
    } else if (variable.space == Space::kParam || variable.space == Space::kLocal) {
      local_offset_[i] = static_cast<uint32_t>(align_up(local, align));
      local = local_offset_[i] + variable.size;
      if (local > (512u << 10)) {
        throw PtxError(PtxError::Kind::kSyntax, variable.line,
                       "local memory exceeds 512 KiB per thread");
      }
      Parameter place{local_offset_[i], static_cast<uint32_t>(variable.size)};
      if (formal && i < source_.results.size()) target_.results.push_back(place);
      if (formal && i >= source_.results.size()) target_.parameters.push_back(place);
    }
  }
  target_.local_bytes = static_cast<uint32_t>(align_up(local, 16));
  target_.parameter_bytes = static_cast<uint32_t>(block);
}

bool Decoder::is_kernel_parameter(uint32_t index) const {
  return source_.entry && index < source_.results.size() + source_.parameters.size();
}

void Decoder::decode(const ptx::Statement& statement) {
  statement_ = &statement;
  modifiers_.clear();
  std::string_view text = statement.text;
  size_t dot = text.find('.');
  root_ = text.substr(0, dot);
  while (dot != std::string_view::npos) {
    size_t next = text.find('.', dot + 1);
    modifiers_.push_back(
        text.substr(dot + 1, next == std::string_view::npos ? next : next - dot - 1));
    dot = next;
  }
  auto known = opcode_table().find(root_);
  if (known == opcode_table().end()) unsupported("unknown instruction");
  known->second(*this);
  if (!modifiers_.empty()) {
    unsupported("modifier ." + std::string(modifiers_.front()) + " is not supported here");
  }
  for (Instr& instr : pending_) {
    instr.guard = statement.guard < 0 ? -1 : slot_of(static_cast<uint32_t>(statement.guard));
    instr.guard_negated = statement.guard_negated;
    instr.line = statement.line;
    target_.code.push_back(instr);
  }
  pending_.clear();
}

void Decoder::fail(const std::string& what) const {
  throw PtxError(PtxError::Kind::kSyntax, statement_->line,
                 std::string(statement_->text) + ": " + what);
}

void Decoder::unsupported(const std::string& what) const {
  throw PtxError(PtxError::Kind::kUnsupported, statement_->line,
                 std::string(statement_->text) + ": " + what);
}

const ptx::Operand& Decoder::operand(size_t index) const {
  if (index >= statement_->operands.size()) fail("too few operands");
  return statement_->operands[index];
}

void Decoder::want_operands(size_t least, size_t most) const {
  size_t count = statement_->operands.size();
  if (count < least || count > most) fail("wrong number of operands");
}

bool Decoder::take(std::string_view modifier) {
  auto found = std::find(modifiers_.begin(), modifiers_.end(), modifier);
  if (found == modifiers_.end()) return false;
  modifiers_.erase(found);
  return true;
}

std::string_view Decoder::take_one_of(std::initializer_list<std::string_view> modifiers) {
  for (std::string_view modifier : modifiers) {
    if (take(modifier)) return modifier;
  }
  return {};
}

std::string_view Decoder::take_any() {
  if (modifiers_.empty()) fail("a modifier is missing");
  std::string_view first = modifiers_.front();
  modifiers_.erase(modifiers_.begin());
  return first;
}

Type Decoder::take_type() {
  for (auto it = modifiers_.begin(); it != modifiers_.end(); ++it) {
    if (std::optional<Type> type = type_named(*it)) {
      modifiers_.erase(it);
      last_type_ = *type;
      return *type;
    }
  }
  fail("a type is missing");
}

Type Decoder::peek_type() const {
  for (std::string_view modifier : modifiers_) {
    if (std::optional<Type> type = type_named(modifier)) return *type;
  }
  fail("a type is missing");
}

int32_t Decoder::carry_slot() {
  if (carry_slot_ < 0) carry_slot_ = temporary(0);
  return carry_slot_;
}

uint32_t Decoder::allocate(uint32_t width) {
  uint32_t bytes = std::max(64u, width * kWarpSize);
  uint32_t slot = target_.frame_bytes;
  if (static_cast<uint64_t>(slot) + bytes > kLargestFrame) fail("function uses too many registers");
  target_.frame_bytes += bytes;
  return slot;
}

int32_t Decoder::slot_of(uint32_t index) {
  int32_t& slot = register_slot_[index];
  if (slot < 0) {
    Type type = source_.registers[index];
    // 8-bit registers are kept in 16 bits, as the hardware keeps them wider too.
    uint32_t width = type == Type::kPred ? 0 : std::max(2u, size_of(type));
    slot = static_cast<int32_t>(allocate(width));
    target_.register_words += std::max(1u, width / 4);
  }
  return slot;
}

int32_t Decoder::temporary(uint32_t width) { return static_cast<int32_t>(allocate(width)); }

int32_t Decoder::constant_of_width(uint32_t width, uint64_t bits) {
  if (width < 8 && width != 0) bits &= (1ull << (8 * width)) - 1;
  auto [known, fresh] = constants_.try_emplace({width, bits}, 0);
  if (fresh) {
    known->second = static_cast<int32_t>(allocate(width));
    target_.constants.push_back({known->second, width, bits});
  }
  return known->second;
}

int32_t Decoder::constant(Type type, uint64_t bits) {
  uint32_t width = std::max(2u, size_of(type));
  if (width > 8) unsupported("128-bit immediates");
  return constant_of_width(width, bits);
}

uint32_t Decoder::register_width(const ptx::Operand& operand) const {
  if (operand.kind != ptx::Operand::Kind::kRegister) return 0;
  Type type = source_.registers[operand.index];
  return type == Type::kPred ? 0 : std::max(2u, size_of(type));
}

int32_t Decoder::source(const ptx::Operand& operand, Type type) {
  using Kind = ptx::Operand::Kind;
  if (type == Type::kPred) return predicate(operand);
  if (operand.negated) fail("only predicates can be negated");
  uint32_t width = std::max(2u, size_of(type));
  switch (operand.kind) {
    case Kind::kRegister:
      if (register_width(operand) != width) {
        fail("register " + std::string(operand.name) + " does not have the size of ." +
             type_name(type));
      }
      return slot_of(operand.index);
    case Kind::kInteger:
      // Integer literals stand for their value in floating-point instructions too.
      if (type == Type::kF32) {
        float value = static_cast<float>(static_cast<int64_t>(operand.bits));
        return constant(type, std::bit_cast<uint32_t>(value));
      }
      if (type == Type::kF64) {
        double value = static_cast<double>(static_cast<int64_t>(operand.bits));
        return constant(type, std::bit_cast<uint64_t>(value));
      }
      return constant(type, operand.bits);
    case Kind::kFloat32:
      if (type == Type::kF64) {
        double value = std::bit_cast<float>(static_cast<uint32_t>(operand.bits));
        return constant(type, std::bit_cast<uint64_t>(value));
      }
      if (width != 4) fail("a 32-bit constant does not fit ." + std::string(type_name(type)));
      return constant(type, operand.bits);
    case Kind::kFloat64:
      if (type == Type::kF32) {
        float value = static_cast<float>(std::bit_cast<double>(operand.bits));
        return constant(type, std::bit_cast<uint32_t>(value));
      }
      if (width != 8) fail("a 64-bit constant does not fit ." + std::string(type_name(type)));
      return constant(type, operand.bits);
    case Kind::kVariable:
      return address_of(operand, type);
    case Kind::kName:
      return special_source(operand.name, type);
    case Kind::kAddress:
    case Kind::kVector:
    case Kind::kSink:
      break;
  }
  fail("this kind of operand is not allowed here");
}

int32_t Decoder::special_source(std::string_view name, Type type) {
  if (name == "WARP_SZ") return constant(type, kWarpSize);
  auto function = scope_.functions.find(name);
  if (function != scope_.functions.end()) {
    if (size_of(type) != 8) fail("a function's address has 64 bits");
    return constant(type, reinterpret_cast<uintptr_t>(function->second));
  }
  std::optional<SpecialRegister> special = special_register(name);
  if (!special) fail("unknown name " + std::string(name));
  int32_t slot = temporary(special->width);
  Instr& instr = emit(special->fn);
  instr.r[0] = slot;
  instr.imm = special->argument;
  if (special->width == size_of(type)) return slot;
  if (special->width == 0) fail("special register does not fit");
  int32_t narrow = temporary(size_of(type));
  Instr& convert = emit(special_resize(special->width, size_of(type)));
  convert.r[0] = narrow;
  convert.r[1] = slot;
  return narrow;
}

// The address of a variable, in its own space's terms.
int32_t Decoder::address_of(const ptx::Operand& operand, Type type) {
  uint32_t width = size_of(type);
  if (width != 4 && width != 8) fail("an address has 32 or 64 bits");
  if (!operand.local) {
    const ptx::Variable& variable = scope_.module->variables[operand.index];
    if (variable.space != Space::kShared) {
      return constant(type, scope_.variable_address[operand.index] + operand.bits);
    }
  }
  const ptx::Variable& variable =
      operand.local ? source_.locals[operand.index] : scope_.module->variables[operand.index];
  int32_t slot = temporary(width);
  switch (variable.space) {
    case Space::kShared: {
      auto place = scope_.placed.find(&variable);
      if (place != scope_.placed.end()) {
        return constant(type, place->second + operand.bits);
      }
      Instr& instr = emit(dynamic_shared_address(width));
      instr.r[0] = slot;
      instr.imm = operand.bits;
      return slot;
    }
    case Space::kParam:
      if (is_kernel_parameter(operand.index)) {
        if (width != 8) fail("a parameter's address has 64 bits");
        Instr& instr = emit(kernel_parameter_address());
        instr.r[0] = slot;
        instr.imm = local_offset_[operand.index] + operand.bits;
        return slot;
      }
      [[fallthrough]];
    case Space::kLocal: {
      Instr& instr = emit(local_address(width));
      instr.r[0] = slot;
      instr.imm = local_offset_[operand.index] + operand.bits;
      return slot;
    }
    default: {
      // A .global or .const variable of a function's body: placed like a module's own.
      auto place = scope_.placed.find(&variable);
      if (place == scope_.placed.end()) unsupported("this variable in a function body");
      return constant(type, place->second);
    }
  }
}

int32_t Decoder::destination(const ptx::Operand& operand, Type type) {
  if (type == Type::kPred) return predicate_destination(operand);
  uint32_t width = std::max(2u, size_of(type));
  if (operand.kind == ptx::Operand::Kind::kSink) return temporary(width);
  if (operand.kind != ptx::Operand::Kind::kRegister) fail("the destination must be a register");
  if (register_width(operand) != width) {
    fail("register " + std::string(operand.name) + " does not have the size of ." +
         type_name(type));
  }
  return slot_of(operand.index);
}

int32_t Decoder::predicate(const ptx::Operand& operand) {
  if (operand.kind == ptx::Operand::Kind::kInteger) {
    bool value = (operand.bits != 0) != operand.negated;
    return constant_of_width(0, value ? 0xffffffffu : 0);
  }
  if (operand.kind != ptx::Operand::Kind::kRegister ||
      source_.registers[operand.index] != Type::kPred) {
    fail("a predicate is expected");
  }
  int32_t slot = slot_of(operand.index);
  if (!operand.negated) return slot;
  int32_t negated = temporary(0);
  Instr& instr = emit(negate_predicate());
  instr.r[0] = negated;
  instr.r[1] = slot;
  return negated;
}

int32_t Decoder::predicate_destination(const ptx::Operand& operand) {
  if (operand.kind == ptx::Operand::Kind::kSink) return temporary(0);
  if (operand.kind != ptx::Operand::Kind::kRegister || operand.negated ||
      source_.registers[operand.index] != Type::kPred) {
    fail("a predicate is expected as destination");
  }
  return slot_of(operand.index);
}

int32_t Decoder::second_destination(const ptx::Operand& operand) {
  if (operand.second < 0) return -1;
  if (source_.registers[static_cast<size_t>(operand.second)] != Type::kPred) {
    fail("a predicate is expected after |");
  }
  return slot_of(static_cast<uint32_t>(operand.second));
}

Decoder::Address Decoder::address(const ptx::Operand& operand, Space space) {
  using Kind = ptx::Operand::Kind;
  if (operand.kind != Kind::kAddress || operand.elements.empty()) fail("an address is expected");
  const ptx::Operand& base = operand.elements.front();
  Address result;
  result.space = space;
  result.offset = operand.bits;
  switch (base.kind) {
    case Kind::kRegister: {
      result.base_width = register_width(base);
      if (result.base_width != 4 && result.base_width != 8) fail("an address has 32 or 64 bits");
      result.base = slot_of(base.index);
      // A kernel parameter's address in a register is that of the parameter block.
      return result;
    }
    case Kind::kInteger:
      result.offset += base.bits;
      return result;
    case Kind::kVariable: {
      const ptx::Variable& variable =
          base.local ? source_.locals[base.index] : scope_.module->variables[base.index];
      if (base.local && (variable.space == Space::kParam || variable.space == Space::kLocal)) {
        result.offset += local_offset_[base.index];
        if (is_kernel_parameter(base.index)) {
          result.space = Space::kParam;
        } else {
          result.space = Space::kLocal;
          result.frame_relative = true;
        }
        return result;
      }
      if (variable.space == Space::kShared) result.space = Space::kShared;
      result.base = address_of(base, Type::kB64);
      return result;
    }
    case Kind::kName:
      fail("unknown name " + std::string(base.name));
    default:
      fail("this kind of address is not allowed");
  }
}

Instr& Decoder::emit(Handler fn, Control control) {
  Instr& instr = pending_.emplace_back();
  instr.fn = fn;
  instr.control = control;
  return instr;
}

void Decoder::branch_to(std::string_view label) {
  branches_.push_back({target_.code.size() + pending_.size() - 1, statement_->block, label});
}

uint32_t Decoder::branch_table(const std::vector<std::string_view>& labels) {
  tables_.push_back({statement_->block, labels});
  return static_cast<uint32_t>(tables_.size() - 1);
}

const ptx::Function& Decoder::callee(std::string_view name) const {
  for (const ptx::Function& function : scope_.module->functions) {
    if (function.name == name) return function;
  }
  fail("unknown function " + std::string(name));
}

uint32_t Decoder::label(uint32_t block, std::string_view name, uint32_t line) const {
  for (;;) {
    auto found = labels_.find({block, name});
    if (found != labels_.end()) return found->second;
    if (block == 0) break;
    block = source_.block_parent[block];
  }
  throw PtxError(PtxError::Kind::kSyntax, line, "unknown label " + std::string(name));
}

void Decoder::link_branches() {
  for (const Branch& branch : branches_) {
    Instr& instr = target_.code[branch.index];
    instr.target = label(branch.block, branch.label, instr.line);
  }
  for (const Table& table : tables_) {
    std::vector<uint32_t>& targets = target_.branch_tables.emplace_back();
    for (std::string_view name : table.labels) {
      targets.push_back(label(table.block, name, source_.line));
    }
  }
}

}  // namespace sluice::softgpu
