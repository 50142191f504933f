// SPDX-License-Identifier: Apache-2.0
#include "tls/record_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "tls/kernel_stream.h"

namespace sluice::tls {

namespace {

constexpr size_t kHeader = 5;
constexpr size_t kMostData = RecordSizes::kFull;
constexpr size_t kMostSealed = kMostData + 256;
constexpr size_t kAtOnce = 16;  // records that are sealed before they are sent
constexpr size_t kReceiveBytes = 256 << 10;
constexpr size_t kRecordRoom = kHeader + kMostData + 1 + kTagBytes;
constexpr uint8_t kOuterType = 23;
constexpr int kGetTag = 0x10, kSetTag = 0x11;  // EVP_CTRL_AEAD_…

// What follows a record's header.
size_t length_of(const uint8_t* header) { return static_cast<size_t>(header[3]) << 8 | header[4]; }

}  // namespace

std::unique_ptr<channel::Stream> open_stream(int socket, const Session& session,
                                             std::string* error) {
  error->clear();
  if (auto kernel = KernelStream::open(socket, session, error)) return kernel;
  return error->empty() ? RecordStream::open(socket, session, error) : nullptr;
}

Notice read_notice(const uint8_t* message, size_t n) {
  Notice notice = Notice::kNothing;
  while (n > 0) {
    if (n < 4) return Notice::kBad;
    const size_t body =
        static_cast<size_t>(message[1]) << 16 | static_cast<size_t>(message[2]) << 8 | message[3];
    if (body > n - 4) return Notice::kBad;
    const bool last = body == n - 4;
    if (message[0] == kKeyUpdate[0]) {
      // New keys begin with the next record, so nothing may come behind in this one.
      if (body != 1 || message[4] > 1 || !last) return Notice::kBad;
      notice = message[4] ? Notice::kRenewBoth : Notice::kRenew;
    } else if (message[0] != 4) {  // a ticket to come back with, which nobody does
      return Notice::kBad;
    }
    message += 4 + body;
    n -= 4 + body;
  }
  return notice;
}

RecordStream::RecordStream(const OpenSsl& o, int socket, const Session& session,
                           uint64_t records_per_key)
    : Stream(socket),
      o_(o),
      suite_(session.suite),
      records_per_key_(records_per_key),
      in_{session.in, {}, nullptr},
      out_{session.out, {}, nullptr},
      buffer_(kReceiveBytes),
      plain_(kMostSealed),
      sealed_(kAtOnce * kRecordRoom) {}

std::unique_ptr<RecordStream> RecordStream::open(int socket, const Session& session,
                                                 std::string* error, uint64_t records_per_key) {
  const OpenSsl* o = OpenSsl::get(error);
  if (!o) return nullptr;
  std::unique_ptr<RecordStream> s(new RecordStream(*o, socket, session, records_per_key));
  if (s->ready(&s->in_, false) && s->ready(&s->out_, true)) return s;
  *error = "OpenSSL cannot use the connection's keys: " + last_error(*o);
  return nullptr;
}

RecordStream::~RecordStream() {
  for (Direction* d : {&in_, &out_}) {
    if (d->cipher) o_.EVP_CIPHER_CTX_free(d->cipher);
    o_.OPENSSL_cleanse(&d->traffic, sizeof d->traffic);
    o_.OPENSSL_cleanse(&d->keys, sizeof d->keys);
  }
}

bool RecordStream::ready(Direction* d, bool sends) {
  d->cipher = o_.EVP_CIPHER_CTX_new();
  if (!d->cipher) return false;
  const void* kind = suite_ == Suite::kAes128 ? o_.EVP_aes_128_gcm() : o_.EVP_aes_256_gcm();
  const auto start = sends ? o_.EVP_EncryptInit_ex : o_.EVP_DecryptInit_ex;
  return start(d->cipher, kind, nullptr, nullptr, nullptr) == 1 && new_keys(d, sends);
}

bool RecordStream::new_keys(Direction* d, bool sends) {
  const auto start = sends ? o_.EVP_EncryptInit_ex : o_.EVP_DecryptInit_ex;
  return make_keys(o_, suite_, d->traffic, &d->keys) &&
         start(d->cipher, nullptr, nullptr, d->keys.key, nullptr) == 1;
}

void RecordStream::nonce(const Direction& d, uint8_t out[kIvBytes]) {
  std::memcpy(out, d.keys.iv, kIvBytes);
  for (int i = 0; i < 8; ++i)
    out[kIvBytes - 1 - i] ^= static_cast<uint8_t>(d.traffic.sequence >> (8 * i));
}

// Reading.

bool RecordStream::whole(Record* record, bool* broken) const {
  *broken = false;
  if (end_ - begin_ < kHeader) return false;
  const uint8_t* h = buffer_.data() + begin_;
  const size_t length = length_of(h);
  *broken = h[0] != kOuterType || h[1] != 3 || h[2] != 3 || length > kMostSealed ||
            length < kTagBytes + 1;
  if (*broken || end_ - begin_ < kHeader + length) return false;
  *record = {h, length - kTagBytes - 1, kHeader + length};
  return true;
}

void RecordStream::count_lacking() {
  const size_t have = end_ - begin_;
  Record record;
  bool broken = false;
  size_t lacks = 0;
  if (ended_ || plain_begin_ < plain_end_ || whole(&record, &broken) || broken)
    lacks = 0;
  else if (have == 0)
    lacks = kARecord;
  else
    lacks = have < kHeader ? kHeader - have : length_of(&buffer_[begin_]) + kHeader - have;
  lacks_.store(lacks, std::memory_order_relaxed);
}

bool RecordStream::readable() const {
  size_t lacks = lacks_.load(std::memory_order_relaxed);
  if (lacks == 0) return true;
  pollfd p{socket_, POLLIN | POLLRDHUP, 0};
  if (poll(&p, 1, 0) <= 0) return false;
  if (p.revents & ~POLLIN) return true;  // the end, or an error
  if (lacks == kARecord) {
    uint8_t header[kHeader];
    const ssize_t got = recv(socket_, header, kHeader, MSG_PEEK | MSG_DONTWAIT);
    if (got <= 0) return got == 0;
    if (static_cast<size_t>(got) < kHeader) return false;
    if (length_of(header) > kMostSealed) return true;  // none, of which a read tells
    lacks = kHeader + length_of(header);
  }
  // FIONREAD would tell, but a sandbox may refuse it. TCP counts so without copying.
  uint8_t unused[kHeader + kMostSealed];
  const ssize_t there = recv(socket_, unused, lacks, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
  return there >= 0 && static_cast<size_t>(there) >= lacks;
}

// By the reader: parts are taken in, as there may be no room for a whole record before.
bool RecordStream::wait_readable(int milliseconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  while (!pending()) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd p{socket_, POLLIN, 0};
    if (poll(&p, 1, static_cast<int>(std::max<int64_t>(0, left.count()))) <= 0) return false;
    const ssize_t got = take_in(MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return true;
    count_lacking();
  }
  return true;
}

ssize_t RecordStream::take_in(int flags) {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  iovec room{buffer_.data() + end_, buffer_.size() - end_};
  msghdr message{};
  message.msg_iov = &room;
  message.msg_iovlen = 1;
  const ssize_t got = flags == 0 ? receive(&message) : recvmsg(socket_, &message, flags);
  if (got > 0) end_ += static_cast<size_t>(got);
  return got;
}

bool RecordStream::fill(Record* record) {
  for (;;) {
    bool broken;
    if (whole(record, &broken)) return true;
    if (broken) {
      errno = EBADMSG;
      return false;
    }
    count_lacking();
    const ssize_t got = take_in(0);
    if (got <= 0) {
      over_ = got == 0;
      return false;
    }
  }
}

bool RecordStream::decrypt(const Record& record, uint8_t* to, size_t* n, Content* content) {
  uint8_t iv[kIvBytes], last = 0;
  nonce(in_, iv);
  int done = 0;
  const uint8_t* sealed = record.header + kHeader;
  const size_t tag_at = record.data + 1;
  const bool ok = o_.EVP_DecryptInit_ex(in_.cipher, nullptr, nullptr, nullptr, iv) == 1 &&
                  o_.EVP_DecryptUpdate(in_.cipher, nullptr, &done, record.header, kHeader) == 1 &&
                  (record.data == 0 || o_.EVP_DecryptUpdate(in_.cipher, to, &done, sealed,
                                                            static_cast<int>(record.data)) == 1) &&
                  o_.EVP_DecryptUpdate(in_.cipher, &last, &done, sealed + record.data, 1) == 1 &&
                  o_.EVP_CIPHER_CTX_ctrl(in_.cipher, kSetTag, kTagBytes,
                                         const_cast<uint8_t*>(sealed + tag_at)) == 1 &&
                  o_.EVP_DecryptFinal_ex(in_.cipher, &last, &done) == 1;
  if (!ok) {
    o_.ERR_clear_error();
    errno = EBADMSG;
    return false;
  }
  ++in_.traffic.sequence;
  *n = record.data;
  // The type stands behind the data; padding, which ours do not send, behind the type.
  while (last == 0 && *n > 0) last = to[--*n];
  *content = static_cast<Content>(last);
  return true;
}

bool RecordStream::take_notice(Content content, const uint8_t* message, size_t n) {
  errno = EBADMSG;
  if (content == Content::kAlert) {
    over_ = n == 2 && message[1] == 0;  // close_notify
    return false;
  }
  if (content != Content::kHandshake || n == 0) return false;
  const Notice notice = read_notice(message, n);
  if (notice == Notice::kBad) return false;
  if (notice == Notice::kRenewBoth) renewal_asked_ = true;
  return notice == Notice::kNothing || (renew(o_, suite_, &in_.traffic) && new_keys(&in_, false));
}

ssize_t RecordStream::read(const iovec* parts, int count) {
  const ssize_t got = read_records(parts, count);
  count_lacking();
  return got;
}

ssize_t RecordStream::read_records(const iovec* parts, int count) {
  size_t total = 0, used = 0;  // of the first part
  const auto skip_full = [&] {
    while (count > 0 && used == parts->iov_len) {
      ++parts;
      --count;
      used = 0;
    }
  };
  for (skip_full(); count > 0; skip_full()) {
    const size_t room = parts->iov_len - used;
    uint8_t* to = static_cast<uint8_t*>(parts->iov_base) + used;
    if (plain_begin_ < plain_end_) {
      const size_t n = std::min(room, plain_end_ - plain_begin_);
      std::memcpy(to, plain_.data() + plain_begin_, n);
      plain_begin_ += n;
      used += n;
      total += n;
      continue;
    }
    // What came before the end is given first.
    if (ended_) {
      if (total > 0) break;
      errno = EBADMSG;
      return over_ ? 0 : -1;
    }
    Record record;
    bool broken;
    // Whatever is there already is taken along; waiting is for the first byte only.
    if (!whole(&record, &broken) && (total > 0 || !fill(&record))) {
      if (total > 0) break;
      return over_ ? 0 : -1;
    }
    const bool direct = record.data <= room;
    size_t n;
    Content content;
    if (!decrypt(record, direct ? to : plain_.data(), &n, &content)) {
      ended_ = true;
      continue;
    }
    begin_ += record.all;
    if (content != Content::kData) {
      ended_ = !take_notice(content, direct ? to : plain_.data(), n);
    } else if (direct) {
      used += n;
      total += n;
    } else {
      plain_begin_ = 0;
      plain_end_ = n;
    }
  }
  return static_cast<ssize_t>(total);
}

// Writing.

// Makes one record of n bytes, taken from `parts` from an offset into the first on.
uint8_t* RecordStream::seal(uint8_t* at, const iovec* parts, size_t offset, size_t n,
                            Content content) {
  const size_t sealed = n + 1 + kTagBytes;
  at[0] = kOuterType;
  at[1] = at[2] = 3;
  at[3] = static_cast<uint8_t>(sealed >> 8);
  at[4] = static_cast<uint8_t>(sealed);
  uint8_t iv[kIvBytes];
  nonce(out_, iv);
  int done = 0;
  bool ok = o_.EVP_EncryptInit_ex(out_.cipher, nullptr, nullptr, nullptr, iv) == 1 &&
            o_.EVP_EncryptUpdate(out_.cipher, nullptr, &done, at, kHeader) == 1;
  at += kHeader;
  while (ok && n > 0) {
    const size_t piece = std::min(n, parts->iov_len - offset);
    if (piece > 0)
      ok = o_.EVP_EncryptUpdate(out_.cipher, at, &done,
                                static_cast<const uint8_t*>(parts->iov_base) + offset,
                                static_cast<int>(piece)) == 1;
    at += piece;
    n -= piece;
    offset = 0;
    ++parts;
  }
  const auto type = static_cast<uint8_t>(content);
  ok = ok && o_.EVP_EncryptUpdate(out_.cipher, at, &done, &type, 1) == 1 &&
       o_.EVP_EncryptFinal_ex(out_.cipher, at + 1, &done) == 1 &&
       o_.EVP_CIPHER_CTX_ctrl(out_.cipher, kGetTag, kTagBytes, at + 1) == 1;
  ++out_.traffic.sequence;
  return ok ? at + 1 + kTagBytes : nullptr;
}

bool RecordStream::renew_out() {
  iovec told{const_cast<uint8_t*>(kKeyUpdate), sizeof kKeyUpdate};
  const uint8_t* end = seal(sealed_.data(), &told, 0, sizeof kKeyUpdate, Content::kHandshake);
  iovec sealed{sealed_.data(), end ? static_cast<size_t>(end - sealed_.data()) : 0};
  return end && channel::send_parts(socket_, &sealed, 1) && renew(o_, suite_, &out_.traffic) &&
         new_keys(&out_, true);
}

bool RecordStream::write(iovec* parts, int count) {
  size_t left = 0, offset = 0;
  for (int i = 0; i < count; ++i) left += parts[i].iov_len;
  while (left > 0) {
    if ((renewal_asked_.load(std::memory_order_relaxed) && renewal_asked_.exchange(false)) ||
        out_.traffic.sequence + kAtOnce > records_per_key_) {
      if (!renew_out()) return false;
    }
    uint8_t* at = sealed_.data();
    for (size_t i = 0; i < kAtOnce && left > 0; ++i) {
      const size_t n = std::min(left, sizes_.next());
      at = seal(at, parts, offset, n, Content::kData);
      if (!at) return false;
      sizes_.sent(n);
      left -= n;
      for (offset += n; count > 0 && offset >= parts->iov_len; --count) offset -= parts++->iov_len;
    }
    iovec sealed{sealed_.data(), static_cast<size_t>(at - sealed_.data())};
    if (!channel::send_parts(socket_, &sealed, 1)) return false;
  }
  return true;
}

void RecordStream::try_write(const void* data, size_t n) {
  const iovec part{const_cast<void*>(data), n};
  const uint8_t* end = n <= kMostData ? seal(sealed_.data(), &part, 0, n, Content::kData) : nullptr;
  // A record that went in part cannot be mended: whoever says its last words ends the connection.
  if (end && send(socket_, sealed_.data(), static_cast<size_t>(end - sealed_.data()),
                  MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
    return;
}

}  // namespace sluice::tls
