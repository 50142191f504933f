// SPDX-License-Identifier: Apache-2.0
#include "worker/log.h"

#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>

namespace sluice::worker {

namespace {
std::mutex g_mutex;
// Has no destructor: threads may log until the process is gone.
std::atomic<int> g_fd{STDERR_FILENO};
const char* g_program = "worker";
char g_name[256] = "session=- grant=-";

void line(const char* level, const std::string& text) {
  timeval now;
  gettimeofday(&now, nullptr);
  tm t{};
  gmtime_r(&now.tv_sec, &t);
  char stamp[40];
  const size_t n = strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &t);
  std::snprintf(stamp + n, sizeof stamp - n, ".%03ldZ", static_cast<long>(now.tv_usec / 1000));
  std::lock_guard lock(g_mutex);
  const std::string all =
      std::string(stamp) + " " + level + " " + g_program + " " + g_name + " " + text + "\n";
  if (write(g_fd, all.data(), all.size()) < 0) return;
}
}  // namespace

void log_as(const char* program) { g_program = program; }

void log_name(const std::string& session, const std::string& grant) {
  std::lock_guard lock(g_mutex);
  std::snprintf(g_name, sizeof g_name, "session=%s grant=%s", session.c_str(), grant.c_str());
}

void log_to(int descriptor) { g_fd = descriptor; }

void log_text(std::string_view text) {
  if (write(g_fd, text.data(), text.size()) < 0) return;
}

void log_info(const std::string& text) { line("INFO", text); }
void log_error(const std::string& text) { line("ERROR", text); }

}  // namespace sluice::worker
