// SPDX-License-Identifier: Apache-2.0
// What is left of a TLS 1.3 handshake (RFC 8446): for each direction a secret and the number of the
// next record. Keys follow from the secret, and so does the secret after the next renewal.
#pragma once

#include <cstdint>
#include <string>

#include "tls/openssl.h"

namespace sluice::tls {

enum class Suite : uint16_t { kAes128 = 0x1301, kAes256 = 0x1302 };

inline constexpr size_t kMostSecretBytes = 48, kMostKeyBytes = 32, kIvBytes = 12, kTagBytes = 16;

// One direction. The copy in a message or a string is the caller's to forget.
struct Traffic {
  uint8_t secret[kMostSecretBytes] = {};
  uint64_t sequence = 0;
};

struct Keys {
  uint8_t key[kMostKeyBytes];
  uint8_t iv[kIvBytes];
};

struct Session {
  Suite suite = Suite::kAes128;
  Traffic in, out;
};

inline size_t secret_bytes(Suite s) { return s == Suite::kAes128 ? 32 : 48; }
inline size_t key_bytes(Suite s) { return s == Suite::kAes128 ? 16 : 32; }

bool make_keys(const OpenSsl& o, Suite suite, const Traffic& traffic, Keys* keys);
// Key update: the next secret, counting from 0 again.
bool renew(const OpenSsl& o, Suite suite, Traffic* traffic);

// A secret as hexadecimal digits, of the suite's length; false when it is anything else.
bool parse_secret(const std::string& text, Suite suite, Traffic* traffic);

}  // namespace sluice::tls
