// SPDX-License-Identifier: Apache-2.0
// Calls of the C library that managed memory has to know of: a system call that reads or writes a
// page without access returns EFAULT instead of raising a signal, and whoever sets the action of
// SIGSEGV would take it away. From the first managed memory on, the tables by which loaded objects
// call these functions lead to ours; no other process is touched, and nothing before that. The C
// library's own and this library's are left.
#pragma once

#include <pthread.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <csignal>
#include <cstdio>

namespace sluice::client {

// The functions of the C library as they are.
struct RealCalls {
  int (*sigaction)(int, const struct sigaction*, struct sigaction*);
  int (*pthread_sigmask)(int, const sigset_t*, sigset_t*);
};
const RealCalls& real_calls();

// Puts ours into the tables of all objects that have been loaded since the last time.
void interpose();

// One of ours: under which name, and where it finds the C library's.
struct Interposed {
  const char* name;
  void* ours;
  void** real;
};
// What system_calls.cc and signal_calls.cc have.
struct InterposedList {
  const Interposed* first;
  size_t count;
};
InterposedList system_calls();
InterposedList signal_calls();

}  // namespace sluice::client
