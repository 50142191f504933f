// SPDX-License-Identifier: Apache-2.0
// The broker over the control connection. Handlers ask on their own threads and wait, at most for
// kPatience; the main thread hands the server's answers over and never waits. What this session
// shares is offered again to a server that takes the place of the one before.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>

#include "process/control.h"
#include "worker/broker.h"

namespace sluice::worker {

class ServerBroker : public Broker {
 public:
  explicit ServerBroker(process::Control& control) : control_(control) {}

  bool share(const wire::ShareKey& key, const SharedThing& thing, std::string* why) override;
  void unshare(const wire::ShareKey& key) override;
  bool fetch(const wire::ShareKey& key, const std::string& kind, SharedThing* thing,
             std::string* why) override;

  // The main thread: an answer has come; takes its descriptors. False: it is none of these.
  bool take(process::Message& message);
  // The main thread: another server has connected.
  void offer_again();

 private:
  static constexpr int kPatienceSeconds = 10;
  struct Answer {
    bool here = false;
    process::Message message;
  };
  // Sends and waits. False with the reason, which the server may have given.
  bool ask(const char* verb, std::map<std::string, std::string> fields, int fd, Answer* answer,
           std::string* why);

  process::Control& control_;
  std::mutex mutex_;
  std::condition_variable answered_;
  uint64_t requests_ = 0;
  std::map<uint64_t, Answer*> waiting_;
  std::map<wire::ShareKey, SharedThing> offered_;
};

}  // namespace sluice::worker
