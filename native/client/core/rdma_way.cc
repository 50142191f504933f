// SPDX-License-Identifier: Apache-2.0
#include "client/core/rdma_way.h"

#include <algorithm>
#include <utility>

#include "channel/futex.h"
#include "client/core/log.h"

namespace sluice::client {

namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kFirstPause = 5 * kSecond, kLongestPause = 60 * kSecond;
// One that lasted so long does not make the next attempt wait.
constexpr int64_t kLasting = 60 * kSecond;

int64_t now() { return static_cast<int64_t>(channel::now_ns()); }

}  // namespace

RdmaWay::RdmaWay(channel::RdmaChoice choice, Dial dial, SessionProof session,
                 channel::RdmaLook looking, int socket)
    : choice_(std::move(choice)),
      dial_(std::move(dial)),
      session_(std::move(session)),
      looking_(std::move(looking)),
      socket_(socket),
      begun_at_(now()),
      pause_(kFirstPause) {}

void RdmaWay::look(channel::ResumableStream* stream) {
  if (looking_) {
    // The other side may have left it first, and said so by the socket alone.
    if (looking_(stream->socket() != socket_)) return;
    looking_ = {};
    if (now() - begun_at_ >= kLasting) pause_ = kFirstPause;
    next_at_ = now() + pause_;
    return;
  }
  if (now() < next_at_ || stream->broken_since() != 0) return;
  std::string why;
  if (resume_over_rdma(dial_, session_, stream, choice_, &looking_, &why)) {
    begun_at_ = now();
    socket_ = stream->socket();
    log_line(LogLevel::kInfo, "the session goes over RDMA again");
  } else {
    log_line(LogLevel::kDebug, "the session does not come back to RDMA yet: " + why);
  }
  pause_ = std::min(pause_ * 2, kLongestPause);
  next_at_ = now() + pause_;
}

}  // namespace sluice::client
