// SPDX-License-Identifier: Apache-2.0
// What memory pools need to know of streams: where a stream's work stands, whether it has come past
// a point, and how one stream is made to wait for another. DeviceOrder answers from the session's
// account and the completion page, SessionOrder from the account for the streams of all devices;
// nothing but wait_idle() takes a round trip.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

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
  // Who owns what a stream that goes had freed: nobody's stream, and only asked about points of
  // the whole device.
  virtual Stream* heir(Stream* stream);
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

// Of all of a session's devices. Marks are under the lock of a device's own pools, so none is asked
// for here.
class SessionOrder : public StreamOrder {
 public:
  explicit SessionOrder(Session& session);
  StreamPoint point(Stream* stream) override;
  bool passed(Stream* stream, StreamPoint point) override;
  void probe(Stream*) override {}
  // False for streams of two devices, too.
  bool follow(Stream* later, Stream* earlier) override;
  bool wait_idle() override;
  Stream* heir(Stream* stream) override;

 private:
  Session& session_;
  std::vector<std::unique_ptr<DeviceOrder>> orders_;  // by device
};

}  // namespace sluice::client
