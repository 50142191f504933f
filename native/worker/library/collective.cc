// SPDX-License-Identifier: Apache-2.0
// Calls that wait for other ranks: NCCL's, which are those that a group may hold.
#include <string_view>

#include "worker/graph_size.h"
#include "worker/library/call.h"

namespace sluice::worker {

// What those who take part in it count it as.
Collectives::One LibraryCall::counted_as() const {
  constexpr int kPeer = 3;  // of ncclSend and ncclRecv
  const std::string_view name = f_.name;
  const auto peer = static_cast<int>(sent_[kPeer]);
  if (name == "ncclSend") return session_.collectives.sent(main_id_, peer);
  if (name == "ncclRecv") return session_.collectives.received(main_id_, peer);
  return session_.collectives.collective(main_id_);
}

// What is captured counts with each launch of its graph.
void LibraryCall::count(bool captured) {
  const Collectives::One one = counted_as();
  if (!captured) {
    counted_ = one;
    session_.collectives.issue(one);
  } else if (const GraphRef graph = captured_on(session_, stream_)) {
    Collectives::add(&graph->collectives, one);
  }
}

void LibraryCall::settle_count(int64_t status) {
  constexpr int64_t kInProgress = 7;
  const bool well = status == 0 || status == kInProgress;
  if (!well && counted_.communicator != 0) session_.collectives.take_back({{counted_, 1}});
  if (well && ends() != 0) session_.collectives.ended(ends());
}

}  // namespace sluice::worker
