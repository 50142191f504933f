// SPDX-License-Identifier: Apache-2.0
// CUDA's own log: what went wrong, in the words of whoever refused. Here those are the error lines
// of the client (core/log.h), kept in a ring of CUDA's size and given to whoever registered.
// Works before cuInit and in a dead session, as that is when it is read.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "abi/cuda_driver.h"
#include "client/core/log.h"

using namespace sluice::client;

namespace {

constexpr size_t kRing = 25600;  // bytes, as CUDA's
constexpr char kCut[] = "Older messages are not here: there was no room for them.\n";

struct Listener {
  uint64_t id;
  CUlogsCallback function;
  void* data;
};

struct Log {
  std::mutex mutex;
  std::deque<std::string> lines;  // the oldest first, each with its newline
  size_t bytes = 0;
  unsigned next = 0;  // the number of the next line
  std::vector<Listener> listeners;
  uint64_t last_listener = 0;
};

// Never destroyed: lines come while the process ends, too.
Log& the_log() {
  static Log* const log = new Log;
  return *log;
}

std::string stamped(const std::string& text) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm t{};
  localtime_r(&now.tv_sec, &t);
  char head[64];
  std::snprintf(head, sizeof head, "[%02d:%02d:%02d.%03ld][%ld][CUDA][E] ", t.tm_hour, t.tm_min,
                t.tm_sec, now.tv_nsec / 1'000'000, syscall(SYS_gettid));
  return head + text + "\n";
}

void keep(LogLevel level, const std::string& text) {
  if (level != LogLevel::kError) return;
  std::string line = stamped(text);
  std::vector<Listener> told;
  Log& log = the_log();
  {
    std::lock_guard lock(log.mutex);
    if (line.size() > kRing) line.erase(0, line.size() - kRing);
    log.bytes += line.size();
    log.lines.push_back(line);
    ++log.next;
    while (log.bytes > kRing) {
      log.bytes -= log.lines.front().size();
      log.lines.pop_front();
    }
    told = log.listeners;
  }
  // Without the lock: a listener may call CUDA.
  for (const Listener& l : told) l.function(l.data, CU_LOG_LEVEL_ERROR, line.data(), line.size());
}

// Before the first line that this process can write.
[[maybe_unused]] const bool g_listening = (log_listen(keep), true);

// The lines from the iterator's on; `cut`: some of those are gone.
std::vector<std::string> since(CUlogIterator* iterator, bool* cut) {
  Log& log = the_log();
  std::lock_guard lock(log.mutex);
  const auto kept = static_cast<unsigned>(log.lines.size());
  const unsigned wanted = iterator ? log.next - *iterator : kept;
  const unsigned given = std::min(wanted, kept);
  *cut = iterator ? wanted > kept : log.next != kept;
  if (iterator) *iterator = log.next;
  return {log.lines.end() - given, log.lines.end()};
}

}  // namespace

extern "C" {

CUresult cuLogsRegisterCallback(CUlogsCallback function, void* data, CUlogsCallbackHandle* handle) {
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  Log& log = the_log();
  std::lock_guard lock(log.mutex);
  log.listeners.push_back({++log.last_listener, function, data});
  if (handle) *handle = reinterpret_cast<CUlogsCallbackHandle>(log.last_listener);
  return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
  Log& log = the_log();
  std::lock_guard lock(log.mutex);
  const auto is_it = [&](const Listener& l) { return l.id == reinterpret_cast<uint64_t>(handle); };
  return std::erase_if(log.listeners, is_it) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogsCurrent(CUlogIterator* iterator, unsigned int flags) {
  if (!iterator || flags) return CUDA_ERROR_INVALID_VALUE;
  Log& log = the_log();
  std::lock_guard lock(log.mutex);
  *iterator = log.next;
  return CUDA_SUCCESS;
}

CUresult cuLogsDumpToFile(CUlogIterator* iterator, const char* path, unsigned int flags) {
  if (!path || flags) return CUDA_ERROR_INVALID_VALUE;
  FILE* file = std::fopen(path, "we");
  if (!file) return CUDA_ERROR_INVALID_VALUE;
  bool cut;
  const auto lines = since(iterator, &cut);
  bool written = !cut || std::fputs(kCut, file) >= 0;
  for (const std::string& line : lines) written = written && std::fputs(line.c_str(), file) >= 0;
  written = std::fclose(file) == 0 && written;
  return written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuLogsDumpToMemory(CUlogIterator* iterator, char* buffer, size_t* size,
                            unsigned int flags) {
  if (!buffer || !size || !*size || flags) return CUDA_ERROR_INVALID_VALUE;
  bool cut;
  const auto lines = since(iterator, &cut);
  const size_t room = *size - 1;
  size_t bytes = cut ? sizeof kCut - 1 : 0;
  for (const std::string& line : lines) bytes += line.size();
  // The newest that fit, behind a word about the others.
  size_t first = 0;
  if (bytes > room && !cut) bytes += sizeof kCut - 1, cut = true;
  while (bytes > room && first < lines.size()) bytes -= lines[first++].size();
  buffer[0] = 0;
  *size = 0;
  if (first == lines.size()) return lines.empty() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  std::string text = cut ? kCut : "";
  for (; first < lines.size(); ++first) text += lines[first];
  std::memcpy(buffer, text.c_str(), text.size() + 1);
  *size = text.size();
  return CUDA_SUCCESS;
}

}  // extern "C"
