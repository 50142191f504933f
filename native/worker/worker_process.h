// SPDX-License-Identifier: Apache-2.0
// A worker's main thread. Loads the driver and makes contexts at once, so that a session finds them
// warm; then waits for the server's word, confines the process to the session's user, and lets the
// executor serve the session. From then on it talks to the server and looks whether the client is
// still there; the process exits when the session ends.
#pragma once

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "process/control.h"
#include "worker/executor.h"
#include "worker/options.h"
#include "worker/server_broker.h"
#include "worker/session.h"
#include "worker/suspension.h"

namespace sluice::worker {

class WorkerProcess {
 public:
  explicit WorkerProcess(Options options)
      : options_(std::move(options)), control_(options_.control, wire::kWorkerReceived) {}

  // The process's exit status, where no session ended it.
  int run();

 private:
  bool prepare(std::string* error);
  void open_rdma();
  bool confine(uint32_t uid, uint32_t gid, std::string* error);
  bool become(const process::Message& message, std::string* error);
  void announce();
  void handle(process::Message& message);
  void start_session(process::Message& message);
  void refuse(const process::Message& message, const std::string& why);
  bool open_session(Session& session, const process::Message& message, std::string* error);
  void run_session();
  void resume(process::Message& message);
  void link(process::Message& message);
  void meet_again();
  void suspend(process::Message& message);
  std::map<std::string, std::string> status() const;
  int how_long() const;  // until the next look at what says nothing by itself, in ms
  void watch_connection(pollfd* polled);
  void ended(const process::End& why);

  Options options_;
  process::Control control_;
  ServerBroker broker_{control_};
  std::unique_ptr<Driver> driver_;
  std::vector<Gpu> gpus_;
  RdmaPlan rdma_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Suspension> suspension_;
  int client_pidfd_ = -1;
  uint64_t closed_at_ = 0;  // when the client was seen to send nothing more
};

}  // namespace sluice::worker
