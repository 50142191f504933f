// SPDX-License-Identifier: Apache-2.0
// Lines, comments and quotes of INI files, by the rule of guest_runtime/ini_lines.py:
// tests/native/client/ini_cases.txt holds both to it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::client {

struct IniValue {
  std::string section, key, value;
  int line;
};

// Every key in the file's order; a line that is neither a section nor a key with a value is passed
// over.
std::vector<IniValue> read_ini(std::string_view text);

// Without the blanks around it.
std::string_view trimmed(std::string_view text);

}  // namespace sluice::client
