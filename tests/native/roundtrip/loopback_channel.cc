// SPDX-License-Identifier: Apache-2.0
#include "tests/native/roundtrip/loopback_channel.h"

namespace sluice::test {

void LoopbackChannel::commit(size_t n, bool) {
  wire::FrameHeader header;
  std::memcpy(&header, frame_.data(), sizeof header);
  seen.push_back(header.function);
  const auto* at = reinterpret_cast<const std::byte*>(frame_.data());
  Answer answer;
  if (!rig.dispatch(header, {at + sizeof header, n - sizeof header}, &answer)) {
    lost_ = true;
    return;
  }
  if (header.lane == wire::kNoLane) {
    if (answer.status != CUDA_SUCCESS) sticky_ = answer.status;
    return;
  }
  if (tamper) tamper(header, &answer);
  ++answered;
  lanes_[header.lane] = {header.sequence, std::move(answer)};
}

}  // namespace sluice::test
