// SPDX-License-Identifier: Apache-2.0
#include "relay/target.h"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "channel/dial.h"
#include "tls/client_handshake.h"
#include "tls/record_stream.h"
#include "wire/protocol.h"

namespace sluice::relay {

namespace {

constexpr int kConnectSeconds = 10, kAgainSeconds = 5, kAnswerAgainSeconds = 10;
constexpr int kOpenSeconds = 120;  // a worker may have to be started first

std::unique_ptr<channel::Stream> secure(int socket, const Target& target, int seconds,
                                        std::string* error) {
  if (!target.tls) return std::make_unique<channel::PlainStream>(socket);
  const std::string name = target.tls_name.empty() ? target.address : target.tls_name;
  const auto client =
      tls::Client::connect(socket, tls::Peer{name, "", target.ca}, tls::in_seconds(seconds), error);
  tls::Session session;
  if (!client || !client->take_session(&session, error)) return nullptr;
  return tls::open_stream(socket, session, error);
}

bool connect_to(const Target& target, int seconds, Connected* connected, std::string* error) {
  const int s = channel::dial(target.address, target.port, tls::in_seconds(seconds), error);
  if (s < 0) {
    *error = "the data port of " + target.describe() +
             " cannot be reached from this host: " + *error +
             "; look at [server] advertise_addr there, and at firewalls between";
    return false;
  }
  connected->stream = secure(s, target, seconds, error);
  if (connected->stream) {
    connected->socket = s;
    return true;
  }
  *error = "the data port of " + target.describe() + ": " + *error;
  ::close(s);
  return false;
}

void close(Connected* connected) {
  connected->stream.reset();
  ::close(std::exchange(connected->socket, -1));
}

// The client's request, but that whether it takes RDMA is this host's to say: its bytes go through
// the slot.
std::vector<std::byte> request_of(const Target& target) {
  std::vector<std::byte> request = target.request;
  wire::OpenSession asked;
  std::memcpy(&asked, request.data(), sizeof asked);
  asked.flags &= ~uint32_t{wire::kTakesRdma};
  if (target.rdma) asked.flags |= wire::kTakesRdma;
  std::memcpy(request.data(), &asked, sizeof asked);
  return request;
}

// Puts RDMA in the place of the connection's stream where the node agrees. False: the connection is
// lost.
bool move_to_rdma(const Target& target, const wire::RdmaTerms& offer, Connected* connected) {
  std::shared_ptr<channel::RdmaConnection> end;
  if (!channel::answer_rdma_offer(connected->stream.get(), connected->socket, offer, target.rdma,
                                  target.why_no_rdma, &end, &connected->way))
    return false;
  if (!end) return true;
  connected->way = channel::describe_rdma(*end);
  connected->stream = channel::rdma_stream(connected->socket, std::move(end));
  connected->over_rdma = true;
  return true;
}

}  // namespace

bool open_at(const Target& target, Connected* connected, channel::Opened* opened) {
  if (!connect_to(target, kConnectSeconds, connected, &opened->error)) return false;
  channel::set_patience(connected->socket, kOpenSeconds);
  if (channel::open_over(connected->stream.get(), request_of(target), target.describe(), opened)) {
    channel::set_patience(connected->socket, 0);
    wire::RdmaTerms offer;
    connected->way = target.rdma ? "the node does not know it" : target.why_no_rdma;
    if (!channel::find_rdma_offer(opened->reply, &offer)) return true;
    // The client shall not learn where the node's end of it is.
    channel::remove_rdma_offer(&opened->reply);
    if (move_to_rdma(target, offer, connected)) return true;
    opened->error = target.describe() + ": the connection was lost while RDMA was agreed";
  }
  close(connected);
  return false;
}

channel::Resumed resume_at(const Target& target, const Resuming& session, uint32_t epoch,
                           bool by_rdma, Connected* connected, std::string* error) {
  if (!connect_to(target, kAgainSeconds, connected, error)) return channel::Resumed::kNotNow;
  channel::set_patience(connected->socket, kAnswerAgainSeconds);
  channel::Resumed done =
      channel::ask_to_resume(connected->stream.get(), session.key, session.session_id, epoch, error,
                             {.subflow = {}, .rdma = by_rdma});
  channel::set_patience(connected->socket, 0);
  if (done == channel::Resumed::kYes && by_rdma) {
    wire::RdmaTerms offer;
    if (!channel::hear_rdma_offer(connected->stream.get(), connected->socket, &offer) ||
        !move_to_rdma(target, offer, connected) || !connected->over_rdma)
      done = channel::Resumed::kNotNow;
  }
  if (done != channel::Resumed::kYes) close(connected);
  return done;
}

}  // namespace sluice::relay
