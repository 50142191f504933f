// SPDX-License-Identifier: Apache-2.0
// The way from one session to another of its trust domain: things under random keys, which the
// server keeps and hands on (docs/protocol.md). Handlers of the executor call it and may wait for
// seconds; the server alone decides who gets what.
#pragma once

#include <cstdint>
#include <string>

#include "worker/session.h"

namespace sluice::worker {

struct SharedThing {
  std::string kind;  // "memory" or "events"
  std::string gpu;   // UUID of the GPU that has it
  uint64_t bytes = 0;
  int fd = -1;  // the receiver closes it
};

class Broker {
 public:
  virtual ~Broker() = default;
  // Offers a thing under a key; keeps a copy of the descriptor. False with the reason.
  virtual bool share(const wire::ShareKey& key, const SharedThing& thing, std::string* why) = 0;
  virtual void unshare(const wire::ShareKey& key) = 0;
  // What somebody of the same domain shared under the key.
  virtual bool fetch(const wire::ShareKey& key, const std::string& kind, SharedThing* thing,
                     std::string* why) = 0;
};

std::string key_text(const wire::ShareKey& key);
wire::ShareKey random_key();

// The mapping at `address` is given up: nobody can open it from now on. The caller holds the
// vGPU's mutex.
void end_share(Session& s, Vgpu& v, uint64_t address);

}  // namespace sluice::worker
