// SPDX-License-Identifier: Apache-2.0
#include "softgpu/program/link.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "softgpu/align.h"
#include "softgpu/interp/builtin.h"
#include "softgpu/ops/tables.h"
#include "softgpu/program/decoder.h"

namespace sluice::softgpu {
namespace {

constexpr uint64_t kMostConstant = 64u << 10;

class Linker {
 public:
  Linker(const ptx::Module& module, const PlaceVariables& place) : module_(module), place_(place) {}

  Program run() {
    program_.ptx_version = 10 * module_.version_major + module_.version_minor;
    program_.target = module_.target_number;
    scope_.module = &module_;
    declare_functions();
    place_variables();
    place_shared();
    for (size_t i = 0; i < module_.functions.size(); ++i) {
      const ptx::Function& source = module_.functions[i];
      if (!source.has_body) continue;
      Function& target = *program_.functions[i];
      place_shared_of(source, target);
      target.const_bytes = static_cast<uint32_t>(constant_bytes_);
      Decoder(scope_, source, target).run();
      if (source.entry && target.static_shared > (227u << 10)) {
        throw PtxError(PtxError::Kind::kSyntax, source.line,
                       source.name + " uses too much shared memory");
      }
    }
    return std::move(program_);
  }

 private:
  void declare_functions() {
    for (const ptx::Function& source : module_.functions) {
      auto function = std::make_unique<Function>();
      function->name = source.name;
      function->entry = source.entry;
      if (!source.has_body) function->builtin = builtin_named(source.name);
      if (source.has_body || function->builtin != Builtin::kNone) {
        scope_.functions[source.name] = function.get();
      }
      program_.functions.push_back(std::move(function));
    }
  }

  struct Placement {
    const ptx::Variable* variable;
    uint64_t offset;
  };

  void place_variable(const ptx::Variable& variable, uint64_t& bytes) {
    bytes = align_up(bytes, std::max(variable.align, 1u));
    placements_.push_back({&variable, bytes});
    bytes += std::max<uint64_t>(variable.size, 1);
    if (variable.space == Space::kConst) constant_bytes_ += variable.size;
    if (bytes > (1ull << 40)) {
      throw PtxError(PtxError::Kind::kSyntax, variable.line, "the variables are too large");
    }
  }

  void place_variables() {
    uint64_t bytes = 0;
    scope_.variable_address.assign(module_.variables.size(), 0);
    for (const ptx::Variable& variable : module_.variables) {
      if (variable.space == Space::kShared) continue;
      if (variable.external) {
        throw PtxError(PtxError::Kind::kUnresolved, variable.line,
                       "unresolved variable " + variable.name);
      }
      place_variable(variable, bytes);
    }
    for (const ptx::Function& function : module_.functions) {
      for (const ptx::Variable& variable : function.locals) {
        if (variable.space == Space::kGlobal || variable.space == Space::kConst) {
          place_variable(variable, bytes);
        }
      }
    }
    if (constant_bytes_ > kMostConstant) {
      throw PtxError(PtxError::Kind::kSyntax, 0, "constant variables exceed 64 KiB");
    }
    if (placements_.empty()) return;
    uint8_t* memory = place_(bytes);
    std::memset(memory, 0, bytes);
    for (const Placement& placement : placements_) {
      uint64_t address = reinterpret_cast<uintptr_t>(memory) + placement.offset;
      const ptx::Variable* variable = placement.variable;
      addresses_[variable->name] = address;
      if (!module_.variables.empty() && variable >= module_.variables.data() &&
          variable < module_.variables.data() + module_.variables.size()) {
        scope_.variable_address[static_cast<size_t>(variable - module_.variables.data())] = address;
        program_.variables.push_back({variable->name, address, variable->size,
                                      variable->space == Space::kConst, variable->managed});
      } else {
        body_variables_[variable] = address;
      }
    }
    for (const Placement& placement : placements_) {
      initialise(*placement.variable, memory + placement.offset);
    }
  }

  void initialise(const ptx::Variable& variable, uint8_t* memory) {
    uint32_t width = variable.element_size;
    for (size_t i = 0; i < variable.init.size(); ++i) {
      const ptx::InitElement& element = variable.init[i];
      uint64_t value = element.bits;
      if (!element.symbol.empty()) value += symbol_address(element.symbol, variable.line);
      if (element.mask_shift < 64) value = value >> element.mask_shift & 0xff;
      std::memcpy(memory + i * width, &value, std::min<size_t>(width, sizeof value));
    }
  }

