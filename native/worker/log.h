// SPDX-License-Identifier: Apache-2.0
// The worker's log: lines on standard error, which the server opens as the session's log file. Each
// carries time, session and grant.
#pragma once

#include <string>

namespace sluice::worker {

void log_name(const std::string& session, const std::string& grant);
void log_info(const std::string& text);
void log_error(const std::string& text);

}  // namespace sluice::worker
