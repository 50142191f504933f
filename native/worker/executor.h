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
#include <string>
#include <vector>

#include "process/control.h"
#include "worker/dispatch.h"
#include "worker/merge/merger.h"

namespace sluice::worker {

// Of a client whose end of the connection was closed, as when its process ends.
process::End client_left();

class Executor {
 public:
  // `ended` is called once, from one of the threads; it does not return (the process exits).
  Executor(Session& session, std::function<void(const process::End&)> ended);

  // False: there are no threads to be had.
  [[nodiscard]] bool start();
  // From another thread: ends the session as if the channel had.
  void end(const process::End& why, uint32_t error);

  // Lets no command begin from now on, and waits until none runs. False: one still did at that time
  // (of channel::now_ns()), and all goes on. By one thread at a time.
  bool stop(uint64_t until_ns);
  // Commands go on, after stop().
  void go_on();

 private:
  void thread_main();
  void lead(std::byte* frame);
  // While the session is stopped, or until it may take the memory that it has asked for, if that is
  // before `until_ns`.
  void stand_back(MemoryAllowance* room, bool asks, uint64_t until_ns = ~0ull);
  // It has what it asked for, or asks for nothing.
  void wait_for_room(const Command& command, const Handler& handler);
  // Runs it; again, once others have made room, where the GPU has less than is counted.
  void run_handler(const Command& command, const Handler& handler, Reply& reply);
  bool wait_for_more_room(const Command& command, const Handler& handler, uint64_t until_ns,
                          uint64_t* besides);
  // False: the session is over.
  bool run(std::byte* frame, BulkFrame* bulk, bool* parked);
  // Whether another command comes before what is held has waited long enough.
  bool more_comes();
  // The lane exists and has no other command under way. False: the session is over.
  bool take_lane(uint16_t lane);
  void finish(const Command& command, const Handler& handler, Reply& reply);
  // One command of those that were held; so many, in place of which a graph was launched.
  void run_held(const Command& command);
  void replayed(size_t commands, CUresult status);
  void count_done();
  // Has pieces of the session's commands made, while the client sends nothing. False: none is to be
  // made now.
  bool make_piece();
  // A GPU's context is no good any more, or a call failed whose caller had gone on.
  void fail(CUresult error);
  // False: there are none to be had, or as many as there may be.
  bool add_thread();
  // Whether there is a thread to take the lead while this one waits.
  bool others_can_lead();
  void watch();

  Session& session_;
  Endpoint& endpoint_;
  std::function<void(const process::End&)> ended_;
  std::unique_ptr<merge::Merger> merger_;  // the leader's; null: nothing is merged
  std::atomic<bool> baton_{false};
  BulkFrame* bulk_ = nullptr;      // that the frame which was taken lies in; the leader's
  std::vector<BulkFrame*> ahead_;  // kept for later frames; the leader's
  std::atomic<int> idle_{0};
  std::atomic<int> threads_{0};
  std::atomic<bool> over_{false};
  std::atomic<bool> making_{false};   // a graph, of commands that are done
  std::atomic<int> in_libraries_{0};  // answered calls of libraries, on threads that do not lead
  std::atomic<uint32_t> watch_word_{0};
  std::atomic<bool> watching_{false};
  // Which lanes have a command under way: the client may use one again when it has the answer.
  std::unique_ptr<std::atomic<bool>[]> lanes_;
};

}  // namespace sluice::worker
