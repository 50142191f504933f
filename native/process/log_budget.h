// SPDX-License-Identifier: Apache-2.0
// How much of what it is given a log takes: whatever a client can have written again and again is
// written a few times, then counted. Decides only; process/log.cc writes, under its lock. A line's
// kind is the place in the source that wrote it. A whole log has a bound as well: behind it only
// what a process says once is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace sluice::process {

class LogBudget {
 public:
  static constexpr uint64_t kWindowNs = 10'000'000'000;
  static constexpr uint32_t kLines = 20;           // of a kind in a window
  static constexpr size_t kLineBytes = 2048;       // of a line
  static constexpr size_t kTextBytes = 128 << 10;  // of standard error in a window
  static constexpr size_t kMostBytes = 16 << 20;   // of the log
  using Kind = std::pair<const char*, uint32_t>;   // file and line

  struct LeftOut {
    uint64_t count;   // lines, or bytes of standard error
    uint64_t window;  // seconds
    std::string last;
  };

  // Whether a line of this kind is written now; `text` is kept as an example if it is not.
  bool take_line(const Kind& kind, const std::string& text, uint64_t now) {
    Window& w = lines_[kind];
    if (now - w.since >= kWindowNs) restart(w, now);
    if (w.taken < kLines) return ++w.taken, true;
    ++w.left_out;
    w.last = text.substr(0, kExampleBytes);
    return false;
  }
  // How many of so many bytes of standard error are written now.
  size_t take_text(size_t bytes, uint64_t now) {
    if (now - text_.since >= kWindowNs) restart(text_, now);
    const size_t n = bytes < kTextBytes - text_.taken ? bytes : kTextBytes - text_.taken;
    text_.taken += static_cast<uint32_t>(n);
    text_.left_out += bytes - n;
    return n;
  }
  // What was left out in windows that are over by now, or in all; lines first, then text.
  void settle(uint64_t now, bool all, std::vector<LeftOut>* lines, std::vector<LeftOut>* text) {
    for (auto& [kind, w] : lines_) settle(w, now, all, lines);
    settle(text_, now, all, text);
  }
  // So many bytes are about to be written. False: the log is full; `first` says that for the first
  // time.
  bool take_bytes(size_t bytes, bool* first) {
    *first = false;
    if (!full_ && bytes <= kMostBytes - written_) return written_ += bytes, true;
    *first = !full_;
    full_ = true;
    return false;
  }

 private:
  static constexpr size_t kExampleBytes = 200;
  struct Window {
    uint64_t since = 0;
    uint32_t taken = 0;
    uint64_t left_out = 0;
    std::string last;
    std::vector<LeftOut> before;  // of an earlier window, not told yet: one at most
  };

  static void restart(Window& w, uint64_t now) {
    tell(w, now);
    w.since = now;
    w.taken = 0;
  }
  static void tell(Window& w, uint64_t now) {
    if (w.left_out == 0) return;
    const uint64_t seconds = (now - w.since + 500'000'000) / 1'000'000'000;
    if (w.before.empty())
      w.before.push_back({w.left_out, seconds, w.last});
    else
      w.before[0] = {w.before[0].count + w.left_out, w.before[0].window + seconds, w.last};
    w.left_out = 0;
  }
  static void settle(Window& w, uint64_t now, bool all, std::vector<LeftOut>* out) {
    if (all || now - w.since >= kWindowNs) tell(w, now);
    for (auto& told : w.before) out->push_back(std::move(told));
    w.before.clear();
  }

  std::map<Kind, Window> lines_;
  Window text_;
  size_t written_ = 0;
  bool full_ = false;
};

}  // namespace sluice::process
