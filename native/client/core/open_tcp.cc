// SPDX-License-Identifier: Apache-2.0
// Opening a session over the network: ask the controllers for a ticket (controller_request.h),
// connect to the server that it names, under TLS if it says so, and present the one-time key.
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "channel/dial.h"
#include "channel/opening.h"
#include "client/core/controller_request.h"
#include "client/core/open_channel.h"
#include "client/core/stream_channel.h"
#include "tls/client_handshake.h"
#include "tls/record_stream.h"

namespace sluice::client {

namespace {

constexpr int kConnectSeconds = 10;
constexpr int kOpenSeconds = 120;  // a worker may have to be started first

// The bytes of the connection from here on; nullptr with `error`.
std::unique_ptr<channel::Stream> secure(int socket, const Ticket& ticket, const Config& config,
                                        std::string* error) {
  if (!ticket.tls) return std::make_unique<channel::PlainStream>(socket);
  const tls::Peer peer{ticket.name.empty() ? ticket.address : ticket.name, config.ca_file};
  const auto client = tls::Client::connect(socket, peer, tls::in_seconds(kConnectSeconds), error);
  tls::Session session;
  if (!client || !client->take_session(&session, error)) return nullptr;
  return tls::open_stream(socket, session, error);
}

}  // namespace

std::unique_ptr<Channel> open_tcp(const Config& config, wire::OpenSession request,
                                  Refusal* refusal) {
  std::string* error = &refusal->text;
  request.channel = wire::ChannelKind::kTcp;
  Ticket ticket;
  if (!ask_for_session(config, request, &ticket, refusal)) return nullptr;
  std::memcpy(request.key, ticket.key.data(), ticket.key.size());
  const std::string server = "sluice-server at " + ticket.address + ":" + ticket.port;
  const int s = channel::dial(ticket.address, ticket.port, tls::in_seconds(kConnectSeconds), error);
  if (s < 0) {
    *error = "no " + server + ": " + *error;
    return nullptr;
  }
  auto stream = secure(s, ticket, config, error);
  if (!stream) {
    *error = server + ": " + *error;
  } else {
    channel::set_patience(s, kOpenSeconds);
    channel::Opened opened;
    if (channel::open_over(stream.get(), std::as_bytes(std::span(&request, 1)), server, &opened)) {
      channel::set_patience(s, 0);
      return std::make_unique<StreamChannel>(s, std::move(stream), std::move(opened.reply));
    }
    *error = opened.error;
    if (opened.status) refusal->status = opened.status;
  }
  stream.reset();
  ::close(s);
  return nullptr;
}

}  // namespace sluice::client
