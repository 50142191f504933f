// SPDX-License-Identifier: Apache-2.0
// The cases of ini_cases.txt, which Python's reader is held to as well.
#include "client/core/ini_file.h"

#include <gtest/gtest.h>

#include <fstream>

namespace sluice::client {
namespace {

std::string unescaped(std::string text) {
  for (const auto& [written, byte] : {std::pair{"\\t", "\t"}, {"\\r", "\r"}}) {
    for (size_t at; (at = text.find(written)) != std::string::npos;) text.replace(at, 2, byte);
  }
  return text;
}

std::string described(const std::string& text) {
  std::string all;
  for (const IniValue& v : read_ini(text))
    all += v.section + "|" + v.key + "|" + v.value + "|" + std::to_string(v.line) + "\n";
  return all;
}

TEST(IniFile, EveryCaseIsReadAsPythonReadsIt) {
  std::ifstream cases(SLUICE_INI_CASES);
  std::string file, wanted, line;
  int held = 0;
  const auto hold = [&] {
    if (file.empty()) return;
    EXPECT_EQ(described(file), wanted) << file;
    ++held;
    file.clear();
    wanted.clear();
  };
  while (std::getline(cases, line)) {
    if (line.empty()) hold();
    if (line.starts_with("<"))
      file += unescaped(line.substr(std::min<size_t>(2, line.size()))) + "\n";
    if (line.starts_with(">")) wanted += line.substr(2) + "\n";
  }
  hold();
  EXPECT_GE(held, 9);
}

TEST(IniFile, TheLastLineNeedsNoEnd) { EXPECT_EQ(described("[a]\nk = v"), "a|k|v|2\n"); }

}  // namespace
}  // namespace sluice::client
