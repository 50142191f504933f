// SPDX-License-Identifier: Apache-2.0
// A command's body, read piece by piece: every handler has one on its stack. Nothing beyond the
// body is read; at the first piece that is not there `ok` turns false and stays so, and what was
// asked for is blank. fixed() must come first: only the start of a body is aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::worker {

class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> body) : rest_(body) {}
  template <class T>
  const T& fixed() {
    static const T blank{};
    if (rest_.size() < sizeof(T)) return ok_ = false, blank;
    const T* at = reinterpret_cast<const T*>(rest_.data());
    rest_ = rest_.subspan(sizeof(T));
    return *at;
  }
  std::span<const std::byte> bytes(uint64_t n) {
    if (n > rest_.size()) return ok_ = false, std::span<const std::byte>();
    const auto piece = rest_.first(n);
    rest_ = rest_.subspan(n);
    return piece;
  }
  // All that is left.
  std::span<const std::byte> rest() { return bytes(rest_.size()); }
  bool ok() const { return ok_; }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace sluice::worker
