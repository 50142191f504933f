// SPDX-License-Identifier: Apache-2.0
// The bulk of a resumable stream: a large part of a write goes over the connection's subflows, if
// it has any, as a record of its own whose header alone is sent on the connection.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>

#include "channel/resumable_place.h"

namespace sluice::channel {

namespace {

constexpr size_t kBulk = 256 << 10;

// Nobody looks after a subflow: its kernel finds out by itself that the other side is gone.
void watch_over(int socket) {
  constexpr int kUnheardMs = 15'000;
  keep_alive(socket, {.idle = 5, .interval = 3, .probes = 3});
  setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnheardMs, sizeof kUnheardMs);
}

// Another thread's subflow may have been lost first; the connection says what became of its end.
void blame(const Stream& connection) {
  errno = connection.line() == Stream::Line::kClosed ? ECONNRESET : EIO;
}

}  // namespace

void ResumableStream::want_subflows() {
  if (wanted_.load(std::memory_order_relaxed) != Wanted::kNot) return;
  std::lock_guard lock(mutex_);
  if (wanted_ != Wanted::kNot) return;
  wanted_ = Wanted::kSaid;
  changed_.notify_all();
  if (wake_ >= 0) eventfd_write(wake_, 1);
}

bool ResumableStream::take_wanted(uint32_t* epoch) {
  std::lock_guard lock(mutex_);
  if (wanted_ != Wanted::kSaid || !link_ || over_) return false;
  wanted_ = Wanted::kTaken;
  *epoch = epoch_;
  return true;
}

bool ResumableStream::has_subflows() const {
  const Link there = link();
  return there && there->subflows.count_for(kBulk) > 1;
}

bool ResumableStream::take_subflow(uint32_t epoch, uint32_t number,
                                   std::unique_ptr<Connection> subflow) {
  wire::StreamRecord hello{};
  iovec part{&hello, sizeof hello};
  watch_over(subflow->socket);
  return subflow->stream->write(&part, 1) && hear(*subflow, &hello) &&
         add_subflow(epoch, number, std::move(subflow));
}

bool ResumableStream::add_subflow(uint32_t epoch, uint32_t number,
                                  std::unique_ptr<Connection> subflow) {
  Link there;
  {
    std::lock_guard lock(mutex_);
    if (epoch == epoch_ && !over_) there = link_;
  }
  return there && there->subflows.add(number, std::exchange(subflow->socket, -1),
                                      std::move(subflow->stream));
}

// write_mutex_ held. `lent`: the last part is. Changes `parts`.
bool ResumableStream::send_parts(const Link& link, iovec* parts, int count, size_t bytes, bool lent,
                                 const std::shared_ptr<const void>& held) {
  int large = 0;
  for (int i = 1; i < count; ++i)
    if (parts[i].iov_len > parts[large].iov_len) large = i;
  const size_t bulk = count > 0 ? parts[large].iov_len : 0;
  const uint32_t subflows = bulk < kBulk ? 0 : link->subflows.count_for(bulk);
  if (subflows < 2) {
    if (bulk >= kBulk) want_subflows();
    return send_record(link, parts, count, bytes, 0, lent);
  }
  size_t before = 0;
  for (int i = 0; i < large; ++i) before += parts[i].iov_len;
  const size_t after = bytes - before - bulk;
  const iovec part = parts[large];
  return (before == 0 || send_record(link, parts, large, before, 0)) &&
         send_bulk(link, part, subflows, lent && large == count - 1, held) &&
         (after == 0 || send_record(link, parts + large + 1, count - large - 1, after, 0));
}

// What is lent stays as it is, and so need not have been sent by the end of this.
bool ResumableStream::send_bulk(const Link& link, const iovec& part, uint32_t subflows, bool lent,
                                const std::shared_ptr<const void>& held) {
  const uint32_t flags = wire::kOverSubflows | subflows << kSubflowShift;
  if (!send_record(link, nullptr, 0, part.iov_len, flags)) return false;
  const auto* data = static_cast<const std::byte*>(part.iov_base);
  if (lent) {
    std::lock_guard lock(mutex_);
    ahead_ = link;
  }
  if (lent ? link->subflows.send_ahead(data, part.iov_len, subflows, held)
           : link->subflows.send(data, part.iov_len, subflows))
    return true;
  link->failed();
  blame(*link->stream);
  return false;
}

// What was sent ahead is not read any more, of a connection that is cut; write_mutex_ and mutex_
// held.
void ResumableStream::stop_ahead() {
  if (ahead_) ahead_->subflows.abandon();
  ahead_.reset();
}

// All of it, to its place if there is room for it; read_mutex_ held. Whoever cuts the connection
// ends this as well.
ssize_t ResumableStream::receive_bulk(const Link& link, Place* place) {
  const uint32_t bytes = bulk_bytes_;
  const bool direct = place && place->room_here() >= bytes && waiting_in_ == 0;
  const size_t had = in_.size();
  if (!direct) {
    if (had - in_begin_ + bytes > kMostUntaken) return end(), 0;
    in_.resize(had + bytes);
  }
  std::byte* const to = direct ? place->here() : in_.data() + had;
  if (!link->subflows.receive(to, bytes, bulk_subflows_)) {
    if (!direct) in_.resize(had);
    blame(*link->stream);
    return -1;
  }
  received_.fetch_add(bytes, std::memory_order_release);
  direct ? place->went(bytes) : waiting_in_.store(in_.size() - in_begin_);
  bulk_bytes_ = 0;
  const std::vector<std::byte> behind = std::exchange(behind_bulk_, {});
  // What waits has to be taken before it.
  return received(scan(behind.data(), behind.size(), direct ? place : nullptr, link), bytes);
}

}  // namespace sluice::channel
