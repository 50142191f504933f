// SPDX-License-Identifier: Apache-2.0
// What fuzz_parsers reads: each target has good inputs, the signs that its format is made of, and
// what reads a mutated one.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::fuzz {

struct Target {
  std::string_view name;
  std::vector<std::string> good;
  std::string_view signs;
  // Whether it is understood. The input is as large as it is, so that a sanitizer sees a read
  // beyond its end.
  bool (*read)(std::span<const std::byte> input);
};

std::vector<Target>
client_targets();  // JSON, HTTP, addresses, INI, session records, records of a profiler, code
std::vector<Target> image_targets();    // the worker's images of code
std::vector<Target> softgpu_targets();  // PTX
std::vector<Target> tls_targets();      // records; none without OpenSSL

inline std::string_view text_of(std::span<const std::byte> input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}
inline std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace sluice::fuzz
