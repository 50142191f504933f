// SPDX-License-Identifier: Apache-2.0
// Variables of PTX. Not a parser: the driver's decides what is PTX. Wherever a state space is named
// as a declaration names it, what would be declared there is counted, in comments and strings too,
// so that no difference between the driver's reading and this one hides a variable. Dimensions are
// plain numbers, which ptxas 13.0 insists on; so what else stands in brackets is an instruction's
// address. An instruction names a space as a suffix (ld.global), but so may what looks like one
// (".target sm_90.global .b8 a[4];" is a declaration): there, only what has dimensions or an
// alignment counts.
#include <algorithm>
#include <cctype>
#include <cstring>
#include <string_view>

#include "worker/image/image.h"

namespace sluice::worker {

namespace {

constexpr uint64_t kEndless = ~uint64_t{0};
// Bytes that declarations may read again, which others have read: of real PTX next to none are.
constexpr uint64_t kMostAgain = 16 << 20;

uint64_t plus(uint64_t a, uint64_t b) { return a > kEndless - b ? kEndless : a + b; }
uint64_t times(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? kEndless : product;
}

bool in_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%';
}

// Elements of this type; the largest there is for types that nobody has heard of.
uint64_t element_bytes(std::string_view type) {
  if (type == ".texref" || type == ".samplerref" || type == ".surfref") return 64;
  if (type.ends_with("x2")) return 4;
  if (type.ends_with("128")) return 16;
  if (type.ends_with("64")) return 8;
  if (type.ends_with("32")) return 4;
  if (type.ends_with("16")) return 2;
  return type.ends_with("8") ? 1 : 16;
}

class Reader {
 public:
  Reader(std::string_view text, size_t at) : text_(text), at_(at) {}

