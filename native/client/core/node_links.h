// SPDX-License-Identifier: Apache-2.0
// The connections between the nodes of a session, worker to worker (native/worker/node_link.h):
// which there are, and the order of what goes over them. A transfer has two ends, each a command to
// one of the nodes. Both are sent under one lock, so that all transfers have one order on all nodes
// and none waits for a later one: streams that wait for one another natively may do so here.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace sluice::client {

class Session;
struct Device;

class NodeLinks {
 public:
  explicit NodeLinks(Session& session) : session_(session) {}

  // Whether the nodes of these devices are connected; has them connect the first time that it is
  // asked, which takes a few round trips. What is lost stays so.
  bool between(const Device& a, const Device& b);
  // A node, `by`, says that its link to that of the other device is over. May be called while an
  // answer is read.
  void lost(uint32_t by, const Device& other);
  // What the other node was to send or to be sent may not have come, and it need not know yet: it
  // hears of the end before anything that a node has answered is believed.
  void settle();

  // Of the other node's devices, by which each node's worker knows its links.
  uint64_t peer(const Device& of) const;
  // For whoever sends the two ends of a transfer, which this numbers.
  class Pairing {
   public:
    explicit Pairing(NodeLinks& links) : lock_(links.pairing_), transfer(++links.transfers_) {}

   private:
    std::lock_guard<std::mutex> lock_;

   public:
    const uint64_t transfer;
  };

 private:
  bool open(const Device& a, const Device& b);
  const Device* first_of(uint32_t node) const;
  bool tell(const Device& at, const Device& other);

  Session& session_;
  std::mutex opening_, pairing_, settling_;
  uint64_t transfers_ = 0;                               // under pairing_
  std::atomic<bool> unsettled_{false};                   // something is in `over_`, or was just now
  std::mutex mutex_;                                     // of:
  std::map<std::pair<uint32_t, uint32_t>, bool> links_;  // by node, the lower first
  std::vector<std::pair<const Device*, const Device*>> over_;  // who said so, and the other end
};

}  // namespace sluice::client
