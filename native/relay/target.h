// SPDX-License-Identifier: Apache-2.0
// The relay's connection to the GPU node: dialled, under TLS if the node wants it, and opened with
// the session's one-time key. Where this host and the node have RDMA both agree on it beside the
// connection, and the client's bytes go that way.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "channel/opening.h"
#include "channel/rdma_opening.h"
#include "channel/resumption.h"
#include "channel/stream.h"

namespace sluice::relay {

struct Target {
  std::string node, address, port;
  bool tls = false;
  std::string tls_name;  // the name in its certificate
  std::string ca;        // PEM; "": the machine's own
  std::vector<std::byte> request;
  std::shared_ptr<channel::RdmaDevice> rdma;  // null: none, because of:
  std::string why_no_rdma;

  std::string describe() const { return "node " + node + " (" + address + ":" + port + ")"; }
};

struct Connected {
  int socket = -1;
  std::unique_ptr<channel::Stream> stream;
  bool over_rdma = false;
  std::string way;  // for the log: by which device, or why not over RDMA
};

// A session that this host's client has already.
struct Resuming {
  uint64_t session_id = 0;
  channel::SessionKey key{};
};

// False: `opened` says why.
bool open_at(const Target& target, Connected* connected, channel::Opened* opened);

// Another connection for it, of that epoch. `by_rdma`: only if that is agreed.
channel::Resumed resume_at(const Target& target, const Resuming& session, uint32_t epoch,
                           bool by_rdma, Connected* connected, std::string* error);

}  // namespace sluice::relay
