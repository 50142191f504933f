// SPDX-License-Identifier: Apache-2.0
// What of an answer an endpoint did not carry at once, by lane, until the lane has fetched it
// (kReplyRest). Bounded for the session, as a client may ask on every lane and fetch nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

namespace sluice::worker {

class UnfetchedAnswers {
 public:
  static constexpr size_t kMostBytes = 64 << 20;  // sixteen of the longest answer

  // `from`: how much of the answer has gone out. It takes the place of the lane's last one, if its
  // client never wanted all of that. False: what others have not fetched leaves no room for it.
  [[nodiscard]] bool keep(uint16_t lane, uint64_t from, std::span<const std::byte> rest);
  // The next piece; false when nothing of that lane is left to be sent from there on.
  bool take(uint16_t lane, uint64_t from, size_t most, std::vector<std::byte>* piece, bool* more);

 private:
  struct Rest {
    uint64_t from = 0;
    std::vector<std::byte> bytes;
    size_t sent = 0;
  };

  std::mutex mutex_;
  std::map<uint16_t, Rest> rests_;
  size_t bytes_ = 0;  // of all of them
};

}  // namespace sluice::worker
