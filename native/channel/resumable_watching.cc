// SPDX-License-Identifier: Apache-2.0
// Whether a resumable stream's connection is still there: what whoever dials waits for, and what is
// looked at every few seconds.
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <climits>

#include "channel/resumable_stream.h"

namespace sluice::channel {

namespace {

constexpr int64_t kAgainNs = 10'000'000;

}  // namespace

// Nobody may be reading: whoever waits for what another session brings would not see this one's
// connection end before he writes. So its socket is looked at as well as what others find.
bool ResumableStream::wait_for_break(int64_t nanoseconds) {
  int64_t until = now() + nanoseconds;
  const auto is_told = [this] { return over_ || !link_ || wanted_ == Wanted::kSaid; };
  if (wake_ < 0) wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  Link there;
  {
    std::unique_lock lock(mutex_);
    there = is_told() || last_ ? nullptr : link_;
  }
  const int socket = there && wake_ >= 0 ? there->stream->socket_of_it() : -1;
  if (socket < 0) {
    there.reset();
  } else {
    pollfd looked[] = {{socket, POLLRDHUP, 0}, {wake_, POLLIN, 0}};
    const int64_t ms = (nanoseconds + 999'999) / 1'000'000;
    poll(looked, 2, static_cast<int>(std::min<int64_t>(ms, INT_MAX)));
    if (eventfd_t count; looked[1].revents != 0) eventfd_read(wake_, &count);
    if (looked[0].revents != 0) {
      if (std::unique_lock reads(read_mutex_, std::try_to_lock); reads) {
        take_in(there);
        broke(there, true);
      }
      there.reset();
      until = now() + kAgainNs;  // whoever reads comes to the end by himself, or stops before it
    }
  }
  std::unique_lock lock(mutex_);
  if (!there)
    changed_.wait_for(lock, std::chrono::nanoseconds(std::max<int64_t>(0, until - now())), is_told);
  return !over_ && !link_;
}

bool ResumableStream::look(uint32_t silent_ms) {
  const Link there = link();
  if (!there) {
    std::lock_guard lock(mutex_);
    if (over_ || !has_expired(now())) return over_;
    over_ = expired_ = true;
    changed_.notify_all();
    return true;
  }
  round_trip_us_.store(there->stream->round_trip_us(), std::memory_order_relaxed);
  const Stream::Line line = there->stream->line();
  if (there->stream->unheard_of(silent_ms) || there->subflows.lost() || nothing_came(there))
    failed(there, false);
  else if (line != Stream::Line::kUp)
    failed(there, line == Stream::Line::kClosed);
  else
    keep_alive(there);
  return over();
}

// An empty record, so that the kernel finds out whether anybody is there, and the other side that
// we are. Each time: what was said just after somebody looked is old when he looks again.
void ResumableStream::keep_alive(const Link& link) {
  {
    std::unique_lock sending(write_mutex_, std::try_to_lock);
    if (!sending || this->link() != link || !link->stream->writable()) return;
    if (send_record(link, nullptr, 0, 0, 0)) return;
  }
  failed(link, was_reset());
}

// For so long that the other side, which says something every few seconds, must be gone, or stands
// still on a machine whose kernel goes on acknowledging.
bool ResumableStream::nothing_came(const Link& link) {
  if (terms_.silent_ns == 0) return false;
  if (std::unique_lock reads(read_mutex_, std::try_to_lock); reads) take_in(link);
  const uint64_t seen = arrivals_.load(std::memory_order_relaxed) + link->subflows.arrivals();
  const int64_t at = now();
  if (seen != arrivals_seen_ || looked_at_ != link || link->stream->readable()) {
    arrivals_seen_ = seen;
    looked_at_ = link;
    heard_at_ = at;
  }
  return at - heard_at_ >= terms_.silent_ns;
}

}  // namespace sluice::channel
