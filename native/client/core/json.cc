// SPDX-License-Identifier: Apache-2.0
#include "client/core/json.h"

#include <cstdint>

namespace sluice::client {

namespace {

constexpr int kDeepest = 32;

// One text, read once from its beginning. A step that returns false leaves no meaning to the rest.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  // `arrays`: each member that is one, as it stands.
  bool object(std::map<std::string, std::string>* members, int depth,
              std::map<std::string, std::string_view>* arrays = nullptr) {
    if (!take('{')) return false;
    if (take('}')) return true;
    do {
      std::string name, value;
      if (!string(&name) || !take(':')) return false;
      skip_space();
      const std::string_view from = rest_;
      if (!any(&value, depth)) return false;
      if (members) (*members)[name] = value;  // of two the last, as everybody does
      if (arrays && from[0] == '[') (*arrays)[name] = from.substr(0, from.size() - rest_.size());
    } while (take(','));
    return take('}');
  }

  // The elements of an array, as they stand.
  std::vector<std::string_view> elements() {
    std::vector<std::string_view> found;
    if (!take('[') || take(']')) return found;
    do {
      std::string unused;
      skip_space();
      const std::string_view from = rest_;
      if (!any(&unused, 0)) return {};
      found.push_back(from.substr(0, from.size() - rest_.size()));
    } while (take(','));
    return found;
  }

  bool at_end() {
    skip_space();
    return rest_.empty();
  }

 private:
  void skip_space() {
    const size_t n = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(n == std::string_view::npos ? rest_.size() : n);
  }

  bool take(char c) {
    skip_space();
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  bool word(std::string_view w) {
    if (!rest_.starts_with(w)) return false;
    rest_.remove_prefix(w.size());
    return true;
  }

  bool any(std::string* value, int depth) {
    if (depth >= kDeepest) return false;
    skip_space();
    if (rest_.empty()) return false;
    switch (rest_[0]) {
      case '"':
        return string(value);
      case '{':
        return object(nullptr, depth + 1);
      case '[':
        return array(depth + 1);
      case 't':
        *value = "true";
        return word("true");
      case 'f':
        *value = "false";
        return word("false");
      case 'n':
        return word("null");
      default:
        return number(value);
    }
  }

  bool array(int depth) {
    if (!take('[')) return false;
    if (take(']')) return true;
    std::string unused;
    do {
      if (!any(&unused, depth)) return false;
    } while (take(','));
    return take(']');
  }

  size_t digits(size_t at) const {
    const size_t end = rest_.find_first_not_of("0123456789", at);
    return (end == std::string_view::npos ? rest_.size() : end) - at;
  }

  bool number(std::string* value) {
    size_t n = rest_[0] == '-' ? 1 : 0;
    const size_t whole = digits(n);
    if (whole == 0 || (whole > 1 && rest_[n] == '0')) return false;
    n += whole;
    if (n < rest_.size() && rest_[n] == '.') {
      const size_t behind = digits(n + 1);
      if (behind == 0) return false;
      n += 1 + behind;
    }
    if (n < rest_.size() && (rest_[n] == 'e' || rest_[n] == 'E')) {
      ++n;
      if (n < rest_.size() && (rest_[n] == '+' || rest_[n] == '-')) ++n;
      const size_t exponent = digits(n);
      if (exponent == 0) return false;
      n += exponent;
    }
    *value = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return true;
  }

  bool string(std::string* value) {
    if (!take('"')) return false;
    value->clear();
    while (!rest_.empty()) {
      const char c = rest_[0];
      if (static_cast<unsigned char>(c) < ' ') return false;
      rest_.remove_prefix(1);
      if (c == '"') return true;
      if (c != '\\')
        *value += c;
      else if (!escape(value))
        return false;
    }
    return false;
  }

  bool escape(std::string* value) {
    if (rest_.empty()) return false;
    const char c = rest_[0];
    rest_.remove_prefix(1);
    static constexpr std::string_view kNames = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    if (const size_t at = kNames.find(c); at != std::string_view::npos) {
      *value += kMeant[at];
      return true;
    }
    uint32_t code = 0;
    if (c != 'u' || !four_digits(&code)) return false;
    if (code >= 0xd800 && code < 0xdc00) {  // the first half of a pair
      uint32_t second = 0;
      if (!word("\\u") || !four_digits(&second) || second < 0xdc00 || second > 0xdfff) return false;
      code = 0x10000 + ((code - 0xd800) << 10) + (second - 0xdc00);
    } else if (code >= 0xdc00 && code <= 0xdfff) {
      return false;
    }
    append_utf8(code, value);
    return true;
  }

  bool four_digits(uint32_t* code) {
    if (rest_.size() < 4) return false;
    *code = 0;
    for (const char c : rest_.substr(0, 4)) {
      static constexpr std::string_view kDigits = "0123456789abcdef", kBig = "ABCDEF";
      size_t digit = kDigits.find(c);
      if (const size_t big = kBig.find(c); big != std::string_view::npos) digit = big + 10;
      if (digit == std::string_view::npos) return false;
      *code = *code << 4 | static_cast<uint32_t>(digit);
    }
    rest_.remove_prefix(4);
    return true;
  }

  static void append_utf8(uint32_t code, std::string* value) {
    if (code < 0x80) {
      *value += static_cast<char>(code);
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static constexpr uint32_t kFirst[] = {0, 0xc0, 0xe0, 0xf0};
    *value += static_cast<char>(kFirst[more] | code >> (6 * more));
    for (int i = more - 1; i >= 0; --i)
      *value += static_cast<char>(0x80 | (code >> (6 * i) & 0x3f));
  }

  std::string_view rest_;
};

}  // namespace

JsonObject::JsonObject(std::string_view text) {
  Reader reader(text);
  std::map<std::string, std::string_view> arrays;
  if (!reader.object(&members_, 0, &arrays) || !reader.at_end()) {
    members_.clear();
    return;
  }
  for (const auto& [name, array] : arrays)
    for (const std::string_view element : Reader(array).elements())
      if (element.starts_with('{')) lists_[name].emplace_back(element);
}

const std::vector<JsonObject>& JsonObject::objects(const std::string& name) const {
  static const std::vector<JsonObject> none;
  const auto it = lists_.find(name);
  return it == lists_.end() ? none : it->second;
}

const std::string& JsonObject::text(const std::string& name) const {
  static const std::string none;
  const auto it = members_.find(name);
  return it == members_.end() ? none : it->second;
}

}  // namespace sluice::client
