// SPDX-License-Identifier: Apache-2.0
// What the program's calls about signals do once managed memory needs SIGSEGV: its own action is
// kept and passed on to, and the signal is blocked for no thread.
#include <cerrno>
#include <iterator>

#include "client/managed/fault_signal.h"
#include "client/managed/interposition.h"

namespace sluice::client {

namespace {

using Action = int (*)(int, const struct sigaction*, struct sigaction*);
using Signal = sighandler_t (*)(int, sighandler_t);
using Mask = int (*)(int, const sigset_t*, sigset_t*);

Action real_sigaction;
Signal real_signal;
Mask real_sigprocmask, real_pthread_sigmask;

int our_sigaction(int number, const struct sigaction* wanted, struct sigaction* had) {
  if (number != SIGSEGV) return real_sigaction(number, wanted, had);
  return program_sigaction(wanted, had);
}

sighandler_t our_signal(int number, sighandler_t handler) {
  if (number != SIGSEGV) return real_signal(number, handler);
  if (handler == SIG_ERR) {
    errno = EINVAL;
    return SIG_ERR;
  }
  struct sigaction wanted {
  }, had{};
  wanted.sa_handler = handler;
  wanted.sa_flags = SA_RESTART;
  sigemptyset(&wanted.sa_mask);
  sigaddset(&wanted.sa_mask, number);
  return program_sigaction(&wanted, &had) == 0 ? had.sa_handler : SIG_ERR;
}

int without_fault(Mask real, int how, const sigset_t* set, sigset_t* before) {
  if (!set || how == SIG_UNBLOCK) return real(how, set, before);
  sigset_t others = *set;
  sigdelset(&others, SIGSEGV);
  return real(how, &others, before);
}

int our_sigprocmask(int how, const sigset_t* set, sigset_t* before) {
  return without_fault(real_sigprocmask, how, set, before);
}

int our_pthread_sigmask(int how, const sigset_t* set, sigset_t* before) {
  return without_fault(real_pthread_sigmask, how, set, before);
}

template <class F>
Interposed entry(const char* name, F ours, F* real) {
  return {name, reinterpret_cast<void*>(ours), reinterpret_cast<void**>(real)};
}

}  // namespace

InterposedList signal_calls() {
  static const Interposed all[] = {
      entry("sigaction", our_sigaction, &real_sigaction),
      entry("signal", our_signal, &real_signal),
      entry("sigprocmask", our_sigprocmask, &real_sigprocmask),
      entry("pthread_sigmask", our_pthread_sigmask, &real_pthread_sigmask),
  };
  return {all, std::size(all)};
}

}  // namespace sluice::client
