// SPDX-License-Identifier: Apache-2.0
// The one way in which native code starts a thread. std::thread throws where the kernel gives none
// (session_pids, memory), and what nobody catches ends the process; these say so instead, and their
// callers go on without the thread or fail with a reason.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <functional>
#include <new>
#include <utility>

namespace sluice::channel {

// kBlocked: a library's thread, which must not take the application's signals; those that its own
// instructions raise are no application's to take elsewhere (client/managed/fault_signal.h).
enum class Signals { kTaken, kBlocked };

namespace detail {

struct Start {
  char name[16];
  std::function<void()> run;
};

inline void* thread_main(void* given) {
  auto* start = static_cast<Start*>(given);
  if (start->name[0]) prctl(PR_SET_NAME, start->name);
  const std::function<void()> run = std::move(start->run);
  delete start;
  run();
  return nullptr;
}

// `name`: at most 15 characters are kept; empty: the starting thread's.
inline bool start_thread(pthread_t* thread, bool detached, const char* name,
                         std::function<void()> run, Signals signals) {
  auto* start = new (std::nothrow) Start{{}, std::move(run)};
  pthread_attr_t how;
  if (!start || pthread_attr_init(&how) != 0) {
    delete start;
    return false;
  }
  for (size_t i = 0; i + 1 < sizeof start->name && name[i]; ++i) start->name[i] = name[i];
  if (detached) pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
  sigset_t all, before;
  sigfillset(&all);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&all, own);
  if (signals == Signals::kBlocked) pthread_sigmask(SIG_SETMASK, &all, &before);
  const bool started = pthread_create(thread, &how, thread_main, start) == 0;
  if (signals == Signals::kBlocked) pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&how);
  if (!started) delete start;
  return started;
}

}  // namespace detail

// A thread that nobody waits for. False: there is none to be had.
[[nodiscard]] inline bool start_detached(const char* name, std::function<void()> run,
                                         Signals signals = Signals::kTaken) {
  pthread_t thread;
  return detail::start_thread(&thread, true, name, std::move(run), signals);
}

// A thread that its owner waits for.
class Thread {
 public:
  Thread() = default;
  Thread(const Thread&) = delete;
  ~Thread() { join(); }

  // False: there is none to be had.
  [[nodiscard]] bool start(const char* name, std::function<void()> run,
                           Signals signals = Signals::kTaken) {
    return started_ = detail::start_thread(&thread_, false, name, std::move(run), signals);
  }
  bool started() const { return started_; }
  void join() {
    if (std::exchange(started_, false)) pthread_join(thread_, nullptr);
  }

 private:
  pthread_t thread_{};
  bool started_ = false;
};

}  // namespace sluice::channel
