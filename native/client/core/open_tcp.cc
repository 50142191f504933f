// SPDX-License-Identifier: Apache-2.0
// Opening a session over the network: ask the controllers for a ticket (controller_request.h),
// connect to the server that it names, under TLS if it says so, and present the one-time key.
#include <cstring>
#include <utility>

#include "channel/dial.h"
#include "channel/opening.h"
#include "channel/rdma_opening.h"
#include "client/core/controller_request.h"
#include "client/core/log.h"
#include "client/core/open_channel.h"
#include "client/core/resume_tcp.h"
#include "client/core/stream_channel.h"

namespace sluice::client {

namespace {

constexpr int kConnectSeconds = 10;
constexpr int kOpenSeconds = 120;  // a worker may have to be started first

using Connection = channel::ResumableStream::Connection;

// Puts RDMA in the place of the connection's stream where both sides have it; the connection stays
// what tells of the end. False: there is no session, `error` says why.
bool move_to_rdma(const Config& config, Rdma rdma, std::span<const std::byte> reply,
                  Connection* connection, std::function<void()>* looking, std::string* error) {
  std::string why = "its server does not know it, or has [server] enable_rdma = false";
  std::shared_ptr<channel::RdmaConnection> end;
  wire::RdmaTerms offer;
  channel::RdmaChoice choice;
  if (!channel::read_rdma_choice(config.ibverbs_device, &choice)) {
    why = "ibverbs_device is \"" + config.ibverbs_device + "\", and NAME[:PORT[:GID]] is wanted";
    offer = {};
  }
  if (channel::find_rdma_offer(reply, &offer) &&
      !channel::answer_rdma_offer(connection->stream.get(), connection->socket, offer, choice, &end,
                                  &why)) {
    *error = "the connection was lost while RDMA was agreed";
    return false;
  }
  if (end) {
    log_line(LogLevel::kInfo, "the session goes over RDMA, by " + channel::describe_rdma(*end));
    connection->stream = channel::rdma_stream(connection->socket, std::move(end), looking);
    return true;
  }
  if (rdma == Rdma::kOnly) {
    *error = "SLUICE_CHANNEL is rdma, and there is no RDMA to the session's node: " + why;
    return false;
  }
  log_line(LogLevel::kInfo, "the session goes over TCP, as there is no RDMA to its node: " + why);
  return true;
}

}  // namespace

std::unique_ptr<Channel> open_tcp(const Config& config, wire::OpenSession request, Rdma rdma,
                                  Refusal* refusal) {
  std::string* error = &refusal->text;
  request.channel = wire::ChannelKind::kTcp;
  Ticket ticket;
  if (!ask_for_session(config, request, &ticket, refusal)) return nullptr;
  std::memcpy(request.key, ticket.key.data(), ticket.key.size());
  request.flags |= wire::kResumable;
  if (rdma != Rdma::kNo) request.flags |= wire::kTakesRdma;
  SessionAddress where{.address = ticket.address,
                       .port = ticket.port,
                       .tls = ticket.tls,
                       .tls_name = ticket.name,
                       .ca_file = config.ca_file,
                       .key = ticket.key};
  const std::string server = "sluice-server at " + ticket.address + ":" + ticket.port;
  auto connection = connect_to(where, kConnectSeconds, error);
  if (!connection) {
    *error = "no session with " + server + ": " + *error;
    return nullptr;
  }
  channel::set_patience(connection->socket, kOpenSeconds);
  channel::Opened opened;
  if (!channel::open_over(connection->stream.get(), std::as_bytes(std::span(&request, 1)), server,
                          &opened)) {
    *error = opened.error;
    if (opened.status) refusal->status = opened.status;
    return nullptr;
  }
  channel::set_patience(connection->socket, 0);
  std::function<void()> looking;
  if (rdma != Rdma::kNo &&
      !move_to_rdma(config, rdma, opened.reply, connection.get(), &looking, error))
    return nullptr;
  wire::OpenReply reply;
  std::memcpy(&reply, opened.reply.data(), sizeof reply);
  if (reply.network_grace_seconds == 0)
    return std::make_unique<StreamChannel>(std::exchange(connection->socket, -1),
                                           std::move(connection->stream), std::move(opened.reply));
  where.session_id = reply.session_id;
  const int64_t grace_ns = reply.network_grace_seconds * 1'000'000'000ll;
  return std::make_unique<StreamChannel>(
      std::make_unique<channel::ResumableStream>(
          std::move(connection), channel::ResumableStream::Terms{grace_ns, grace_ns}),
      std::move(opened.reply),
      [where = std::move(where)](channel::ResumableStream* stream, std::string* trouble) {
        return resume_tcp(where, stream, trouble);
      },
      std::move(looking));
}

}  // namespace sluice::client
