// SPDX-License-Identifier: Apache-2.0
#include "worker/unfetched_answers.h"

#include <algorithm>

namespace sluice::worker {

bool UnfetchedAnswers::keep(uint16_t lane, uint64_t from, std::span<const std::byte> rest) {
  std::lock_guard lock(mutex_);
  if (const auto old = rests_.find(lane); old != rests_.end()) {
    bytes_ -= old->second.bytes.size();
    rests_.erase(old);
  }
  if (rest.size() > kMostBytes - bytes_) return false;
  bytes_ += rest.size();
  rests_[lane] = {from, {rest.begin(), rest.end()}};
  return true;
}

bool UnfetchedAnswers::take(uint16_t lane, uint64_t from, size_t most,
                            std::vector<std::byte>* piece, bool* more) {
  std::lock_guard lock(mutex_);
  const auto it = rests_.find(lane);
  if (it == rests_.end() || from != it->second.from + it->second.sent) return false;
  Rest& rest = it->second;
  const size_t n = std::min(most, rest.bytes.size() - rest.sent);
  const auto at = rest.bytes.begin() + static_cast<ptrdiff_t>(rest.sent);
  piece->assign(at, at + static_cast<ptrdiff_t>(n));
  rest.sent += n;
  *more = rest.sent < rest.bytes.size();
  if (!*more) {
    bytes_ -= rest.bytes.size();
    rests_.erase(it);
  }
  return true;
}

}  // namespace sluice::worker
