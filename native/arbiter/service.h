// SPDX-License-Identifier: Apache-2.0
// sluice-arbiter's sockets: the server, which says who is there (native/api/control.yaml), the
// workers' bells, and their processes, with which their part ends. Outlives the server; the next
// one tells it again what it knows.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "arbiter/arbiter.h"
#include "process/control.h"

namespace sluice::arbiter {

class Service {
 public:
  explicit Service(int listener) : control_(listener, wire::kArbiterReceived) {}

  // The process's exit status, if it cannot begin.
  int run();

 private:
  struct Worker {
    std::string id;
    TurnPage* page = nullptr;
    int bell = -1, process = -1;
    int poll = -1;           // where both are watched
    Nanoseconds window = 0;  // since when its rings are counted
    int rings = 0;
    bool deaf = false;  // it has rung too often, and is not listened to until the window is over
    Worker() = default;
    Worker(const Worker&) = delete;
    ~Worker();
  };
  void handle(process::Message& m, Nanoseconds now);
  bool join(process::Message& m, Nanoseconds now, std::string* error);
  void leave(const std::string& id, Nanoseconds now);
  void figures(Nanoseconds now);
  void set_memory(process::Message& m);
  void memory_moved(process::Message& m, Nanoseconds now);
  void order_memory();
  bool watch(int fd, uint64_t what, bool each_time = false);
  void follow_server();
  void wait(Nanoseconds until);
  void take(uint64_t what, Nanoseconds now);
  void rang(Worker& worker, Nanoseconds now);
  Nanoseconds listen_again(Nanoseconds now);

  process::Control control_;
  int poll_ = -1;
  Arbiter arbiter_;
  std::map<std::string, std::unique_ptr<Worker>> workers_;
  std::map<uint64_t, Worker*> by_number_;
  uint64_t next_ = 1;
};

}  // namespace sluice::arbiter
