// SPDX-License-Identifier: Apache-2.0
// Opening a session over the network: ask the controllers for a ticket (controller_request.h),
// connect to the server that it names, under TLS if it says so, and present the one-time key.
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "client/core/controller_request.h"
#include "client/core/dial.h"
#include "client/core/tcp_channel.h"
#include "tls/client_handshake.h"
#include "tls/record_stream.h"
#include "wire/session_record.h"

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

bool read_exact(channel::Stream* stream, void* data, size_t n) {
  char* at = static_cast<char*>(data);
  while (n > 0) {
    const iovec part{at, n};
    const ssize_t got = stream->read(&part, 1);
    if (got <= 0) return false;
    at += got;
    n -= static_cast<size_t>(got);
  }
  return true;
}

// Presents the request and reads the opening reply with its record.
bool present(channel::Stream* stream, const wire::OpenSession& request, const std::string& server,
             std::vector<std::byte>* reply, Refusal* refusal) {
  std::string* error = &refusal->text;
  reply->resize(sizeof(wire::OpenReply));
  iovec part{const_cast<wire::OpenSession*>(&request), sizeof request};
  if (!stream->write(&part, 1) || !read_exact(stream, reply->data(), reply->size()) ||
      reinterpret_cast<wire::OpenReply*>(reply->data())->header.function != wire::kOpenReply) {
    *error = server + " closed the connection before it answered";
    return false;
  }
  auto* head = reinterpret_cast<wire::OpenReply*>(reply->data());
  if (head->status != 0) {
    head->message[sizeof head->message - 1] = 0;
    *error = head->message;
    refusal->status = head->status;
    return false;
  }
  wire::SessionRecord record;
  bool ok = read_exact(stream, &record, sizeof record) && record.record_bytes >= sizeof record &&
            record.record_bytes < (1u << 20);
  if (ok) {
    reply->resize(sizeof(wire::OpenReply) + record.record_bytes);
    std::memcpy(reply->data() + sizeof(wire::OpenReply), &record, sizeof record);
    ok = read_exact(stream, reply->data() + sizeof(wire::OpenReply) + sizeof record,
                    record.record_bytes - sizeof record);
  }
  if (!ok) *error = server + " broke off its answer";
  return ok;
}

void set_patience(int socket, int seconds) {
  const timeval most{seconds, 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
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
  const int s = dial(ticket.address, ticket.port, tls::in_seconds(kConnectSeconds), error);
  if (s < 0) {
    *error = "no " + server + ": " + *error;
    return nullptr;
  }
  auto stream = secure(s, ticket, config, error);
  std::vector<std::byte> reply;
  if (!stream) {
    *error = server + ": " + *error;
  } else {
    set_patience(s, kOpenSeconds);
    if (present(stream.get(), request, server, &reply, refusal)) {
      set_patience(s, 0);
      return std::make_unique<TcpChannel>(s, std::move(stream), std::move(reply));
    }
  }
  stream.reset();
  ::close(s);
  return nullptr;
}

}  // namespace sluice::client
