// SPDX-License-Identifier: Apache-2.0
#include "relay/target.h"

#include <unistd.h>

#include <utility>

#include "channel/dial.h"
#include "tls/client_handshake.h"
#include "tls/record_stream.h"

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

}  // namespace

bool open_at(const Target& target, Connected* connected, channel::Opened* opened) {
  if (!connect_to(target, kConnectSeconds, connected, &opened->error)) return false;
  channel::set_patience(connected->socket, kOpenSeconds);
  if (channel::open_over(connected->stream.get(), target.request, target.describe(), opened)) {
    channel::set_patience(connected->socket, 0);
    return true;
  }
  close(connected);
  return false;
}

channel::Resumed resume_at(const Target& target, const Resuming& session, uint32_t epoch,
                           Connected* connected, std::string* error) {
  if (!connect_to(target, kAgainSeconds, connected, error)) return channel::Resumed::kNotNow;
  channel::set_patience(connected->socket, kAnswerAgainSeconds);
  const channel::Resumed done = channel::ask_to_resume(connected->stream.get(), session.key,
                                                       session.session_id, epoch, error);
  channel::set_patience(connected->socket, 0);
  if (done != channel::Resumed::kYes) close(connected);
  return done;
}

}  // namespace sluice::relay
