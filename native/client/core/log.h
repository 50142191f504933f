// SPDX-License-Identifier: Apache-2.0
// What the client tells its user: lines on standard error ("sluice: …") and in a log of this run
// under ~/.sluice/log.
#pragma once

#include <string>

#include "client/core/config.h"

namespace sluice::client {

enum class LogLevel { kError, kInfo, kDebug };

void log_open(const Config& config);
void log_line(LogLevel level, const std::string& text);
// The same, once for each text.
void log_once(LogLevel level, const std::string& text);
// Who else hears every line, if anybody: the driver library's own log (driver/logs.cc).
void log_listen(void (*listener)(LogLevel, const std::string&));
// Says once per asking library that it wanted a private driver table, which rule 1 does not give.
void note_export_table(const void* caller);

}  // namespace sluice::client
