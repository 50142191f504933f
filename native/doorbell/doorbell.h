// SPDX-License-Identifier: Apache-2.0
// Watches the guests' regions (region.h): wakes workers whose guest rang, tells the server of
// guests that open or end a session, and writes the server's refusals into mailboxes. Holds nothing
// that cannot be learned again.
#pragma once

#include <poll.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "doorbell/region.h"
#include "process/control.h"

namespace sluice::doorbell {

using process::Message;

class Doorbell {
 public:
  explicit Doorbell(int listener) : control_(listener, wire::kDoorbellReceived) {}
  int run();

 private:
  void handle(Message& m);
  void add_bell(Message& m);
  // Waits for the server, a bell, or so long; takes what the bells said.
  void wait(uint64_t pause);
  bool watch(const Message& m, std::string* error);
  // True when the slot had something to say.
  bool scan(Region& r, uint32_t index, uint64_t now);
  bool report_open(Region& r, uint32_t index);
  void show(Slot& slot, const std::string& text);
  void refuse(Slot& slot);
  Slot* find(const Message& m, Region** region, uint32_t* index);

  process::Control control_;
  std::map<std::string, std::unique_ptr<Region>> regions_;
  std::vector<pollfd> polled_;
};

}  // namespace sluice::doorbell
