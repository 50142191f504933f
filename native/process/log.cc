// SPDX-License-Identifier: Apache-2.0
#include "process/log.h"

#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <vector>

#include "channel/futex.h"
#include "process/log_budget.h"

namespace sluice::process {

namespace {
std::mutex g_mutex;
// Has no destructor: threads may log until the process is gone.
std::atomic<int> g_fd{STDERR_FILENO};
const char* g_program = "worker";
char g_name[256] = "session=- grant=-";

LogBudget& budget() {
  static auto* all = new LogBudget;
  return *all;
}

void put(std::string_view text) {
  if (write(g_fd, text.data(), text.size()) < 0) return;
}

std::string whole(const char* level, const std::string& text) {
  timeval now;
  gettimeofday(&now, nullptr);
  tm t{};
  gmtime_r(&now.tv_sec, &t);
  char stamp[40];
  const size_t n = strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &t);
  std::snprintf(stamp + n, sizeof stamp - n, ".%03ldZ", static_cast<long>(now.tv_usec / 1000));
  std::string all = std::string(stamp) + " " + level + " " + g_program + " " + g_name + " ";
  // A line is a line, whatever of a client's stands in it.
  for (const char c : text.substr(0, LogBudget::kLineBytes)) all += c == '\n' ? ' ' : c;
  return all + (text.size() > LogBudget::kLineBytes ? "...\n" : "\n");
}

// Under the lock, as all below.
void put_bounded(std::string_view text) {
  bool first;
  if (budget().take_bytes(text.size(), &first)) return put(text);
  if (first)
    put(whole("ERROR", "this log has come to " + std::to_string(LogBudget::kMostBytes >> 20) +
                           " MiB: nothing but the session's end is written from here on"));
}

void settle(uint64_t now, bool all) {
  std::vector<LogBudget::LeftOut> lines, text;
  budget().settle(now, all, &lines, &text);
  for (const auto& l : lines)
    put_bounded(whole("ERROR", std::to_string(l.count) + " more like this were left out in " +
                                   std::to_string(l.window) + " s: " + l.last));
  for (const auto& t : text)
    put_bounded(whole("ERROR", std::to_string(t.count) +
                                   " bytes of standard error were left out in " +
                                   std::to_string(t.window) + " s"));
}

void line(const char* level, const std::string& text, const std::source_location& where) {
  const uint64_t now = channel::now_ns();
  std::lock_guard lock(g_mutex);
  if (!budget().take_line({where.file_name(), where.line()}, text, now)) return;
  settle(now, false);
  put_bounded(whole(level, text));
}
}  // namespace

void log_as(const char* program) { g_program = program; }

void log_name(const std::string& session, const std::string& grant) {
  std::lock_guard lock(g_mutex);
  std::snprintf(g_name, sizeof g_name, "session=%s grant=%s", session.c_str(), grant.c_str());
}

void log_to(int descriptor) { g_fd = descriptor; }
int log_descriptor() { return g_fd; }

void log_text(std::string_view text) {
  std::lock_guard lock(g_mutex);
  const size_t n = budget().take_text(text.size(), channel::now_ns());
  if (n > 0) put_bounded(text.substr(0, n));
}

void log_settle() {
  std::lock_guard lock(g_mutex);
  settle(channel::now_ns(), false);
}

void log_last(const std::string& text) {
  std::lock_guard lock(g_mutex);
  settle(channel::now_ns(), true);
  put(whole("INFO", text));
}

void log_info(const std::string& text, const std::source_location& where) {
  line("INFO", text, where);
}
void log_error(const std::string& text, const std::source_location& where) {
  line("ERROR", text, where);
}

}  // namespace sluice::process
