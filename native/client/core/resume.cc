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
constexpr size_t kHearAfter = 512 << 10;
constexpr uint64_t kLinkSeconds = 1, kLinkPauseNs = 2'000'000;

// A connection on which both sides have proved that they know the session: the next one, whose
// `epoch` is said here, or that subflow of the one with this epoch. nullptr: `done` and `error` say
// what that means.
NewConnection prove_by(const Dial& dial, const SessionProof& session,
                       channel::ResumableStream* stream, const channel::ResumeAs& as,
                       uint32_t* epoch, Resumed* done, std::string* error) {
  channel::SessionKey key;
  *done = Resumed::kNever;
  if (!channel::make_session_key(session.key, session.session_id, &key, error)) {
    if (!as.subflow)
      *error = "its connection broke, and another cannot be made without OpenSSL: install it";
    return nullptr;
  }
  *done = Resumed::kNotNow;
  auto connection = dial(error);
  if (!connection) return nullptr;
  channel::set_patience(connection->socket, kAnswerAgainSeconds);
  if (!as.subflow) *epoch = stream->next_epoch();
  *done =
      channel::ask_to_resume(connection->stream.get(), key, session.session_id, *epoch, error, as);
  if (*done != Resumed::kYes) return nullptr;
  channel::set_patience(connection->socket, 0);
  return connection;
}

}  // namespace

channel::ResumableStream::Terms terms_of(uint32_t grace_seconds) {
  channel::expect_the_end();
  channel::ResumableStream::Terms terms{grace_seconds * kSecond, grace_seconds * kSecond};
  terms.silent_ns = channel::kSilentNs;
  terms.hear_after = kHearAfter;
  terms.looks_ns = channel::kLooksForAnswer;
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
  uint32_t epoch = 0;
  Resumed done;
  auto connection = prove_by(dial, session, stream, {}, &epoch, &done, error);
  if (!connection) return done;
  return stream->resume(epoch, std::move(connection)) ? Resumed::kYes : Resumed::kNotNow;
}

bool resume_over_rdma(const Dial& dial, const SessionProof& session,
                      channel::ResumableStream* stream, const channel::RdmaChoice& choice,
                      channel::RdmaLook* looking, std::string* error) {
  const auto device = channel::RdmaDevice::open(choice, error);
  if (!device) return false;
  uint32_t epoch = 0;
  Resumed done;
  auto connection =
      prove_by(dial, session, stream, {.subflow = {}, .rdma = true}, &epoch, &done, error);
  if (!connection) return false;
  wire::RdmaTerms offer;
  std::shared_ptr<channel::RdmaConnection> end;
  *error = "the connection was lost while RDMA was agreed";
  if (!channel::hear_rdma_offer(connection->stream.get(), connection->socket, &offer) ||
      !channel::answer_rdma_offer(connection->stream.get(), connection->socket, offer, device, "",
                                  &end, error) ||
      !end)
    return false;
  connection->stream = channel::rdma_stream(connection->socket, std::move(end), looking);
  *error = "the connection broke as it began";
  if (stream->resume(epoch, std::move(connection))) return true;
  *looking = {};
  return false;
}

bool open_subflow(const Dial& dial, const SessionProof& session, channel::ResumableStream* stream,
                  uint32_t epoch, uint32_t number, std::string* error) {
  Resumed done;
  auto connection = prove_by(dial, session, stream, {.subflow = number}, &epoch, &done, error);
  return connection && stream->take_subflow(epoch, number, std::move(connection));
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
