// SPDX-License-Identifier: Apache-2.0
// The verbs objects of an RdmaConnection, for its own two files.
#pragma once

#include "channel/rdma_connection.h"
#include "channel/rdma_verbs.h"

namespace sluice::channel {

struct RdmaConnection::Objects {
  explicit Objects(const Verbs& v) : verbs(v) {}
  ~Objects();  // but for the domain, which memory still belongs to

  const Verbs& verbs;
  ibv_pd* domain = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* received = nullptr;
  ibv_cq* sent = nullptr;
  ibv_qp* queue_pair = nullptr;
  unsigned received_events = 0, sent_events = 0;  // not acknowledged yet
};

}  // namespace sluice::channel
