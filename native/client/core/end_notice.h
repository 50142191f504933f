// SPDX-License-Identifier: Apache-2.0
// The line that tells a user that the pool has ended his session, and why if the pool said so. The
// channels say it when they learn the reason, Session when its worker is gone without a word.
#pragma once

#include <atomic>
#include <string>

#include "client/core/log.h"

namespace sluice::client {

// The first call counts; a process has one session.
inline void say_ended(std::string why) {
  static std::atomic<bool> said{false};
  if (said.exchange(true)) return;
  for (char& c : why)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  log_line(LogLevel::kError, "the session was ended by the pool" +
                                 (why.empty() ? " (its worker is gone)" : ": " + why) +
                                 "; every further call fails");
}

}  // namespace sluice::client