  // Blanks and comments. What has a NUL inside ends there for the driver, but not for us.
  void skip() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (std::isspace(static_cast<unsigned char>(c)) || c == 0) {
        ++at_;
      } else if (text_.substr(at_, 2) == "//") {
        to_behind(text_.find('\n', at_), 1);
      } else if (text_.substr(at_, 2) == "/*") {
        to_behind(text_.find("*/", at_ + 2), 2);
      } else {
        return;
      }
    }
  }
  char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }
  // A word, or a directive with its dot.
  std::string_view word() {
    skip();
    const size_t begin = at_;
    if (at_ < text_.size() && text_[at_] == '.') ++at_;
    while (at_ < text_.size() && in_word(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  // False: something else stands there. What is too large counts as endless.
  bool number(uint64_t* value) {
    std::string_view digits = word();
    if (digits.empty() || !std::isdigit(static_cast<unsigned char>(digits[0]))) return false;
    unsigned base = 10;
    if (digits[0] == '0' && digits.size() > 1) {
      const char kind = digits[1];
      base = kind == 'x' || kind == 'X' ? 16 : kind == 'b' || kind == 'B' ? 2 : 8;
      digits.remove_prefix(base == 8 ? 1 : 2);
    }
    if (digits.ends_with('U')) digits.remove_suffix(1);
    *value = 0;
    for (char c : digits) {
      const unsigned digit = c <= '9' ? c - '0' : (std::tolower(c) - 'a' + 10);
      if (digit >= base) return false;
      *value = plus(times(*value, base), digit);
    }
    return true;
  }
  size_t at() const { return at_; }
  // To behind what closes it, however deep it nests; how many commas there were.
  uint64_t over(char open, char close) {
    uint64_t commas = 0;
    for (int depth = 0; at_ < text_.size();) {
      skip();
      const char c = at_ < text_.size() ? text_[at_] : close;
      commas += c == ',';
      depth += c == open ? 1 : c == close ? -1 : 0;
      to_behind(at_, 1);
      if (depth <= 0) break;
    }
    return commas;
  }

 private:
  // Never beyond the text's end, where what is looked for is not found.
  void to_behind(size_t found, size_t bytes) {
    at_ = found < text_.size() ? found + bytes : text_.size();
  }

  const std::string_view text_;
  size_t at_;
};

// Variables one behind the other. ptxas keeps their order or sorts them by alignment: the larger
// sum of the two.
class Layout {
 public:
  void add(uint64_t bytes, uint64_t align) {
    in_order_ = plus(up(in_order_, align), bytes);
    sorted_ = plus(sorted_, up(bytes, align));
  }
  uint64_t bytes() const { return std::max(in_order_, sorted_); }

 private:
  static uint64_t up(uint64_t n, uint64_t to) { return n % to ? plus(n, to - n % to) : n; }
  uint64_t in_order_ = 0, sorted_ = 0;
};

// One variable behind its type; false where no declarator stands.
bool declarator(Reader& r, uint64_t element, uint64_t align, bool suffix, Layout* all) {
  if (r.word().empty()) return false;
  uint64_t elements = 1;
  suffix = suffix && align == 0 && r.peek() != '[' && r.peek() != '<';
  bool open = false;  // as many as the initialiser has
  if (r.take('<')) {
    uint64_t n;
    if (r.number(&n)) elements = times(elements, n);
    if (!r.take('>')) return false;
  }
  while (r.take('[')) {
    uint64_t n;
    if (r.peek() == ']') {
      open = true;
    } else if (r.number(&n)) {
      elements = times(elements, n);
    } else {
      return false;  // an address
    }
    if (!r.take(']')) return false;
  }
  if (r.take('=') && r.peek() == '{') {
    const uint64_t values = plus(r.over('{', '}'), 1);
    if (open) elements = times(elements, values);
  }
  if (!suffix) all->add(times(elements, element), std::max({align, element, uint64_t{1}}));
  return true;
}

// What stands behind the name of a state space.
void declaration(Reader& r, bool suffix, Layout* all) {
  uint64_t element = 16, vector = 1, align = 0;
  if (r.peek() == '[') r.over('[', ']');  // a bank of constants, as old PTX has them
  while (r.peek() == '.') {
    const std::string_view word = r.word();
    if (word == ".align") {
      uint64_t n;
      if (r.number(&n)) align = std::max(align, n);
    } else if (word == ".attribute") {
      if (r.peek() == '(') r.over('(', ')');
    } else if (word == ".v2" || word == ".v4" || word == ".v8") {
      vector = static_cast<uint64_t>(word[2] - '0');
    } else if (word.size() < 2) {
      return;
    } else if (word != ".visible" && word != ".extern" && word != ".weak" && word != ".common") {
      element = element_bytes(word);
    }
  }
  element = times(element, vector);
  while (declarator(r, element, align, suffix, all) && r.take(',')) {
  }
}

// Where the word begins that a name of a space is glued to; asked from the text's start to its end.
class WordBegins {
 public:
  explicit WordBegins(std::string_view text) : text_(text) {}
  size_t of(size_t at) {
    size_t begin = at;
    while (begin > 0 && begin != last_at_ &&
           (in_word(text_[begin - 1]) || text_[begin - 1] == '.' ||
            (text_[begin - 1] == ':' && begin > 1 && text_[begin - 2] == ':')))
      --begin;
    steps_ += at - begin;
    // What is glued to the name before has been looked at.
    last_begin_ = begin == last_at_ ? last_begin_ : begin;
    last_at_ = at;
    return last_begin_;
  }
  uint64_t steps() const { return steps_; }

 private:
  const std::string_view text_;
  size_t last_at_ = std::string_view::npos, last_begin_ = 0;
  uint64_t steps_ = 0;
};

}  // namespace

uint64_t ptx_needs(std::span<const std::byte> image, uint64_t* steps) {
  const std::string_view text(reinterpret_cast<const char*>(image.data()), image.size());
  Layout all;
  uint64_t looked = 0, again = 0;
  for (const std::string_view space : {".global", ".const"}) {
    WordBegins begins(text);
    size_t read = 0;  // as far as a declaration of this space has
    looked += text.size();
    for (size_t at = text.find(space); at != std::string_view::npos && again <= kMostAgain;
         at = text.find(space, at)) {
      // An instruction's name stands before where it is glued to a word that begins with a letter.
      const size_t begin = begins.of(at);
      const bool suffix = begin < at && std::isalpha(static_cast<unsigned char>(text[begin]));
      at += space.size();
      if (at < text.size() && in_word(text[at])) continue;
      Reader r(text, at);
      declaration(r, suffix, &all);
      looked += r.at() - at;
      if (at < read) again += std::min(r.at(), read) - at;
      read = std::max(read, r.at());
    }
    looked += begins.steps();
  }
  if (steps) *steps = looked;
  return again > kMostAgain ? kEndless : all.bytes();
}

}  // namespace sluice::worker
