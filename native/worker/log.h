// SPDX-License-Identifier: Apache-2.0
// The worker's log: lines on standard error, which the server opens as the session's log file. Each
// carries time, session and grant.
#pragma once

#include <string>
#include <string_view>

namespace sluice::worker {

void log_name(const std::string& session, const std::string& grant);
void log_info(const std::string& text);
void log_error(const std::string& text);
// As it is, without a line's beginning.
void log_text(std::string_view text);
// From now on there, not to standard error.
void log_to(int descriptor);

}  // namespace sluice::worker
