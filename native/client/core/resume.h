// SPDX-License-Identifier: Apache-2.0
// Going on with a session over another connection: over TCP or vsock the client dials and proves
// who it is (channel/resumption.h), in a slot it waits for the relay that its host brings. The
// stream says the rest (channel/resumable_stream.h). Tried again and again, for as long as the
// session allows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "channel/rdma_opening.h"
#include "channel/region_stream.h"
#include "channel/resumable_stream.h"
#include "channel/resumption.h"

namespace sluice::client {

using channel::Resumed;
using NewConnection = std::unique_ptr<channel::ResumableStream::Connection>;

// Where a session is, over TCP.
struct SessionAddress {
  std::string address, port;
  bool tls = false;
  std::string tls_name, ca_file;
};

// What proves that a session is ours.
struct SessionProof {
  uint64_t session_id = 0;
  std::string key;  // the one-time key with which it was opened
};

// A connection as the ticket wants it: plain, or under TLS. nullptr with `error`; `seconds` is how
// long it may take.
NewConnection connect_to(const SessionAddress& where, int seconds, std::string* error);

// Over what `dial` connects. kNever: `error` is why the session is over.
using Dial = std::function<NewConnection(std::string* error)>;
Resumed resume_by(const Dial& dial, const SessionProof& session, channel::ResumableStream* stream,
                  std::string* error);

// The same over RDMA beside what is dialled, where both ends have it. False: the session's present
// connection stays, unless the new one broke as it began; then another follows as ever. `looking`
// is set as rdma_stream() says.
bool resume_over_rdma(const Dial& dial, const SessionProof& session,
                      channel::ResumableStream* stream, const channel::RdmaChoice& choice,
                      channel::RdmaLook* looking, std::string* error);

// A subflow beside the connection with that epoch, likewise. False: there is none, and `error` says
// why; the session goes on without it.
bool open_subflow(const Dial& dial, const SessionProof& session, channel::ResumableStream* stream,
                  uint32_t epoch, uint32_t number, std::string* error);

// Over the next connection that a relay has for the slot, if it comes within a second; `link` is
// the number of the last one. kNever: the host has ended the session, which the stream says.
Resumed resume_in_slot(const std::shared_ptr<channel::RegionEnd>& end, uint32_t* link,
                       channel::ResumableStream* stream, std::string* error);

// How long a session outlives its connection for a client, by what its OpenReply says.
channel::ResumableStream::Terms terms_of(uint32_t grace_seconds);

}  // namespace sluice::client
