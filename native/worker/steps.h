// SPDX-License-Identifier: Apache-2.0
// What the steps of something slow took, in words, for a log line: "mapped 0.018 s, copied 0.327
// s".
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "channel/futex.h"

namespace sluice::worker {

class Steps {
 public:
  // The one since the last, or since this began.
  void done(const char* step) {
    const uint64_t now = channel::now_ns();
    char text[64];
    std::snprintf(text, sizeof text, "%s%s %.3f s", text_.empty() ? "" : ", ", step,
                  static_cast<double>(now - began_) / 1e9);
    text_ += text;
    began_ = now;
  }
  const std::string& text() const { return text_; }

 private:
  uint64_t began_ = channel::now_ns();
  std::string text_;
};

}  // namespace sluice::worker
