// SPDX-License-Identifier: Apache-2.0
// Splits PTX text into tokens. Called by the parser only, one token ahead.
// Tokens are views into the text, which the caller keeps alive. A word that starts with a dot ends
// at the next dot (".param", ".b8"); any other word keeps its dotted tail ("ld.global.v2.f32",
// "%tid.x"). Text that cannot be a token raises PtxError with its line.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace sluice::softgpu {

// What is wrong with a PTX text, and where. Never leaves the library: module loading turns it into
// a CUresult and a line of the caller's JIT error log.
class PtxError : public std::runtime_error {
 public:
  enum class Kind { kSyntax, kUnsupported, kVersion, kTarget, kUnresolved };
  PtxError(Kind kind, uint32_t line, const std::string& what)
      : std::runtime_error(what), kind_(kind), line_(line) {}
  Kind kind() const { return kind_; }
  uint32_t line() const { return line_; }

 private:
  Kind kind_;
  uint32_t line_;
};

enum class TokenKind : uint8_t { kEnd, kWord, kInteger, kFloat32, kFloat64, kString, kPunct };

struct Token {
  TokenKind kind = TokenKind::kEnd;
  char punct = 0;         // for kPunct
  uint32_t line = 0;      // 1-based
  std::string_view text;  // the token as written; for strings without the quotes
  uint64_t bits = 0;      // value of an integer, bit pattern of a float
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}
  Token next();

 private:
  void skip_blanks();
  Token word(Token token);
  Token number(Token token);
  Token string(Token token);
  char at(size_t position) const { return position < text_.size() ? text_[position] : '\0'; }

  std::string_view text_;
  size_t position_ = 0;
  uint32_t line_ = 1;
};

}  // namespace sluice::softgpu
