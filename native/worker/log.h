// SPDX-License-Identifier: Apache-2.0
// The log of a worker or a relay: lines on standard error, which the server opens as the session's
// log file. Each carries time, session and grant.
#pragma once

#include <string>
#include <string_view>

namespace sluice::worker {

// Whose lines these are, if not a worker's. A literal.
void log_as(const char* program);
void log_name(const std::string& session, const std::string& grant);
void log_info(const std::string& text);
void log_error(const std::string& text);
// As it is, without a line's beginning.
void log_text(std::string_view text);
// From now on there, not to standard error.
void log_to(int descriptor);

}  // namespace sluice::worker
