// SPDX-License-Identifier: Apache-2.0
// What the halves of a resumable stream share.
#pragma once

#include <algorithm>
#include <cstring>

#include "channel/resumable_stream.h"

namespace sluice::channel {

constexpr uint32_t kSubflowShift = 8;      // of the number of subflows in a record's flags
constexpr size_t kMostUntaken = 64 << 20;  // more than all threads' answers that nobody waits for

// The parts of a read() as they are filled.
struct ResumableStream::Place {
  const iovec* parts;
  int count;
  int part = 0;
  size_t at = 0;
  size_t filled = 0;

  std::byte* here() const { return static_cast<std::byte*>(parts[part].iov_base) + at; }
  size_t room_here() const { return part < count ? parts[part].iov_len - at : 0; }
  void went(size_t n) {
    filled += n;
    at += n;
    while (part < count && at == parts[part].iov_len) ++part, at = 0;
  }
  size_t put(const std::byte* data, size_t n) {
    size_t done = 0;
    while (done < n && part < count) {
      const size_t take = std::min(n - done, room_here());
      std::memcpy(here(), data + done, take);
      done += take;
      went(take);
    }
    return done;
  }
};

}  // namespace sluice::channel