  uint64_t symbol_address(std::string_view name, uint32_t line) {
    auto variable = addresses_.find(std::string(name));
    if (variable != addresses_.end()) return variable->second;
    auto function = scope_.functions.find(name);
    if (function != scope_.functions.end()) {
      return reinterpret_cast<uintptr_t>(function->second);
    }
    throw PtxError(PtxError::Kind::kUnresolved, line, "unresolved symbol " + std::string(name));
  }

  static void collect_shared(const ptx::Operand& operand, std::unordered_set<uint32_t>& used) {
    if (operand.kind == ptx::Operand::Kind::kVariable && !operand.local) {
      used.insert(operand.index);
    }
    for (const ptx::Operand& element : operand.elements) collect_shared(element, used);
  }

  // Static shared variables of the module that the function names, in the module's order.
  std::vector<const ptx::Variable*> shared_of(const ptx::Function& function) const {
    std::unordered_set<uint32_t> used;
    for (const ptx::Statement& statement : function.body) {
      for (const ptx::Operand& operand : statement.operands) collect_shared(operand, used);
    }
    std::vector<const ptx::Variable*> result;
    for (uint32_t i = 0; i < module_.variables.size(); ++i) {
      const ptx::Variable& variable = module_.variables[i];
      if (variable.space == Space::kShared && !variable.unsized && used.contains(i)) {
        result.push_back(&variable);
      }
    }
    for (const ptx::Variable& variable : function.locals) {
      if (variable.space == Space::kShared && !variable.unsized) result.push_back(&variable);
    }
    return result;
  }

  // What device functions use lies at the same offset in every kernel that can call them.
  void place_shared() {
    for (const ptx::Function& function : module_.functions) {
      if (function.entry || !function.has_body) continue;
      for (const ptx::Variable* variable : shared_of(function)) {
        if (common_.contains(variable)) continue;
        common_bytes_ = align_up(common_bytes_, std::max(variable->align, 1u));
        common_[variable] = common_bytes_;
        common_bytes_ += variable->size;
      }
    }
  }

  void place_shared_of(const ptx::Function& source, Function& target) {
    scope_.placed = body_variables_;
    scope_.placed.insert(common_.begin(), common_.end());
    if (!source.entry) return;
    std::vector<const ptx::Variable*> used = shared_of(source);
    bool calls = std::any_of(source.body.begin(), source.body.end(), [](const auto& statement) {
      return statement.text.substr(0, 4) == "call";
    });
    bool common = calls || std::any_of(used.begin(), used.end(),
                                       [&](const ptx::Variable* v) { return common_.contains(v); });
    uint64_t bytes = common ? common_bytes_ : 0;
    for (const ptx::Variable* variable : used) {
      if (common_.contains(variable)) continue;
      bytes = align_up(bytes, std::max(variable->align, 1u));
      scope_.placed[variable] = bytes;
      bytes += variable->size;
      if (bytes > (1u << 30)) {
        throw PtxError(PtxError::Kind::kSyntax, source.line,
                       source.name + " uses too much shared memory");
      }
    }
    target.static_shared = static_cast<uint32_t>(bytes);
  }

  const ptx::Module& module_;
  const PlaceVariables& place_;
  Program program_;
  LinkScope scope_;
  std::vector<Placement> placements_;
  std::unordered_map<std::string, uint64_t> addresses_;
  std::unordered_map<const ptx::Variable*, uint64_t> body_variables_;
  std::unordered_map<const ptx::Variable*, uint64_t> common_;
  uint64_t common_bytes_ = 0;
  uint64_t constant_bytes_ = 0;
};

}  // namespace

Program link_program(const ptx::Module& module, const PlaceVariables& place) {
  return Linker(module, place).run();
}

const OpcodeTable& opcode_table() {
  static const OpcodeTable* table = [] {
    auto* all = new OpcodeTable;
    add_moves(*all);
    add_integer_arithmetic(*all);
    add_float_arithmetic(*all);
    add_bits(*all);
    add_compare(*all);
    add_convert(*all);
    add_memory(*all);
    add_atomics(*all);
    add_control(*all);
    add_warp_exchange(*all);
    return all;
  }();
  return *table;
}

const Function* Program::entry(const std::string& name) const {
  for (const auto& function : functions) {
    if (function->entry && function->name == name) return function.get();
  }
  return nullptr;
}

const GlobalVariable* Program::variable(const std::string& name) const {
  for (const GlobalVariable& variable : variables) {
    if (variable.name == name) return &variable;
  }
  return nullptr;
}

}  // namespace sluice::softgpu
