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

namespace sluice::client {

class Session;
struct Device;

class NodeLinks {
 public:
  explicit NodeLinks(Session& session) : session_(session) {}

  // Whether the nodes of these devices are connected; has them connect the first time that it is
  // asked, which takes a few round trips. What is lost stays so.
  bool between(const Device& a, const Device& b);
  // A node says that its link to another is over.
  void lost(uint32_t node, uint32_t other);

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

  Session& session_;
  std::mutex opening_, pairing_;
  uint64_t transfers_ = 0;                               // under pairing_
  std::mutex mutex_;                                     // of:
  std::map<std::pair<uint32_t, uint32_t>, bool> links_;  // by node, the lower first
};

}  // namespace sluice::client
