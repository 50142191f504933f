// SPDX-License-Identifier: Apache-2.0
#include "client/core/resume_tcp.h"

#include <sys/random.h>
#include <unistd.h>

#include <cstring>
#include <string_view>

#include "abi/cuda_driver.h"
#include "channel/dial.h"
#include "channel/opening.h"
#include "tls/client_handshake.h"
#include "tls/openssl.h"
#include "tls/record_stream.h"
#include "wire/frame.h"

namespace sluice::client {

namespace {

constexpr int kAgainSeconds = 5, kAnswerAgainSeconds = 10;
constexpr uint32_t kLater = CUDA_ERROR_NOT_READY;

using Digest = std::array<uint8_t, 32>;

bool hmac(const tls::OpenSsl& o, std::string_view key, std::string_view text, Digest* made) {
  unsigned bytes = 0;
  return o.HMAC(o.EVP_sha256(), key.data(), static_cast<int>(key.size()),
                reinterpret_cast<const uint8_t*>(text.data()), text.size(), made->data(), &bytes) &&
         bytes == made->size();
}

std::string_view bytes_of(const Digest& d) {
  return {reinterpret_cast<const char*>(d.data()), d.size()};
}

// What both sides prove that they know: never said, and good for this session alone.
bool session_key(const tls::OpenSsl& o, const SessionAddress& where, Digest* made) {
  std::string text = "sluice session ";
  text.append(reinterpret_cast<const char*>(&where.session_id), sizeof where.session_id);
  return hmac(o, where.key, text, made);
}

// Both are of one length. In a time that says nothing of where they differ.
bool same(const uint8_t* a, const uint8_t* b, size_t n) {
  uint8_t different = 0;
  for (size_t i = 0; i < n; ++i) different |= a[i] ^ b[i];
  return different == 0;
}

std::string to_prove(const char* who, const wire::ResumeSession& asked,
                     const wire::ResumeReply& answer) {
  std::string text = who;
  text.append(reinterpret_cast<const char*>(&asked.session_id), sizeof asked.session_id);
  text.append(reinterpret_cast<const char*>(&asked.epoch), sizeof asked.epoch);
  text.append(reinterpret_cast<const char*>(asked.nonce), sizeof asked.nonce);
  text.append(reinterpret_cast<const char*>(answer.nonce), sizeof answer.nonce);
  return text;
}

bool write_all(channel::Stream* stream, const void* data, size_t n) {
  iovec part{const_cast<void*>(data), n};
  return stream->write(&part, 1);
}

}  // namespace

std::unique_ptr<channel::ResumableStream::Connection> connect_to(const SessionAddress& where,
                                                                 int seconds, std::string* error) {
  const auto deadline = tls::in_seconds(seconds);
  const int s = channel::dial(where.address, where.port, deadline, error);
  if (s < 0) return nullptr;
  auto connection = std::make_unique<channel::ResumableStream::Connection>(s, nullptr);
  if (!where.tls) {
    connection->stream = std::make_unique<channel::PlainStream>(s);
    return connection;
  }
  const tls::Peer peer{where.tls_name.empty() ? where.address : where.tls_name, where.ca_file};
  const auto client = tls::Client::connect(s, peer, deadline, error);
  tls::Session session;
  if (!client || !client->take_session(&session, error)) return nullptr;
  connection->stream = tls::open_stream(s, session, error);
  return connection->stream ? std::move(connection) : nullptr;
}

Resumed resume_tcp(const SessionAddress& where, channel::ResumableStream* stream,
                   std::string* error) {
  const tls::OpenSsl* o = tls::OpenSsl::get(error);
  Digest key, expected, ours;
  if (!o || !session_key(*o, where, &key)) {
    *error = "its connection broke, and another cannot be made without OpenSSL: install it";
    return Resumed::kNever;
  }
  auto connection = connect_to(where, kAgainSeconds, error);
  if (!connection) return Resumed::kNotNow;
  channel::set_patience(connection->socket, kAnswerAgainSeconds);
  wire::ResumeSession asked{};
  asked.header = {sizeof asked, wire::kResumeSession, wire::kNoLane, 0, 0};
  asked.magic = wire::kOpenMagic;
  asked.protocol_major = wire::kProtocolMajor;
  asked.protocol_minor = wire::kProtocolMinor;
  asked.session_id = where.session_id;
  asked.epoch = stream->next_epoch();
  if (getrandom(asked.nonce, sizeof asked.nonce, 0) != sizeof asked.nonce) return Resumed::kNotNow;
  wire::ResumeReply answer{};
  if (!write_all(connection->stream.get(), &asked, sizeof asked) ||
      !channel::read_exact(connection->stream.get(), &answer, sizeof answer)) {
    *error = "the server closed the connection before it answered";
    return Resumed::kNotNow;
  }
  answer.message[sizeof answer.message - 1] = 0;
  *error = answer.message;
  if (answer.status == kLater) return Resumed::kNotNow;
  if (answer.status != 0) return Resumed::kNever;
  if (answer.header.function != wire::kResumeReply ||
      !hmac(*o, bytes_of(key), to_prove("server", asked, answer), &expected) ||
      !same(expected.data(), answer.proof, sizeof answer.proof)) {
    *error = "who answered does not know this session's key: not its server";
    return Resumed::kNotNow;
  }
  wire::ResumeProof proof{};
  proof.header = {sizeof proof, wire::kResumeProof, wire::kNoLane, 0, 0};
  if (!hmac(*o, bytes_of(key), to_prove("client", asked, answer), &ours)) return Resumed::kNotNow;
  std::memcpy(proof.proof, ours.data(), ours.size());
  if (!write_all(connection->stream.get(), &proof, sizeof proof)) return Resumed::kNotNow;
  channel::set_patience(connection->socket, 0);
  *error = "the connection was not taken";
  return stream->resume(asked.epoch, std::move(connection)) ? Resumed::kYes : Resumed::kNotNow;
}

}  // namespace sluice::client
