// SPDX-License-Identifier: Apache-2.0
#include "tls/kernel_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace sluice::tls {

namespace {

// <linux/tls.h>, which a toolchain for old systems may lack in part.
constexpr int kUlp = 31, kLevel = 282, kSend = 1, kReceive = 2, kNoPadding = 4;
constexpr int kSetType = 1, kGetType = 2;
constexpr uint16_t kVersion13 = 0x0304, kGcm128 = 51, kGcm256 = 52;
constexpr size_t kSalt = 4;  // what leads the nonce; the other 8 bytes are called iv here

template <size_t kKey>
struct CryptoInfo {
  uint16_t version, cipher;
  uint8_t iv[kIvBytes - kSalt];
  uint8_t key[kKey];
  uint8_t salt[kSalt];
  uint8_t sequence[8];
};

template <size_t kKey>
bool give_keys(int socket, int direction, uint16_t cipher, const Keys& keys, uint64_t sequence) {
  CryptoInfo<kKey> info{};
  info.version = kVersion13;
  info.cipher = cipher;
  std::memcpy(info.salt, keys.iv, kSalt);
  std::memcpy(info.iv, keys.iv + kSalt, sizeof info.iv);
  std::memcpy(info.key, keys.key, kKey);
  for (int i = 0; i < 8; ++i) info.sequence[7 - i] = static_cast<uint8_t>(sequence >> (8 * i));
  const bool ok = setsockopt(socket, kLevel, direction, &info, sizeof info) == 0;
  explicit_bzero(&info, sizeof info);
  return ok;
}

// Before Linux 6.14 a socket's keys are set once and for all.
bool kernel_renews() {
  utsname u{};
  if (uname(&u) != 0) return false;
  char* end = nullptr;
  const long major = std::strtol(u.release, &end, 10);
  const long minor = *end == '.' ? std::strtol(end + 1, nullptr, 10) : 0;
  return major > 6 || (major == 6 && minor >= 14);
}

}  // namespace

std::unique_ptr<KernelStream> KernelStream::open(int socket, const Session& session,
                                                 std::string* error, bool also_old) {
  static const bool renews = kernel_renews();
  if (!renews && !also_old) return nullptr;
  std::string ignored;
  const OpenSsl* o = OpenSsl::get(&ignored);
  if (!o || setsockopt(socket, IPPROTO_TCP, kUlp, "tls", 3) != 0) return nullptr;
  std::unique_ptr<KernelStream> s(new KernelStream(*o, socket, session));
  // Without keys the socket still carries what it is given.
  if (!s->set_keys(kSend, s->out_)) return nullptr;
  if (!s->set_keys(kReceive, s->in_)) {
    *error =
        std::string("the kernel takes TLS keys for one direction only: ") + std::strerror(errno);
    return nullptr;
  }
  // Our records carry no padding; one that does is opened a second time.
  const int one = 1;
  setsockopt(socket, kLevel, kNoPadding, &one, sizeof one);
  return s;
}

KernelStream::~KernelStream() {
  for (Traffic* t : {&in_, &out_}) o_.OPENSSL_cleanse(t, sizeof *t);
}

bool KernelStream::set_keys(int direction, const Traffic& traffic) {
  Keys keys;
  const bool ok = make_keys(o_, suite_, traffic, &keys) &&
                  (suite_ == Suite::kAes128
                       ? give_keys<16>(socket_, direction, kGcm128, keys, traffic.sequence)
                       : give_keys<32>(socket_, direction, kGcm256, keys, traffic.sequence));
  o_.OPENSSL_cleanse(&keys, sizeof keys);
  return ok;
}

ssize_t KernelStream::read(const iovec* parts, int count) {
  for (;;) {
    alignas(cmsghdr) uint8_t beside[CMSG_SPACE(1)];
    msghdr m{};
    m.msg_iov = const_cast<iovec*>(parts);
    m.msg_iovlen = static_cast<size_t>(count);
    m.msg_control = beside;
    m.msg_controllen = sizeof beside;
    const ssize_t got = receive(&m);
    if (got <= 0) return got;
    const cmsghdr* c = CMSG_FIRSTHDR(&m);
    const bool typed = c && c->cmsg_level == kLevel && c->cmsg_type == kGetType;
    const uint8_t type = typed ? *CMSG_DATA(c) : static_cast<uint8_t>(Content::kData);
    if (type == static_cast<uint8_t>(Content::kData)) return got;
    const ssize_t end = take_notice(type, parts, static_cast<size_t>(got));
    if (end <= 0) return end;
  }
}

// 1: read on. Else what read() returns.
ssize_t KernelStream::take_notice(uint8_t type, const iovec* parts, size_t n) {
  uint8_t message[64];
  errno = EBADMSG;
  if (n > sizeof message) return -1;  // ours are of 2 and of 5 bytes
  for (size_t at = 0; at < n; ++parts) {
    const size_t piece = std::min(n - at, parts->iov_len);
    std::memcpy(message + at, parts->iov_base, piece);
    at += piece;
  }
  if (type == static_cast<uint8_t>(Content::kAlert)) return n == 2 && message[1] == 0 ? 0 : -1;
  if (type != static_cast<uint8_t>(Content::kHandshake)) return -1;
  const Notice notice = read_notice(message, n);
  if (notice == Notice::kBad) return -1;
  if (notice == Notice::kRenewBoth) renewal_asked_ = true;
  if (notice != Notice::kNothing && !(renew(o_, suite_, &in_) && set_keys(kReceive, in_)))
    return -1;
  return 1;
}

bool KernelStream::renew_out() {
  alignas(cmsghdr) uint8_t beside[CMSG_SPACE(1)] = {};
  iovec part{const_cast<uint8_t*>(kKeyUpdate), sizeof kKeyUpdate};
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  m.msg_control = beside;
  m.msg_controllen = sizeof beside;
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = kLevel;
  c->cmsg_type = kSetType;
  c->cmsg_len = CMSG_LEN(1);
  *CMSG_DATA(c) = static_cast<uint8_t>(Content::kHandshake);
  ssize_t sent;
  do {
    sent = sendmsg(socket_, &m, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  sent_records_ = 0;
  return sent == sizeof kKeyUpdate && renew(o_, suite_, &out_) && set_keys(kSend, out_);
}

bool KernelStream::write(iovec* parts, int count) {
  uint64_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
  const uint64_t records = bytes / sizes_.next() + 1;
  if (sent_records_ + records > kRecordsPerKey ||
      (renewal_asked_.load(std::memory_order_relaxed) && renewal_asked_.exchange(false))) {
    if (!renew_out()) return false;
  }
  sent_records_ += records;
  // What is sent at once and fits is one record.
  for (size_t n; bytes > (n = sizes_.next()) && n < RecordSizes::kFull; bytes -= n) {
    n = std::min(n, parts->iov_len);
    iovec piece{parts->iov_base, n};
    if (n > 0 && !channel::send_parts(socket_, &piece, 1)) return false;
    sizes_.sent(n);
    parts->iov_base = static_cast<uint8_t*>(parts->iov_base) + n;
    parts->iov_len -= n;
    if (parts->iov_len == 0) ++parts, --count;
  }
  sizes_.sent(bytes);
  return channel::send_parts(socket_, parts, count);
}

void KernelStream::try_write(const void* data, size_t n) {
  if (send(socket_, data, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
}

}  // namespace sluice::tls
