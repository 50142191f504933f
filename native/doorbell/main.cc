// SPDX-License-Identifier: Apache-2.0
// sluice-doorbell: one per host (doorbell.h). A guest has no other way to reach the host; so this
// process outlives the server and holds nothing that cannot be learned again. It believes nothing
// that stands in a region: sizes come from the server, words are read once, nonsense is reported as
// an end.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <cstdio>

#include "doorbell/doorbell.h"
#include "process/listener.h"

namespace {

namespace channel = sluice::channel;

// The account that a guest's QEMU runs as can cut its region's file short. Reading on would end
// this process, and with it what all other guests ring by: an empty page takes the missing one's
// place, on which nothing is rung.
void replace_missing_page(int signal_number, siginfo_t* what, void*) {
  const auto at = reinterpret_cast<uintptr_t>(what->si_addr) & ~(uintptr_t{channel::kPage} - 1);
  if (what->si_code != BUS_ADRERR || at == 0 ||
      mmap(reinterpret_cast<void*>(at), channel::kPage, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
    signal(signal_number, SIG_DFL);  // the next access ends the process
}

}  // namespace

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  struct sigaction missing {};
  missing.sa_sigaction = replace_missing_page;
  missing.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGBUS, &missing, nullptr);
  std::string path, error;
  if (!sluice::process::control_path(argc, argv, &path)) {
    std::fprintf(stderr,
                 "usage: sluice-doorbell --control SOCKET\nStarted by sluice-server; "
                 "docs/protocol.md says how.\n");
    return 2;
  }
  prctl(PR_SET_TIMERSLACK, 5000);
  const int listener = sluice::process::listen_at(path, &error);
  if (listener >= 0) return sluice::doorbell::Doorbell(listener).run();
  std::fprintf(stderr, "sluice-doorbell: %s\n", error.c_str());
  return 1;
}
