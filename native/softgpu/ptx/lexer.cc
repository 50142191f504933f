// SPDX-License-Identifier: Apache-2.0
#include "softgpu/ptx/lexer.h"

#include <bit>
#include <cstdlib>
#include <string>

namespace sluice::softgpu {
namespace {

// <cctype> follows the process's locale and is undefined for negative chars; PTX is ASCII.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_word_char(char c) { return is_letter(c) || is_digit(c) || c == '_' || c == '$'; }

int digit_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

}  // namespace

void Lexer::skip_blanks() {
  while (position_ < text_.size()) {
    char c = text_[position_];
    if (c == '\n') {
      ++line_;
      ++position_;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
      ++position_;
    } else if (c == '/' && at(position_ + 1) == '/') {
      while (position_ < text_.size() && text_[position_] != '\n') ++position_;
    } else if (c == '/' && at(position_ + 1) == '*') {
      size_t end = text_.find("*/", position_ + 2);
      if (end == std::string_view::npos) {
        throw PtxError(PtxError::Kind::kSyntax, line_, "comment is not closed");
      }
      for (; position_ < end + 2; ++position_) line_ += text_[position_] == '\n';
    } else {
      return;
    }
  }
}

Token Lexer::next() {
  skip_blanks();
  Token token;
  token.line = line_;
  if (position_ >= text_.size() || text_[position_] == '\0') return token;
  char c = text_[position_];
  if (is_digit(c)) return number(token);
  if (is_letter(c) || c == '_' || c == '$' || c == '%') return word(token);
  if (c == '.' && is_word_char(at(position_ + 1))) return word(token);
  if (c == '"') return string(token);
  if (std::string_view("{}[](),;:=+-*/%<>|&!~@^?.").find(c) == std::string_view::npos) {
    std::string shown =
        c >= 0x20 && c < 0x7f ? std::string(1, c) : std::to_string(static_cast<unsigned char>(c));
    throw PtxError(PtxError::Kind::kSyntax, line_, "unexpected character '" + shown + "'");
  }
  token.kind = TokenKind::kPunct;
  token.punct = c;
  token.text = text_.substr(position_, 1);
  ++position_;
  return token;
}

Token Lexer::word(Token token) {
  size_t start = position_;
  bool directive = text_[position_] == '.';
  ++position_;
  for (;;) {
    while (is_word_char(at(position_))) ++position_;
    if (at(position_) == ':' && at(position_ + 1) == ':' && is_word_char(at(position_ + 2))) {
      position_ += 2;
      continue;
    }
    if (!directive && at(position_) == '.' && is_word_char(at(position_ + 1))) {
      ++position_;
      continue;
    }
    break;
  }
  token.kind = TokenKind::kWord;
  token.text = text_.substr(start, position_ - start);
  return token;
}

Token Lexer::number(Token token) {
  size_t start = position_;
  char second = at(position_ + 1);
  if (at(position_) == '0' && (second == 'f' || second == 'F' || second == 'd' || second == 'D')) {
    size_t digits = second == 'f' || second == 'F' ? 8 : 16;
    position_ += 2;
    for (size_t i = 0; i < digits; ++i, ++position_) {
      int value = digit_value(at(position_));
      if (value > 15) {
        throw PtxError(PtxError::Kind::kSyntax, line_, "malformed floating-point constant");
      }
      token.bits = token.bits << 4 | static_cast<uint64_t>(value);
    }
    token.kind = digits == 8 ? TokenKind::kFloat32 : TokenKind::kFloat64;
    token.text = text_.substr(start, position_ - start);
    return token;
  }
  int base = 10;
  if (at(position_) == '0') {
    if (second == 'x' || second == 'X') {
      base = 16;
      position_ += 2;
    } else if (second == 'b' || second == 'B') {
      base = 2;
      position_ += 2;
    } else if (is_digit(second)) {
      base = 8;
    }
  }
  while (digit_value(at(position_)) < base) {
    token.bits = token.bits * static_cast<uint64_t>(base) +
                 static_cast<uint64_t>(digit_value(at(position_)));
    ++position_;
  }
  token.kind = TokenKind::kInteger;
  bool fraction = base == 10 && at(position_) == '.' && is_digit(at(position_ + 1));
  bool exponent = base == 10 && (at(position_) == 'e' || at(position_) == 'E') &&
                  (is_digit(at(position_ + 1)) || at(position_ + 1) == '-');
  if (fraction || exponent) {
    ++position_;
    while (is_digit(at(position_)) || at(position_) == 'e' || at(position_) == 'E' ||
           ((at(position_) == '-' || at(position_) == '+') &&
            (at(position_ - 1) == 'e' || at(position_ - 1) == 'E'))) {
      ++position_;
    }
    std::string copy(text_.substr(start, position_ - start));
    token.bits = std::bit_cast<uint64_t>(std::strtod(copy.c_str(), nullptr));
    token.kind = TokenKind::kFloat64;
  } else if (at(position_) == 'U') {
    ++position_;
  }
  token.text = text_.substr(start, position_ - start);
  return token;
}

Token Lexer::string(Token token) {
  size_t start = ++position_;
  while (position_ < text_.size() && text_[position_] != '"' && text_[position_] != '\n') {
    position_ += text_[position_] == '\\' ? 2 : 1;
  }
  if (at(position_) != '"') {
    throw PtxError(PtxError::Kind::kSyntax, line_, "string is not closed");
  }
  token.kind = TokenKind::kString;
  token.text = text_.substr(start, position_ - start);
  ++position_;
  return token;
}

}  // namespace sluice::softgpu
