// SPDX-License-Identifier: Apache-2.0
// sluice-arbiter: one per host (arbiter.h). Started by sluice-server, which it outlives.
#include <signal.h>
#include <sys/prctl.h>

#include <cstdio>

#include "arbiter/service.h"
#include "process/listener.h"
#include "process/log.h"

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  sluice::process::log_as("sluice-arbiter");
  std::string path, error;
  if (!sluice::process::control_path(argc, argv, &path)) {
    std::fprintf(stderr,
                 "usage: sluice-arbiter --control SOCKET\nStarted by sluice-server; "
                 "docs/protocol.md says how.\n");
    return 2;
  }
  prctl(PR_SET_TIMERSLACK, 1000);  // turns are counted in tenths of a millisecond
  const int listener = sluice::process::listen_at(path, &error);
  if (listener >= 0) return sluice::arbiter::Service(listener).run();
  sluice::process::log_error(error);
  return 1;
}
