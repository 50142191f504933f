// SPDX-License-Identifier: Apache-2.0
// Runs a session's commands (rule 4). One thread leads: it alone takes frames, in order, and runs
// what is fire and forget. A command that its client waits for and that may take as long as the
// GPU's work runs on the thread that took it, while another takes the lead as soon as more commands
// come; nothing else is handed from thread to thread, so a short round trip costs no switch.
// Threads without work sleep at the endpoint.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "worker/dispatch.h"

namespace sluice::worker {

class Executor {
 public:
  // `ended` is called once, from one of the threads, with the reason; it does not return (the
  // process exits).
  Executor(Session& session, std::function<void(const std::string&)> ended);

  void start();
  // From another thread: ends the session as if the channel had.
  void end(const std::string& reason, uint32_t error);

 private:
  void thread_main();
  void lead(std::byte* frame);
  // False: the session is over.
  bool run(std::byte* frame, BulkFrame* bulk, bool* parked);
  void finish(const Command& command, const Handler& handler, Reply& reply);
  void add_thread();
  void watch();

  Session& session_;
  Endpoint& endpoint_;
  std::function<void(const std::string&)> ended_;
  std::atomic<bool> baton_{false};
  BulkFrame* bulk_ = nullptr;  // that the frame which was taken lies in; the leader's
  std::atomic<int> idle_{0};
  std::atomic<int> threads_{0};
  std::atomic<bool> over_{false};
  std::atomic<uint32_t> watch_word_{0};
  std::atomic<bool> watching_{false};
  std::mutex threads_mutex_;
};

}  // namespace sluice::worker
