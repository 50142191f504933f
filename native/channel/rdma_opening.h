// SPDX-License-Identifier: Apache-2.0
// How client and worker agree on an RDMA connection, over the connection with which the session was
// opened (docs/protocol.md, "RDMA"): the worker's end stands behind the session's record, the
// client answers with its own, each shows the other that it is reached, and the worker says whether
// it is so. Whatever is in the way of that, the session goes on over the connection that it has.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "channel/rdma_device.h"
#include "channel/stream.h"
#include "wire/protocol.h"

namespace sluice::channel {

class RdmaConnection;

// An end that is not there, and why.
wire::RdmaTerms no_rdma(const std::string& why);

// The worker's. What it puts behind the record, or says alone where the session goes on; `end`
// stays empty where there is none.
wire::RdmaTerms offer_rdma(const std::shared_ptr<RdmaDevice>& device, const std::string& why_none,
                           std::shared_ptr<RdmaConnection>* end);
// Alone, over a connection that is to follow another. False: that is lost.
bool say_rdma_offer(Stream* over, const wire::RdmaTerms& offer);
// After that: until both sides know. `end` is emptied, with why, where the session goes on without.
// False: the connection to the client is lost.
bool settle_rdma_offer(Stream* over, int socket, std::shared_ptr<RdmaConnection>* end,
                       std::string* why);

// The client's: whether terms stand behind the record of an opening reply.
bool find_rdma_offer(std::span<const std::byte> reply, wire::RdmaTerms* offer);
// One that was said alone. False: it was not.
bool hear_rdma_offer(Stream* over, int socket, wire::RdmaTerms* offer);
// Takes the offer out of the reply again: what it names is for this end alone.
void remove_rdma_offer(std::vector<std::byte>* reply);
// Answers the offer. False: the connection is lost. `end` is empty, with why, where it is to be
// done without: also where there is no device, because of `why_none`.
bool answer_rdma_offer(Stream* over, int socket, const wire::RdmaTerms& offer,
                       const std::shared_ptr<RdmaDevice>& device, const std::string& why_none,
                       std::shared_ptr<RdmaConnection>* end, std::string* why);

// What is to be done every few seconds by one who may be idle. It hears the device, ends the socket
// of a connection that is over, as a reader would, and lets the device go. False: it is over, also
// because the session `left` it.
using RdmaLook = std::function<bool(bool left)>;
// What carries the session from here on: a Stream that is over when `socket` is.
std::unique_ptr<Stream> rdma_stream(int socket, std::shared_ptr<RdmaConnection> end,
                                    RdmaLook* looking = nullptr);

// For who waits on a descriptor rather than in read(): what is readable once something comes after
// rdma_arm(), and so on.
int rdma_descriptor(const RdmaConnection& end);
void rdma_arm(RdmaConnection* end);
// Until what was written is there, or a second has passed: before the process ends.
void rdma_flush(RdmaConnection* end);

// The next large part that comes is to be written there (RdmaConnection::grant()).
bool rdma_grant(RdmaConnection* end, std::byte* at, size_t bytes);

// How much bulk was copied on neither way, for a line in the log; "": none.
std::string describe_bulk(const RdmaConnection& end);

// The device, the port and the other side's GID, for a line in the log.
std::string describe_rdma(const RdmaConnection& end);

}  // namespace sluice::channel
