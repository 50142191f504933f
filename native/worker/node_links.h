// SPDX-License-Identifier: Apache-2.0
// The links of a session whose client has vGPUs of other nodes, too: one to each of those nodes'
// workers, made when the client asks for it. The servers make the connections and hand them over.
// Of two nodes the one with the later vGPUs dials.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "worker/node_link.h"

namespace sluice::worker {

class NodeLinks {
 public:
  // Has the server dial: false: it is not there.
  using Ask = std::function<bool(uint32_t peer, uint32_t epoch)>;
  NodeLinks(Session& session, Ask ask) : session_(session), ask_(std::move(ask)) {}

  // The link to the node of which the client's vGPU `peer` is the first; nullptr: it is none of the
  // other nodes'.
  NodeLink* at(uint64_t peer);
  // By which all of them move bytes, loaded when the session opens: later, a driver that loads code
  // waits for streams, and the program may have one that waits for what only it can do. nullptr
  // with `why`: it cannot be.
  LinkKernel* kernel(std::string* why);
  // The session's GPU has failed.
  void fail();
  // There is another server, which knows nothing of what the last one was asked.
  void ask_again();

 private:
  Session& session_;
  const Ask ask_;
  std::mutex kernel_mutex_;
  bool tried_ = false;
  std::unique_ptr<LinkKernel> kernel_;
  std::string no_kernel_;
  std::mutex mutex_;
  std::map<uint32_t, std::unique_ptr<NodeLink>> links_;
};

}  // namespace sluice::worker
