// SPDX-License-Identifier: Apache-2.0
// A session that was opened over RDMA: whether it still goes that way, and how it comes back to it
// after it has gone on over TCP. Called by the channel's watcher, every few seconds; it asks the
// node for nothing while this machine's own port is down, and ever less often where it is in vain.
#pragma once

#include <cstdint>
#include <string>

#include "channel/rdma_opening.h"
#include "client/core/resume.h"

namespace sluice::client {

class RdmaWay {
 public:
  // `looking` is the present connection's (channel/rdma_opening.h), beside that socket.
  RdmaWay(channel::RdmaChoice choice, Dial dial, SessionProof session, channel::RdmaLook looking,
          int socket);
  void look(channel::ResumableStream* stream);

 private:
  const channel::RdmaChoice choice_;
  const Dial dial_;
  const SessionProof session_;
  channel::RdmaLook looking_;  // empty: it goes over TCP
  int socket_;                 // beside it
  int64_t begun_at_, next_at_ = 0;
  int64_t pause_;
};

}  // namespace sluice::client
