// SPDX-License-Identifier: Apache-2.0
// The line that tells a user that the pool has ended his session, and why if the pool said so. The
// channels say it when they learn the reason, Session when its worker is gone without a word.
#pragma once

#include <atomic>
#include <string>

#include "client/core/log.h"

namespace sluice::client {

// Whether the process has a session on each of several nodes, which end one by one.
inline std::atomic<bool> g_several_sessions{false};

// The process has said good-bye, to which the answer is an end.
inline std::atomic<bool> g_said_good_bye{false};

// The first call counts, and of several nodes each reason; a process has one session, or one on
// each of several nodes.
inline void say_ended(std::string why) {
  static std::atomic<bool> said{false};
  if (g_said_good_bye) return;
  const bool several = g_several_sessions;
  if (said.exchange(true) && (!several || why.empty())) return;
  for (char& c : why)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  const std::string text = std::string(several ? "the session on a node" : "the session") +
                           " was ended by the pool" +
                           (why.empty() ? " (its worker is gone)" : ": " + why);
  if (several)
    log_once(LogLevel::kError, text);
  else
    log_line(LogLevel::kError, text + "; every further call fails");
}

}  // namespace sluice::client
