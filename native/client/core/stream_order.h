// SPDX-License-Identifier: Apache-2.0
// What memory pools need to know of streams: where a stream's work stands, whether it has come past
// a point, and how one stream is made to wait for another. DeviceOrder answers from the session's
// account and the completion page; nothing but wait_idle() takes a round trip.
#pragma once

#include <cstdint>

#include "client/core/work_account.h"

namespace sluice::client {

class Session;
struct Device;
struct Stream;

// An event by which streams of a device are put in order, and which no program has; 0: there is no
// more, or the session is lost. Created on the node without a wait.
uint64_t make_order_event(Session& session, Device* device);

class StreamOrder {
 public:
  virtual ~StreamOrder() = default;
  virtual StreamPoint point(Stream* stream) = 0;
  // Whether all of it is known to be done.
  virtual bool passed(Stream* stream, StreamPoint point) = 0;
  // Has the stream make known that it came here, for a later passed(). May do nothing.
  virtual void probe(Stream* stream) = 0;
  // Everything that `later` gets from now on waits for all that `earlier` has. False: the session
  // is lost.
  virtual bool follow(Stream* later, Stream* earlier) = 0;
  // Returns when the device has nothing left to do, and knows it.
  virtual bool wait_idle() = 0;
};

class DeviceOrder : public StreamOrder {
 public:
  DeviceOrder(Session& session, Device& device) : session_(session), device_(device) {}
  StreamPoint point(Stream* stream) override;
  bool passed(Stream* stream, StreamPoint point) override;
  void probe(Stream* stream) override;
  bool follow(Stream* later, Stream* earlier) override;
  bool wait_idle() override;

 private:
  Session& session_;
  Device& device_;
  uint64_t event_ = 0;  // an event of its own, minted at first use
};

}  // namespace sluice::client
