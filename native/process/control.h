// SPDX-License-Identifier: Apache-2.0
// The side of worker, relay and doorbell of the control protocols (docs/protocol.md): text packets
// on a listening Unix socket, one server at a time, which may go away and come back. Owns the
// connection and the descriptors that came with a message until they are taken. What may be said
// stands in native/api/control.yaml.
#pragma once

#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wire/control_messages.h"
#include "wire/protocol.h"

namespace sluice::process {

struct Message {
  std::string verb;
  std::map<std::string, std::string> values;
  std::vector<int> descriptors;  // closed by whoever takes the message and does not use them

  const std::string& text(const std::string& key) const;
  // False when the key is missing or no number. Its bounds are the registry's: fault_of() has seen
  // to them.
  bool number(const std::string& key, uint64_t* value) const;
  // The one that the field "descriptors" names so: it lists, in order, what came. -1: none.
  int descriptor(std::string_view name) const;
};

// Why a session is over: for servers to decide by, and for people.
struct End {
  wire::EndCause cause;
  std::string reason;

  // As an order to end has it; what it does not say is the server's doing.
  static End ordered(const Message& m);
  // As `ended` says it.
  void write(std::map<std::string, std::string>& values) const;
};

// What is wrong with a message, as it is told to whoever sent it; empty when nothing is.
std::string fault_of(std::span<const wire::MessageSpec> expected, const Message& message);

class Control {
 public:
  // `expected`: what may come, one of the tables of wire/control_messages.h.
  Control(int listener, std::span<const wire::MessageSpec> expected)
      : listener_(listener), expected_(expected) {}

  int listener() const { return listener_; }
  int connection() const { return connection_; }
  // A server connects; it replaces the one before.
  void accept();
  // One packet, if there is one: never waits. False: nothing usable came (the connection may be
  // closed now, or the server has been told what was wrong).
  bool receive(Message* message);
  // False: dropped, as no server is connected or it does not read. `descriptors` stay the caller's.
  bool send(const std::string& verb, const std::map<std::string, std::string>& values,
            std::span<const int> descriptors = {});
  // With one; -1: with none.
  bool send(const std::string& verb, const std::map<std::string, std::string>& values,
            int descriptor) {
    return send(verb, values, std::span<const int>(&descriptor, descriptor >= 0 ? 1 : 0));
  }

 private:
  void disconnect();

  int listener_;
  std::span<const wire::MessageSpec> expected_;
  int connection_ = -1;
  std::mutex send_mutex_;
};

}  // namespace sluice::process
