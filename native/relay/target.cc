// SPDX-License-Identifier: Apache-2.0
#include "relay/target.h"

#include <unistd.h>

#include "channel/dial.h"
#include "tls/client_handshake.h"
#include "tls/record_stream.h"

namespace sluice::relay {

namespace {

constexpr int kConnectSeconds = 10;
constexpr int kOpenSeconds = 120;  // a worker may have to be started first

std::unique_ptr<channel::Stream> secure(int socket, const Target& target, std::string* error) {
  if (!target.tls) return std::make_unique<channel::PlainStream>(socket);
  const std::string name = target.tls_name.empty() ? target.address : target.tls_name;
  const auto client = tls::Client::connect(socket, tls::Peer{name, "", target.ca},
                                           tls::in_seconds(kConnectSeconds), error);
  tls::Session session;
  if (!client || !client->take_session(&session, error)) return nullptr;
  return tls::open_stream(socket, session, error);
}

}  // namespace

bool connect_to(const Target& target, Connected* connected, channel::Opened* opened) {
  std::string* error = &opened->error;
  const int s = channel::dial(target.address, target.port, tls::in_seconds(kConnectSeconds), error);
  if (s < 0) {
    *error = "the data port of " + target.describe() +
             " cannot be reached from this host: " + *error +
             "; look at [server] advertise_addr there, and at firewalls between";
    return false;
  }
  auto stream = secure(s, target, error);
  if (!stream) *error = "the data port of " + target.describe() + ": " + *error;
  channel::set_patience(s, kOpenSeconds);
  if (stream && channel::open_over(stream.get(), target.request, target.describe(), opened)) {
    channel::set_patience(s, 0);
    connected->socket = s;
    connected->stream = std::move(stream);
    return true;
  }
  stream.reset();
  ::close(s);
  return false;
}

}  // namespace sluice::relay
