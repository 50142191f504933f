// SPDX-License-Identifier: Apache-2.0
// Records of TLS: bytes from somebody without the keys, and sealed ones whose content lies.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/native/fuzz/targets.h"
#include "tls/record_stream.h"

namespace sluice::fuzz {

using namespace tls;

namespace {

constexpr int kGetTag = 0x10;  // EVP_CTRL_AEAD_GET_TAG

Session session() {
  Session s;
  for (size_t i = 0; i < kMostSecretBytes; ++i) s.in.secret[i] = static_cast<uint8_t>(3 * i + 1);
  s.out = s.in;
  return s;
}

// What the other side sends, sealed with the keys of the session's one direction.
class Sealer {
 public:
  Sealer() : cipher_(o_.EVP_CIPHER_CTX_new()), traffic_(session().in) {}
  ~Sealer() { o_.EVP_CIPHER_CTX_free(cipher_); }

  // `content` has its type, and padding perhaps, at its end.
  std::string seal(std::string_view content) {
    Keys keys;
    make_keys(o_, Suite::kAes128, traffic_, &keys);
    for (int i = 0; i < 8; ++i)
      keys.iv[kIvBytes - 1 - i] ^= static_cast<uint8_t>(traffic_.sequence >> (8 * i));
    ++traffic_.sequence;
    const size_t sealed = content.size() + kTagBytes;
    std::vector<uint8_t> all(5 + sealed);
    all[0] = 23, all[1] = all[2] = 3;
    all[3] = static_cast<uint8_t>(sealed >> 8), all[4] = static_cast<uint8_t>(sealed);
    int done = 0;
    o_.EVP_EncryptInit_ex(cipher_, o_.EVP_aes_128_gcm(), nullptr, keys.key, keys.iv);
    o_.EVP_EncryptUpdate(cipher_, nullptr, &done, all.data(), 5);
    o_.EVP_EncryptUpdate(cipher_, all.data() + 5, &done,
                         reinterpret_cast<const uint8_t*>(content.data()),
                         static_cast<int>(content.size()));
    o_.EVP_EncryptFinal_ex(cipher_, all.data() + 5 + content.size(), &done);
    o_.EVP_CIPHER_CTX_ctrl(cipher_, kGetTag, kTagBytes, all.data() + 5 + content.size());
    return {reinterpret_cast<const char*>(all.data()), all.size()};
  }
  void renew_keys() { renew(o_, Suite::kAes128, &traffic_); }

 private:
  std::string error_;
  const OpenSsl& o_ = *OpenSsl::get(&error_);
  void* cipher_;
  Traffic traffic_;
};

// Everything that a stream gives of these bytes, read in pieces of odd sizes; false where it ends
// other than by its sender's word.
bool read_stream(std::string_view bytes, std::string* given) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) std::abort();
  std::string error;
  const auto stream = RecordStream::open(pair[1], session(), &error);
  if (!stream) std::abort();
  const auto room = static_cast<ssize_t>(bytes.size());
  if (send(pair[0], bytes.data(), bytes.size(), MSG_NOSIGNAL) != room) std::abort();
  shutdown(pair[0], SHUT_WR);
  ssize_t got = 0;
  for (size_t size = 1;; size = size * 7 % 1021) {
    std::vector<char> first(size), second(size % 5);
    const iovec parts[] = {{first.data(), first.size()}, {second.data(), second.size()}};
    got = stream->read(parts, 2);
    if (got <= 0) break;
    const auto n = static_cast<size_t>(got);
    if (n > first.size() + second.size()) std::abort();
    given->append(first.data(), std::min(n, first.size()));
    if (n > first.size()) given->append(second.data(), n - first.size());
  }
  for (const int end : pair) close(end);
  return got == 0;
}

// Records as they travel. Whoever lacks the keys adds nothing to what was sent.
bool read_records(std::span<const std::byte> input) {
  const std::string whole = "abc" + std::string(300, 'd') + "e";
  std::string given;
  const bool ended = read_stream(text_of(input), &given);
  if (!whole.starts_with(given)) std::abort();
  return ended && given == whole;
}

// A list of records, each with its length before it, sealed as they are: types, alerts, padding and
// handshake messages of somebody who has the keys.
bool read_contents(std::span<const std::byte> input) {
  Sealer sealer;
  std::string bytes, given, wanted;
  std::string_view left = text_of(input);
  while (!left.empty() && bytes.size() < 60'000) {
    const size_t n = std::min<size_t>(static_cast<unsigned char>(left[0]), left.size() - 1);
    const std::string_view content = left.substr(1, n);
    left.remove_prefix(1 + n);
    bytes += sealer.seal(content);
    const size_t type = content.find_last_not_of('\0');
    if (type == std::string_view::npos) break;
    if (content[type] == static_cast<char>(Content::kData)) wanted += content.substr(0, type);
    if (content[type] == static_cast<char>(Content::kHandshake)) {
      const auto* message = reinterpret_cast<const uint8_t*>(content.data());
      const Notice notice = read_notice(message, type);
      if (notice == Notice::kRenew || notice == Notice::kRenewBoth) sealer.renew_keys();
    }
  }
  const bool ended = read_stream(bytes, &given);
  if (!wanted.starts_with(given)) std::abort();
  return ended && given == wanted;
}

std::string listed(const std::vector<std::string>& contents) {
  std::string all;
  for (const std::string& c : contents) all += static_cast<char>(c.size()) + c;
  return all;
}

}  // namespace

std::vector<Target> tls_targets() {
  std::string error;
  if (!OpenSsl::get(&error)) return {};
  Sealer sealer;
  std::string records;
  for (const std::string& content : {std::string("abc\x17"), std::string(300, 'd') + "\x17",
                                     std::string("e\x17"), std::string("\x01\x00\x15", 3)})
    records += sealer.seal(content);
  const std::string key_update("\x18\x00\x00\x01\x01\x16", 6);
  const std::string ticket("\x04\x00\x00\x02\x09\x09\x16", 7), bye("\x01\x00\x15", 3);
  return {
      {"TLS records", {records}, {"\0\x17\x03\xff", 4}, read_records},
      {"contents of TLS records",
       {listed({"abc\x17", key_update, std::string("d\x17\0\0", 4), ticket, "ef\x17", bye}),
        listed({"abc\x17", "\x17", "d\x17", key_update, key_update, "e\x17", bye})},
       {"\0\x15\x16\x17\x18", 5},
       read_contents},
  };
}

}  // namespace sluice::fuzz
