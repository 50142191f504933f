// SPDX-License-Identifier: Apache-2.0
#include "client/core/ini_file.h"

#include <optional>

namespace sluice::client {

namespace {

constexpr std::string_view kBlanks = " \t\r";

bool is_blank(char c) { return kBlanks.find(c) != std::string_view::npos; }

// `;` anywhere, `#` at the start or behind a blank.
std::string_view without_comment(std::string_view text) {
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == ';' || (text[at] == '#' && (at == 0 || is_blank(text[at - 1]))))
      return trimmed(text.substr(0, at));
  }
  return trimmed(text);
}

// What stands between quotes behind which only a comment follows.
std::optional<std::string> quoted(std::string_view text) {
  if (text.empty() || text.front() != '"') return std::nullopt;
  std::string value;
  for (size_t at = 1; at < text.size(); ++at) {
    if (text[at] == '"') {
      if (text.substr(at + 1, 1) != "\"") {
        const std::string_view rest = trimmed(text.substr(at + 1));
        if (rest.empty() || rest.front() == ';' || rest.front() == '#') return value;
        return std::nullopt;
      }
      ++at;
    }
    value += text[at];
  }
  return std::nullopt;
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::vector<IniValue> read_ini(std::string_view text) {
  std::vector<IniValue> found;
  std::string section;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const std::string_view plain = without_comment(line);
    if (plain.empty()) continue;
    if (plain.front() == '[') {
      if (plain.back() == ']') section = plain.substr(1, plain.size() - 2);
      continue;
    }
    const size_t equal = plain.find('=');
    if (equal == std::string_view::npos) continue;
    const std::string_view key = trimmed(plain.substr(0, equal));
    if (key.empty()) continue;
    const std::string_view behind = trimmed(line.substr(equal + 1));
    found.push_back({section, std::string(key),
                     quoted(behind).value_or(std::string(without_comment(behind))), number});
  }
  return found;
}

}  // namespace sluice::client
