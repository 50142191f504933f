// SPDX-License-Identifier: Apache-2.0
// Numbers in text that somebody else wrote. The whole text is the number, digits and for signed
// types a minus, and it fits into the type; anything else is none.
#pragma once

#include <charconv>
#include <concepts>
#include <string_view>
#include <system_error>

namespace sluice {

// False: `value` stays as it is.
template <std::integral T>
bool read_whole_number(std::string_view text, T* value, int base = 10) {
  T read{};
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, read, base);
  if (error != std::errc{} || stopped != end) return false;
  *value = read;
  return true;
}

}  // namespace sluice
