// SPDX-License-Identifier: Apache-2.0
#include "client/core/resume.h"

#include <utility>

#include "channel/dial.h"
#include "channel/futex.h"
#include "tls/client_handshake.h"
#include "tls/record_stream.h"

namespace sluice::client {

namespace {

constexpr int kAnswerAgainSeconds = 10;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kSilentSeconds = 10;  // a worker says something every 5
constexpr size_t kHearAfter = 512 << 10;
constexpr uint64_t kLinkSeconds = 1, kLinkPauseNs = 2'000'000;

}  // namespace

channel::ResumableStream::Terms terms_of(uint32_t grace_seconds) {
  channel::ResumableStream::Terms terms{grace_seconds * kSecond, grace_seconds * kSecond};
  terms.silent_ns = kSilentSeconds * kSecond;
  terms.hear_after = kHearAfter;
  return terms;
}

NewConnection connect_to(const SessionAddress& where, int seconds, std::string* error) {
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

Resumed resume_by(const Dial& dial, const SessionProof& session, channel::ResumableStream* stream,
                  std::string* error) {
  channel::SessionKey key;
  if (!channel::make_session_key(session.key, session.session_id, &key, error)) {
    *error = "its connection broke, and another cannot be made without OpenSSL: install it";
    return Resumed::kNever;
  }
  auto connection = dial(error);
  if (!connection) return Resumed::kNotNow;
  channel::set_patience(connection->socket, kAnswerAgainSeconds);
  const uint32_t epoch = stream->next_epoch();
  const Resumed done =
      channel::ask_to_resume(connection->stream.get(), key, session.session_id, epoch, error);
  if (done != Resumed::kYes) return done;
  channel::set_patience(connection->socket, 0);
  return stream->resume(epoch, std::move(connection)) ? Resumed::kYes : Resumed::kNotNow;
}

bool open_subflow(const Dial& dial, const SessionProof& session, channel::ResumableStream* stream,
                  uint32_t epoch, uint32_t number, std::string* error) {
  channel::SessionKey key;
  if (!channel::make_session_key(session.key, session.session_id, &key, error)) return false;
  auto connection = dial(error);
  if (!connection) return false;
  channel::set_patience(connection->socket, kAnswerAgainSeconds);
  if (channel::ask_to_resume(connection->stream.get(), key, session.session_id, epoch, error,
                             number) != Resumed::kYes)
    return false;
  channel::set_patience(connection->socket, 0);
  return stream->take_subflow(epoch, number, std::move(connection));
}

Resumed resume_in_slot(const std::shared_ptr<channel::RegionEnd>& end, uint32_t* link,
                       channel::ResumableStream* stream, std::string* error) {
  const auto& h = end->slot.header();
  for (const uint64_t start = channel::now_ns();;) {
    if (end->over()) {
      std::string why;
      const uint32_t status = end->last_words(&why);
      stream->end(status, why);
      return Resumed::kNever;
    }
    const uint32_t next = h.link.load(std::memory_order_acquire);
    if (next > *link) {
      *link = next;
      break;
    }
    *error = "its host has no other connection to the node yet";
    if (channel::now_ns() - start > kLinkSeconds * kSecond || stream->over())
      return Resumed::kNotNow;
    channel::sleep_ns(kLinkPauseNs);
  }
  *error = "the connection was not taken";
  auto connection = std::make_unique<channel::ResumableStream::Connection>(
      -1, std::make_unique<channel::RegionStream>(end, *link));
  return stream->resume(*link - 1, std::move(connection)) ? Resumed::kYes : Resumed::kNotNow;
}

}  // namespace sluice::client
