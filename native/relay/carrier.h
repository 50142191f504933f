// SPDX-License-Identifier: Apache-2.0
// What carries the bytes of a relayed session: from a slot (pump.h) or from a connection of the
// client's (stream_pump.h), to the connection to its node and back. It understands nothing of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "channel/stream.h"
#include "process/control.h"

namespace sluice::relay {

class Carrier {
 public:
  Carrier() = default;
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;
  virtual ~Carrier() = default;

  // The connection to the node; once, before anything else.
  virtual void carry(std::unique_ptr<channel::Stream> stream, int socket) = 0;
  // False: there are no threads to be had.
  [[nodiscard]] virtual bool start() = 0;
  // The session is over for the client.
  virtual void end(const process::End& why, uint32_t error) = 0;
  // Asked every few seconds: gives a connection up whose node has acknowledged nothing for so long.
  virtual void look() = 0;

  uint64_t bytes_in() const { return bytes_in_.load(std::memory_order_relaxed); }  // of the client
  uint64_t bytes_out() const { return bytes_out_.load(std::memory_order_relaxed); }  // to it

 protected:
  std::atomic<uint64_t> bytes_in_{0}, bytes_out_{0};
};

// How long a node may acknowledge nothing where the session ends with its connection; where another
// may follow it is channel::kSilentMs.
inline constexpr uint32_t kUnheardMs = 60'000;

}  // namespace sluice::relay
