// SPDX-License-Identifier: Apache-2.0
// sluice-worker: one process for one session (worker_process.h). docs/protocol.md describes what it
// and the server say to each other.
#include <malloc.h>
#include <signal.h>

#include <cstdio>

#include "worker/options.h"
#include "worker/worker_process.h"

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  // The threads that run commands take turns, and each would fill an arena of its own with what
  // NVRTC and cuDNN leave and find again (docs/decisions/0013-compiled-code.md).
  mallopt(M_ARENA_MAX, 1);
  sluice::worker::Options options;
  std::string error;
  if (sluice::worker::read_options(argc, argv, &options, &error))
    return sluice::worker::WorkerProcess(std::move(options)).run();
  std::fprintf(
      stderr,
      "sluice-worker: %s\nusage: sluice-worker --id ID --control FD --driver PATH "
      "[--libraries DIR:DIR...] [--visible-devices UUID,... [--beside UUID,...]] "
      "[--uid N --gid N | --confine session] [--cgroup PATH] [--sandbox on|off] [--meter on|off] "
      "[--concurrent on|off] [--rdma NAME[:PORT[:GID]]]\nStarted "
      "by sluice-server; docs/protocol.md says how.\n",
      error.c_str());
  return 2;
}
