// SPDX-License-Identifier: Apache-2.0
// What is known of a setting before anybody set it. The settings themselves are the generated
// client/setting_table.h (native/api/client_settings.yaml); config.cc reads them.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace sluice::client::setting {

// Where it is looked for: variables in their order, then the files. nullptr: nowhere.
struct Place {
  const char* key;  // "section.key"
  std::array<const char*, 2> variables;
};

struct Text {
  Place place;
  const char* initial;
};

struct Flag {
  Place place;
  bool initial;
};

// A whole number, both bounds included.
struct Number {
  Place place;
  long initial, least, most;
};

// One of a few words.
struct Words {
  Place place;
  const char* initial;
  std::span<const char* const> known;
};

// Letters, digits and a few other characters, as names of projects are.
struct Name {
  Place place;
  size_t longest;
  const char* others;
};

// NAME=VALUE pairs with commas.
struct Labels {
  Place place;
  size_t most;     // pairs
  size_t longest;  // a name or a value
  const char* others;
};

}  // namespace sluice::client::setting
