// SPDX-License-Identifier: Apache-2.0
// What decides whether a library call is valid, as 128 bits: the function, its arguments without
// the addresses, and what its objects hold. Two different calls have the same key with a chance
// that can be neglected (the words are not chosen by an adversary: a client deceives itself only).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

namespace sluice::client::library {

struct Key {
  uint64_t a = 0x9e3779b97f4a7c15ull, b = 0xc2b2ae3d27d4eb4full;

  void add(uint64_t word) {
    a = mix(a ^ word, 0xff51afd7ed558ccdull);
    b = mix(b + word, 0xc4ceb9fe1a85ec53ull);
  }
  void add(const Key& k) {
    add(k.a);
    add(k.b);
  }
  void add_bytes(const void* data, size_t n) {
    const auto* at = static_cast<const char*>(data);
    add(n);
    for (; n >= 8; n -= 8, at += 8) {
      uint64_t w;
      std::memcpy(&w, at, 8);
      add(w);
    }
    uint64_t w = 0;
    std::memcpy(&w, at, n);
    add(w);
  }
  // The contents of an object are a set: what was set last for each thing, in any order.
  Key& operator^=(const Key& k) {
    a ^= k.a;
    b ^= k.b;
    return *this;
  }
  bool operator==(const Key&) const = default;

 private:
  static uint64_t mix(uint64_t x, uint64_t factor) {
    x = (x ^ x >> 32) * factor;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 32;
  }
};

struct KeyHash {
  size_t operator()(const Key& k) const { return k.a; }
};

}  // namespace sluice::client::library
