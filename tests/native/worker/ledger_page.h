// SPDX-License-Identifier: Apache-2.0
// A grant's ledger as the server makes one.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "worker/grant_ledger.h"

namespace sluice::test {

inline int make_ledger_page(uint64_t magic = worker::GrantLedger::kMagic,
                            size_t bytes = worker::GrantLedger::kBytes) {
  const int fd = memfd_create("ledger", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      pwrite(fd, &magic, sizeof magic, 0) != sizeof magic)
    return -1;
  return fd;
}

}  // namespace sluice::test
