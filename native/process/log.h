// SPDX-License-Identifier: Apache-2.0
// The log of a worker or a relay: lines on standard error, which the server opens as the session's
// log file. Each carries time, session and grant. What a client can bring about again and again is
// bounded in rate and size (process/log_budget.h) and summed up.
#pragma once

#include <source_location>
#include <string>
#include <string_view>

namespace sluice::process {

// Whose lines these are, if not a worker's. A literal.
void log_as(const char* program);
void log_name(const std::string& session, const std::string& grant);
// Lines of one place in the source are of one kind: some of a kind are written, more are counted.
void log_info(const std::string& text,
              const std::source_location& where = std::source_location::current());
void log_error(const std::string& text,
               const std::source_location& where = std::source_location::current());
// What a process says once, such as its end: always written, after the sums of what was not.
void log_last(const std::string& text);
// Writes the sums that are due: called now and then.
void log_settle();
// As it is, without a line's beginning.
void log_text(std::string_view text);
// From now on there, not to standard error.
void log_to(int descriptor);
int log_descriptor();

}  // namespace sluice::process
