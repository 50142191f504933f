// SPDX-License-Identifier: Apache-2.0
// Opening a session over the network: ask the controllers for a ticket (controller_request.h),
// connect to the server that it names, under TLS if it says so, and present the one-time key. Where
// the vGPUs are of several nodes there is a ticket, and then a channel, for each.
#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "abi/cuda_driver.h"
#include "channel/dial.h"
#include "channel/opening.h"
#include "channel/rdma_opening.h"
#include "client/core/controller_request.h"
#include "client/core/end_notice.h"
#include "client/core/log.h"
#include "client/core/nodes_channel.h"
#include "client/core/open_channel.h"
#include "client/core/rdma_way.h"
#include "client/core/resume.h"
#include "client/core/stream_channel.h"

namespace sluice::client {

namespace {

constexpr int kConnectSeconds = 10, kAgainSeconds = 5;
constexpr int kOpenSeconds = 120;  // a worker may have to be started first

// Each is a thread's work at either end, while it copies.
uint32_t subflows_of(const Config& config) {
  constexpr uint32_t kMost = 4, kProcessors = 4;
  if (config.bulk_connections >= 0) return static_cast<uint32_t>(config.bulk_connections);
  const uint32_t worth = std::min(kMost, std::thread::hardware_concurrency() / kProcessors);
  return worth < 2 ? 0 : worth;
}

using Connection = channel::ResumableStream::Connection;

// Puts RDMA in the place of the connection's stream where both sides have it; the connection stays
// what tells of the end. False: there is no session, `error` says why.
bool move_to_rdma(const Config& config, Rdma rdma, std::span<const std::byte> reply,
                  channel::RdmaChoice* choice, Connection* connection, channel::RdmaLook* looking,
                  std::string* error) {
  std::string why = "its server does not know it, or has [server] enable_rdma = false";
  std::shared_ptr<channel::RdmaConnection> end;
  wire::RdmaTerms offer;
  std::string why_none;
  std::shared_ptr<channel::RdmaDevice> device;
  if (channel::read_rdma_choice(config.ibverbs_device, choice))
    device = channel::RdmaDevice::open(*choice, &why_none);
  else
    why_none =
        "ibverbs_device is \"" + config.ibverbs_device + "\", and NAME[:PORT[:GID]] is wanted";
  if (channel::find_rdma_offer(reply, &offer) &&
      !channel::answer_rdma_offer(connection->stream.get(), connection->socket, offer, device,
                                  why_none, &end, &why)) {
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

std::unique_ptr<Channel> connect(const Config& config, wire::OpenSession request,
                                 const Ticket& ticket, Rdma rdma, Refusal* refusal) {
  std::string* error = &refusal->text;
  std::memcpy(request.key, ticket.key.data(), ticket.key.size());
  if (rdma != Rdma::kNo) request.flags |= wire::kTakesRdma;
  SessionAddress where{.address = ticket.address,
                       .port = ticket.port,
                       .tls = ticket.tls,
                       .tls_name = ticket.name,
                       .ca_file = config.ca_file};
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
  channel::RdmaLook looking;
  channel::RdmaChoice choice;
  if (rdma != Rdma::kNo &&
      !move_to_rdma(config, rdma, opened.reply, &choice, connection.get(), &looking, error))
    return nullptr;
  wire::OpenReply reply;
  std::memcpy(&reply, opened.reply.data(), sizeof reply);
  if (reply.network_grace_seconds == 0)
    return std::make_unique<StreamChannel>(std::exchange(connection->socket, -1),
                                           std::move(connection->stream), std::move(opened.reply));
  const SessionProof session{reply.session_id, ticket.key};
  const bool moved = looking != nullptr;
  const auto dial = [where](std::string* trouble) {
    return connect_to(where, kAgainSeconds, trouble);
  };
  StreamChannel::Look look;
  if (moved) {
    const auto way =
        std::make_shared<RdmaWay>(choice, dial, session, std::move(looking), connection->socket);
    look = [way](channel::ResumableStream* stream) { way->look(stream); };
  }
  return std::make_unique<StreamChannel>(
      std::make_unique<channel::ResumableStream>(std::move(connection),
                                                 terms_of(reply.network_grace_seconds)),
      std::move(opened.reply),
      [dial, session](channel::ResumableStream* stream, std::string* trouble) {
        return resume_by(dial, session, stream, trouble);
      },
      StreamChannel::Subflows{moved ? 0 : subflows_of(config),
                              [dial, session](channel::ResumableStream* stream, uint32_t epoch,
                                              uint32_t number, std::string* trouble) {
                                return open_subflow(dial, session, stream, epoch, number, trouble);
                              }},
      std::move(look));
}

// By the tickets of one answer.
std::unique_ptr<Channel> join(const Config& config, const wire::OpenSession& request,
                              const std::vector<Ticket>& tickets, Rdma rdma, Refusal* refusal) {
  if (tickets.size() == 1) return connect(config, request, tickets[0], rdma, refusal);
  std::vector<NodesChannel::Node> nodes;
  for (const Ticket& ticket : tickets) {
    auto channel = connect(config, request, ticket, rdma, refusal);
    if (!channel) {
      refusal->text = "node " + ticket.node + " of " + std::to_string(tickets.size()) +
                      " that have the vGPUs: " + refusal->text;
      for (const auto& node : nodes) node.channel->close();  // its grant goes back at once
      return nullptr;
    }
    nodes.push_back({ticket.node, std::move(channel)});
  }
  g_several_sessions = true;
  return NodesChannel::join(std::move(nodes), &refusal->text);
}

}  // namespace

std::unique_ptr<Channel> open_tcp(const Config& config, wire::OpenSession request, Rdma rdma,
                                  Refusal* refusal) {
  request.channel = wire::ChannelKind::kTcp;
  for (bool again = false;; again = true) {
    std::vector<Ticket> tickets;
    if (!ask_for_session(config, request, &tickets, refusal)) return nullptr;
    refusal->status = Refusal().status;
    auto channel = join(config, request, tickets, rdma, refusal);
    // A controller that was killed behind its answer may have taken back what it gave.
    if (channel || again || refusal->status != CUDA_ERROR_NOT_PERMITTED) return channel;
    log_line(LogLevel::kInfo, refusal->text + "; the controller is asked for another");
  }
}

}  // namespace sluice::client
