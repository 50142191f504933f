// SPDX-License-Identifier: Apache-2.0
#include "tls/key_schedule.h"

#include <cstring>

namespace sluice::tls {

namespace {

// HKDF-Expand-Label without context, for no more than one block of the hash: that is one HMAC.
bool expand(const OpenSsl& o, Suite suite, const uint8_t* secret, const char* label, uint8_t* out,
            size_t n) {
  uint8_t info[64];
  const std::string full = std::string("tls13 ") + label;
  size_t at = 0;
  info[at++] = 0;
  info[at++] = static_cast<uint8_t>(n);
  info[at++] = static_cast<uint8_t>(full.size());
  std::memcpy(info + at, full.data(), full.size());
  at += full.size();
  info[at++] = 0;  // no context
  info[at++] = 1;  // the first block
  uint8_t block[64];
  unsigned bytes = 0;
  const void* hash = suite == Suite::kAes128 ? o.EVP_sha256() : o.EVP_sha384();
  const bool ok =
      o.HMAC(hash, secret, static_cast<int>(secret_bytes(suite)), info, at, block, &bytes) &&
      bytes >= n;
  if (ok) std::memcpy(out, block, n);
  o.OPENSSL_cleanse(block, sizeof block);
  return ok;
}

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

bool make_keys(const OpenSsl& o, Suite suite, const Traffic& traffic, Keys* keys) {
  return expand(o, suite, traffic.secret, "key", keys->key, key_bytes(suite)) &&
         expand(o, suite, traffic.secret, "iv", keys->iv, kIvBytes);
}

bool renew(const OpenSsl& o, Suite suite, Traffic* traffic) {
  uint8_t next[kMostSecretBytes];
  if (!expand(o, suite, traffic->secret, "traffic upd", next, secret_bytes(suite))) return false;
  std::memcpy(traffic->secret, next, secret_bytes(suite));
  traffic->sequence = 0;
  o.OPENSSL_cleanse(next, sizeof next);
  return true;
}

bool parse_secret(const std::string& text, Suite suite, Traffic* traffic) {
  const size_t n = secret_bytes(suite);
  if (text.size() != 2 * n) return false;
  for (size_t i = 0; i < n; ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    traffic->secret[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return true;
}

}  // namespace sluice::tls
