// SPDX-License-Identifier: Apache-2.0
#include "softgpu/ptx/parser.h"

#include <string>
#include <utility>

namespace sluice::softgpu::ptx {
namespace {

// The newest ISA this parser was written against, and the oldest that describes 64-bit modules.
constexpr uint32_t kNewestMajor = 9;
constexpr uint32_t kNewestMinor = 3;
constexpr uint32_t kOldestMajor = 3;

}  // namespace

std::unique_ptr<Module> parse(std::string_view text) { return Parser(text).parse(); }

Parser::Parser(std::string_view text) : lexer_(text) { advance(); }

void Parser::advance() { token_ = lexer_.next(); }

Token Parser::take() {
  Token taken = token_;
  advance();
  return taken;
}

bool Parser::is_punct(char punct) const {
  return token_.kind == TokenKind::kPunct && token_.punct == punct;
}

bool Parser::accept(char punct) {
  if (!is_punct(punct)) return false;
  advance();
  return true;
}

bool Parser::accept_word(std::string_view word) {
  if (token_.kind != TokenKind::kWord || token_.text != word) return false;
  advance();
  return true;
}

void Parser::expect(char punct) {
  if (accept(punct)) return;
  fail(std::string("expected '") + punct + "' but found '" + std::string(token_.text) + "'");
}

std::string_view Parser::expect_word() {
  if (token_.kind != TokenKind::kWord) {
    fail("expected a name but found '" + std::string(token_.text) + "'");
  }
  return take().text;
}

uint64_t Parser::expect_integer() {
  if (token_.kind != TokenKind::kInteger) {
    fail("expected an integer but found '" + std::string(token_.text) + "'");
  }
  return take().bits;
}

void Parser::fail(const std::string& what) const {
  throw PtxError(PtxError::Kind::kSyntax, token_.line, what);
}

void Parser::unsupported(const std::string& what) const {
  throw PtxError(PtxError::Kind::kUnsupported, token_.line, what);
}

std::unique_ptr<Module> Parser::parse() {
  auto module = std::make_unique<Module>();
  module_ = module.get();
  parse_version();
  parse_target();
  while (token_.kind != TokenKind::kEnd) parse_module_directive();
  return module;
}

void Parser::parse_version() {
  if (!accept_word(".version")) fail("a PTX module starts with .version");
  std::string text(token_.text);
  size_t dot = text.find('.');
  if (token_.kind != TokenKind::kFloat64 || dot == std::string::npos || dot > 3 ||
      text.size() > dot + 4 || text.find_first_not_of("0123456789.") != std::string::npos) {
    fail(".version needs a number such as 8.0");
  }
  module_->version_major = static_cast<uint32_t>(std::stoul(text.substr(0, dot)));
  module_->version_minor = static_cast<uint32_t>(std::stoul(text.substr(dot + 1)));
  bool too_new = std::pair(module_->version_major, module_->version_minor) >
                 std::pair(kNewestMajor, kNewestMinor);
  if (too_new || module_->version_major < kOldestMajor) {
    throw PtxError(PtxError::Kind::kVersion, token_.line,
                   "unsupported .version " + text + "; this device reads PTX " +
                       std::to_string(kOldestMajor) + ".0 to " + std::to_string(kNewestMajor) +
                       "." + std::to_string(kNewestMinor));
  }
  advance();
}

void Parser::parse_target() {
  if (!accept_word(".target")) fail(".target must follow .version");
  module_->target = std::string(expect_word());
  const std::string& target = module_->target;
  if (target.rfind("sm_", 0) != 0) fail("unknown .target " + target);
  for (size_t i = 3; i < target.size() && target[i] >= '0' && target[i] <= '9' && i < 7; ++i) {
    module_->target_number = module_->target_number * 10 + static_cast<uint32_t>(target[i] - '0');
  }
  while (accept(',')) expect_word();  // debug, texmode_independent, ...
  if (accept_word(".address_size") && expect_integer() != 64) {
    unsupported("only .address_size 64 is supported");
  }
}

void Parser::parse_module_directive() {
  if (accept(';')) return;
  if (token_.kind != TokenKind::kWord || token_.text[0] != '.') {
    fail("expected a directive but found '" + std::string(token_.text) + "'");
  }
  bool external = false;
  bool weak = false;
  for (;;) {
    if (accept_word(".extern")) {
      external = true;
    } else if (accept_word(".weak")) {
      weak = true;
    } else if (!accept_word(".visible") && !accept_word(".common")) {
      break;
    }
  }
  std::string_view directive = expect_word();
  if (directive == ".entry" || directive == ".func") {
    parse_function(external, weak, directive == ".entry");
  } else if (directive == ".global" || directive == ".const" || directive == ".shared") {
    Space space = directive == ".global"  ? Space::kGlobal
                  : directive == ".const" ? Space::kConst
                                          : Space::kShared;
    for (Variable& variable : parse_variables(space, external, weak)) {
      auto [known, fresh] = variable_index_.try_emplace(
          variable.name, static_cast<uint32_t>(module_->variables.size()));
      if (fresh) {
        module_->variables.push_back(std::move(variable));
      } else if (module_->variables[known->second].external) {
        module_->variables[known->second] = std::move(variable);  // declared, now defined
      } else if (!variable.external) {
        fail("variable " + variable.name + " is defined twice");
      }
    }
  } else if (directive == ".texref" || directive == ".samplerref" || directive == ".surfref") {
    unsupported("textures, samplers and surfaces are not supported");
  } else if (directive == ".alias") {
    unsupported(".alias is not supported");
  } else {
    skip_debug_directive(directive);
  }
}

// .file, .loc, .section and .pragma say nothing about what the program does.
void Parser::skip_debug_directive(std::string_view directive) {
  if (directive == ".section") {
    expect_word();
    skip_braces();
  } else if (directive == ".pragma") {
    while (token_.kind == TokenKind::kString || is_punct(',')) advance();
    expect(';');
  } else if (directive == ".file") {
    expect_integer();
    if (token_.kind != TokenKind::kString) fail(".file needs a name");
    advance();
    while (accept(',')) expect_integer();
  } else if (directive == ".loc") {
    expect_integer();
    expect_integer();
    expect_integer();
    while (accept(',')) {
      std::string_view word = expect_word();
      if (word == "function_name") {
        expect_word();
        if (accept('+')) expect_integer();
      } else if (word == "inlined_at") {
        expect_integer();
        expect_integer();
        expect_integer();
      } else {
        fail("unknown .loc attribute " + std::string(word));
      }
    }
  } else {
    unsupported("unsupported directive " + std::string(directive));
  }
}

void Parser::skip_braces() {
  expect('{');
  for (int depth = 1; depth > 0; advance()) {
    if (token_.kind == TokenKind::kEnd) fail("section is not closed");
    if (is_punct('{')) ++depth;
    if (is_punct('}')) --depth;
  }
}

void Parser::parse_function(bool external, bool weak, bool entry) {
  Function function;
  function.entry = entry;
  function.external = external;
  function.weak = weak;
  function.line = token_.line;
  if (!entry && accept_word(".attribute")) {
    unsupported("function attributes are not supported");
  }
  if (!entry && accept('(')) parse_formals(function.results, ')');
  function.name = std::string(expect_word());
  if (accept('(')) parse_formals(function.parameters, ')');
  parse_function_attributes(function);
  if (accept(';')) {
    function.external = true;
    for (const Function& known : module_->functions) {
      if (known.name == function.name) return;
    }
    module_->functions.push_back(std::move(function));
    return;
  }
  if (!is_punct('{')) fail("expected a function body");
  function.external = false;
  function.has_body = true;
  parse_body(function);
  for (Function& known : module_->functions) {
    if (known.name != function.name) continue;
    if (known.has_body) fail("function " + function.name + " is defined twice");
    known = std::move(function);
    return;
  }
  module_->functions.push_back(std::move(function));
}

void Parser::parse_formals(std::vector<Variable>& into, char close) {
  if (accept(close)) return;
  do {
    if (accept_word(".reg")) unsupported("register parameters are not supported, use .param");
    if (!accept_word(".param")) fail("expected .param");
    uint32_t align = 0;
    uint32_t vector = 1;
    Type type = parse_declared_type(align, vector);
    into.push_back(parse_variable_tail(Space::kParam, type, align, vector));
    if (into.size() > 8192) fail("too many parameters");
  } while (accept(','));
  expect(close);
}

void Parser::parse_function_attributes(Function& function) {
  while (token_.kind == TokenKind::kWord && token_.text[0] == '.') {
    std::string_view word = take().text;
    if (word == ".maxntid" || word == ".reqntid") {
      uint32_t* limit = word == ".maxntid" ? function.max_threads : function.required_threads;
      limit[1] = limit[2] = 1;
      int i = 0;
      do {
        limit[i++] = static_cast<uint32_t>(expect_integer());
      } while (i < 3 && accept(','));
    } else if (word == ".minnctapersm" || word == ".maxnctapersm" || word == ".maxnreg" ||
               word == ".maxclusterrank" || word == ".reqnctapercluster") {
      expect_integer();
      while (accept(',')) expect_integer();
    } else if (word == ".noreturn") {
      continue;
    } else if (word == ".pragma") {
      skip_debug_directive(word);
    } else {
      unsupported("unsupported function attribute " + std::string(word));
    }
  }
}

}  // namespace sluice::softgpu::ptx
