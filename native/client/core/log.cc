// SPDX-License-Identifier: Apache-2.0
#include "client/core/log.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>

#include "client/unsupported.h"

namespace sluice::client {

namespace {
std::mutex g_mutex;
int g_file = -1;
int g_debug = 0;
bool g_screen = true;
// Constant-initialised: whoever listens says so from a static constructor.
std::atomic<void (*)(LogLevel, const std::string&)> g_listener{nullptr};

// Whether the runtime inside the object that is mapped from `base` on leads to ours: the loader
// hook has put pages of its own into the object's code (client/audit/divert.cc).
bool is_diverted(const void* base) {
  FILE* maps = std::fopen("/proc/self/maps", "re");
  if (!maps) return false;
  char line[4600];
  std::string own;
  bool found = false, inside = false;
  while (!found && std::fgets(line, sizeof line, maps)) {
    unsigned long start = 0;
    int path = 0;
    if (std::sscanf(line, "%lx-%*x %*s %*x %*s %*u %n", &start, &path) != 1) break;
    const std::string name = line + path;
    if (start == reinterpret_cast<uintptr_t>(base)) {
      inside = true;
      own = name;
    } else if (inside) {
      found = name.starts_with("/memfd:sluice-divert");
      inside = name == own || name == "\n" || name.empty();
    }
  }
  std::fclose(maps);
  return found;
}

}  // namespace

void log_open(const Config& config) {
  std::lock_guard lock(g_mutex);
  g_debug = config.debug;
  g_screen = config.log_to_screen;
  const char* home = std::getenv("HOME");
  if (!home || !*home) return;
  std::string path = std::string(home) + "/.sluice";
  mkdir(path.c_str(), 0700);
  path += "/log";
  mkdir(path.c_str(), 0700);
  char name[64];
  const time_t now = time(nullptr);
  tm t{};
  localtime_r(&now, &t);
  std::snprintf(name, sizeof name, "/%04d%02d%02d-%02d%02d%02d-%d.log", t.tm_year + 1900,
                t.tm_mon + 1, t.tm_mday, t.tm_hour, t.tm_min, t.tm_sec, getpid());
  g_file = open((path + name).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

void log_listen(void (*listener)(LogLevel, const std::string&)) { g_listener = listener; }

void log_line(LogLevel level, const std::string& text) {
  if (auto* listener = g_listener.load()) listener(level, text);
  std::lock_guard lock(g_mutex);
  if (level == LogLevel::kDebug && g_debug < 1) return;
  const std::string line = "sluice: " + text + "\n";
  const bool screen = g_screen && (level == LogLevel::kError || g_debug > 0);
  if (screen && write(STDERR_FILENO, line.data(), line.size()) < 0) return;
  if (g_file >= 0 && write(g_file, line.data(), line.size()) < 0) return;
}

void note_export_table(const void* caller) {
  Dl_info info{};
  const std::string who =
      dladdr(caller, &info) && info.dli_fname ? info.dli_fname : "an unknown library";
  static std::mutex mutex;
  static std::set<std::string> told;
  {
    std::lock_guard lock(mutex);
    if (!told.insert(who).second) return;
  }
  // NVIDIA's compilers ask too, and do without, also those inside a program whose runtime leads to
  // ours; for everything else it is a CUDA runtime linked in.
  const bool compiler = who.find("nvrtc") != std::string::npos ||
                        who.find("nvJitLink") != std::string::npos || is_diverted(info.dli_fbase);
  if (compiler) return log_line(LogLevel::kInfo, who + " asked for a private driver table: none");
  log_line(LogLevel::kError,
           who +
               " asked for a private driver table, which there is none of: it likely contains a "
               "statically linked CUDA runtime and will fail. Link it with the shared libcudart "
               "(nvcc -cudart shared); `sluice check PROGRAM` tells more.");
}

void log_once(LogLevel level, const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> told;
  {
    std::lock_guard lock(mutex);
    if (!told.insert(text).second) return;
  }
  log_line(level, text);
}

void note_unsupported(const char* function) {
  log_once(LogLevel::kError,
           std::string(function) + " is not supported yet and returned \"not supported\"");
}

}  // namespace sluice::client
