// SPDX-License-Identifier: Apache-2.0
#include "channel/resumable_stream.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "channel/futex.h"
#include "wire/protocol.h"

namespace sluice::channel {

namespace {

using wire::StreamRecord;

constexpr size_t kLend = 32 << 10;  // less is copied
constexpr size_t kAgain = 1 << 20;  // of what is sent again, in a record
constexpr int64_t kAskAgainNs = 50'000'000;
constexpr int kHelloMs = 10'000;
constexpr uint32_t kUnknown = 999;      // CUresult
constexpr size_t kMostAhead = 1 << 20;  // taken in before anybody asks for it

// While it is there a write of which nothing goes for so long fails.
class SendLimit {
 public:
  SendLimit(int socket, int seconds) : socket_(socket) { set(seconds); }
  SendLimit(const SendLimit&) = delete;
  SendLimit& operator=(const SendLimit&) = delete;
  ~SendLimit() { set(0); }

 private:
  void set(int seconds) {
    const timeval limit{seconds, 0};
    if (socket_ >= 0) setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  }
  const int socket_;
};

size_t sum(const iovec* parts, int count) {
  size_t n = 0;
  for (int i = 0; i < count; ++i) n += parts[i].iov_len;
  return n;
}

}  // namespace

int64_t ResumableStream::now() { return static_cast<int64_t>(now_ns()); }

bool ResumableStream::was_reset() { return errno == ECONNRESET || errno == EPIPE; }

ResumableStream::Connection::~Connection() {
  stream.reset();
  if (socket >= 0) ::close(socket);
}

ResumableStream::ResumableStream(std::unique_ptr<Connection> first, const Terms& terms)
    : Stream(-1), terms_(terms), link_(std::move(first)) {
  link_->stream->look_before_sleeping(terms_.looks_ns);
  round_trip_us_.store(link_->stream->round_trip_us(), std::memory_order_relaxed);
}

ResumableStream::~ResumableStream() {
  stop_ahead();
  if (wake_ >= 0) close(wake_);
}

ResumableStream::Link ResumableStream::link() const {
  std::lock_guard lock(mutex_);
  return link_;
}

int ResumableStream::socket() const {
  const Link now = link();
  return now ? now->socket : -1;
}

bool ResumableStream::over() const {
  std::lock_guard lock(mutex_);
  return over_;
}

bool ResumableStream::was_closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

int64_t ResumableStream::broken_since() const {
  std::lock_guard lock(mutex_);
  return link_ ? 0 : broken_at_;
}

int64_t ResumableStream::expires_at() const {
  return broken_at_ + (closed_ ? terms_.closed_grace_ns : terms_.grace_ns);
}

bool ResumableStream::has_expired(int64_t at) const { return !link_ && at >= expires_at(); }

void ResumableStream::end(uint32_t status, const std::string& why) {
  std::lock_guard lock(mutex_);
  over_ = true;
  if (said_ == 0) said_ = status, why_ = why;
  if (link_) link_->cut();
  changed_.notify_all();
}

void ResumableStream::give_up(const std::string& why) {
  std::lock_guard lock(mutex_);
  if (said_ == 0 && !why.empty()) said_ = kUnknown, why_ = why;
  last_ = true;
  over_ |= !link_;
  changed_.notify_all();
}

uint32_t ResumableStream::last_words(std::string* why) {
  std::lock_guard lock(mutex_);
  if (said_) *why = why_;
  if (said_ || !expired_) return said_;
  *why = "the connection to its node broke, and the node could not be reached again in time";
  return kUnknown;
}

// Whoever reads or writes there is woken by the cut, and comes here as well.
void ResumableStream::broke(const Link& link, bool closed) {
  std::lock_guard lock(mutex_);
  if (link_ != link) return;
  link->cut();
  if (on_break) on_break(link->socket);
  link_.reset();
  broken_at_ = now();
  closed_ = closed;
  over_ |= last_;
  if (link->stream->is_last()) {
    over_ = true;
    if (said_ == 0) said_ = link->stream->last_words(&why_);
  }
  changed_.notify_all();
}

// Not called by whoever reads. What came before the end is still to be had: it may be the worker's
// last words, or a client's good-bye, after which no connection follows.
void ResumableStream::failed(const Link& link, bool closed) {
  std::unique_lock reads(read_mutex_, std::try_to_lock);
  if (!reads && link->stream->is_last()) return;  // whoever reads comes to the end as well
  if (!reads && closed) return link->cut();       // … and has what came before it
  if (reads) take_in(link);
  broke(link, closed);
}

// What has come, for who asks for it later, up to a bound; read_mutex_ held. What subflows bring
// would have to be waited for.
void ResumableStream::take_in(const Link& link) {
  while (this->link() == link && waiting_in_.load(std::memory_order_relaxed) < kMostAhead &&
         !bulk_bytes_ && link->stream->readable() && receive(link, nullptr) > 0)
    continue;
}

// The connection that there is or comes in time; null: the stream is over.
ResumableStream::Link ResumableStream::await_link() {
  std::unique_lock lock(mutex_);
  while (!over_ && !link_) {
    const int64_t at = now();
    if (has_expired(at)) {
      over_ = expired_ = true;
      changed_.notify_all();
      break;
    }
    changed_.wait_for(lock, std::chrono::nanoseconds(expires_at() - at));
  }
  return over_ ? nullptr : link_;
}

uint32_t ResumableStream::next_epoch() {
  std::lock_guard lock(mutex_);
  return asked_ = std::max(asked_, epoch_) + 1;
}

// ---- sending

bool ResumableStream::has_room(size_t copied, size_t lent) const {
  const bool copies =
      kept_.copied_bytes() == 0 || copied == 0 || kept_.copied_bytes() + copied <= terms_.most_kept;
  return copies &&
         (kept_.lent_bytes() == 0 || lent == 0 || kept_.lent_bytes() + lent <= terms_.most_lent);
}

bool ResumableStream::write(iovec* parts, int count) { return write_parts(parts, count, 0, {}); }

bool ResumableStream::write_lent(iovec* parts, int count, std::shared_ptr<const void> held) {
  const size_t last = count > 0 ? parts[count - 1].iov_len : 0;
  return write_parts(parts, count, last >= kLend ? last : 0, std::move(held));
}

// What was kept is sent after a break by whoever ends that, so a write that does not reach the
// other side now has been done all the same.
bool ResumableStream::write_parts(iovec* parts, int count, size_t lent,
                                  std::shared_ptr<const void> held) {
  const size_t bytes = sum(parts, count), copied = bytes - lent;
  if (bytes == 0) return !over();
  for (;;) {
    std::unique_lock sending(write_mutex_);
    Link there;
    bool kept = false;
    {
      std::lock_guard lock(mutex_);
      if (over_) return false;
      there = link_;
      if ((kept = has_room(copied, lent))) {
        for (int i = 0; i + 1 < count; ++i) kept_.copy(parts[i].iov_base, parts[i].iov_len);
        const iovec& last = parts[count - 1];
        lent ? kept_.lend(last.iov_base, last.iov_len, held)
             : kept_.copy(last.iov_base, last.iov_len);
      }
    }
    if (kept) {
      const bool sent = !there || send_parts(there, parts, count, bytes, lent > 0, held);
      const bool closed = sent || was_reset();
      const bool hears = terms_.hear_after > 0 && (unheard_ += bytes) >= terms_.hear_after;
      if (hears) unheard_ = 0;
      sending.unlock();
      if (!sent)
        failed(there, closed);
      else if (hears && there)
        hear_acknowledgements(there);
      acknowledge();
      return true;
    }
    sending.unlock();
    // One of what is kept has to go first: half, so that this does not happen each time.
    uint64_t upto;
    {
      std::lock_guard lock(mutex_);
      upto = kept_.acknowledged() + (kept_.sent() - kept_.acknowledged() + 1) / 2;
    }
    if (!wait_for_acknowledgement(upto, false)) return false;
  }
}

// write_mutex_ held. `kept`: the last part stays as it is until it is acknowledged. Changes
// `parts`.
bool ResumableStream::send_record(const Link& link, iovec* parts, int count, size_t bytes,
                                  uint32_t flags, bool kept) {
  constexpr int kMost = 8;
  if (link->failed_with != 0) return errno = link->failed_with, false;
  owes_acknowledgement_.exchange(false, std::memory_order_seq_cst);
  const uint64_t received = received_.load(std::memory_order_acquire);
  told_.store(received, std::memory_order_relaxed);
  StreamRecord header{static_cast<uint32_t>(bytes), flags, received};
  const auto send = [&](iovec* all, int n) {
    return kept ? link->stream->write_kept(all, n) : link->stream->write(all, n);
  };
  bool sent;
  if (count < kMost) {
    iovec all[kMost] = {{&header, sizeof header}};
    std::copy(parts, parts + count, all + 1);
    sent = send(all, count + 1);
  } else {
    iovec first{&header, sizeof header};
    sent = link->stream->write(&first, 1) && send(parts, count);
  }
  if (!sent) link->failed();
  return sent;
}

// All that is kept from there on; write_mutex_ held.
bool ResumableStream::send_again(const Link& link, uint64_t from) {
  for (;;) {
    KeptBytes::Gathered gathered;
    size_t n;
    {
      std::lock_guard lock(mutex_);
      from = std::max(from, kept_.acknowledged());
      n = kept_.gather(from, kAgain, &gathered);
    }
    if (n == 0) return true;
    from += n;
    if (!send_record(link, gathered.parts.data(), static_cast<int>(gathered.parts.size()), n, 0,
                     true))
      return false;
  }
}

// Whoever holds the lock sends it when it is done.
void ResumableStream::acknowledge() {
  while (owes_acknowledgement_.load(std::memory_order_seq_cst)) {
    std::unique_lock sending(write_mutex_, std::try_to_lock);
    if (!sending) return;
    const Link there = link();
    // One that does not read now is told when it asks again.
    if (!there || !there->stream->writable()) return;
    if (send_record(there, nullptr, 0, 0, 0)) continue;
    // One that was ended is found so by whoever reads, which may be the caller, or looks.
    const bool reset = was_reset() && there->stream->socket_of_it() >= 0;
    if (there->stream->is_last()) return;
    reset ? there->cut() : broke(there, false);
    return;
  }
}

void ResumableStream::hear_acknowledgements(const Link& link) {
  std::unique_lock reads(read_mutex_, std::try_to_lock);
  if (!reads || this->link() != link || waiting_in_.load(std::memory_order_relaxed) > kMostAhead ||
      !link->stream->readable())
    return;
  if (receive(link, nullptr) <= 0) broke(link, was_reset());
}

void ResumableStream::acknowledged(uint64_t upto, const Link& link) {
  std::lock_guard lock(mutex_);
  if (link_ != link || upto == kept_.acknowledged()) return;
  if (kept_.acknowledge(upto)) return changed_.notify_all();
  over_ = true;  // it has what was never sent: that is not our other side
  link->cut();
  changed_.notify_all();
}

// Whatever the other side has acknowledged: it also waits until nobody reads any more what was
// lent.
bool ResumableStream::settle() {
  uint64_t upto;
  bool good, waits;
  {
    std::lock_guard lock(mutex_);
    good = !over_;
    waits = kept_.lent_bytes() > 0;
    upto = kept_.sent();
  }
  if (waits) good = wait_for_acknowledgement(upto, true);
  if (!good) {
    const std::scoped_lock lock(write_mutex_, mutex_);
    stop_ahead();
    return false;
  }
  Link ahead;
  {
    std::lock_guard lock(mutex_);
    ahead = ahead_;
  }
  if (ahead) ahead->subflows.finish();
  return true;
}

// Reads, where nobody else does. `settled`: until nothing is lent any more that was by then.
bool ResumableStream::wait_for_acknowledgement(uint64_t upto, bool settled) {
  int64_t asked = 0;
  for (;;) {
    Link there;
    {
      std::unique_lock lock(mutex_);
      if (over_) return false;
      if (kept_.acknowledged() >= upto || (settled && kept_.lent_bytes() == 0)) return true;
      there = link_;
    }
    if (!there) {
      if (!await_link()) return false;
      continue;
    }
    if (const int64_t at = now(); at - asked >= kAskAgainNs) {
      asked = at;
      std::unique_lock sending(write_mutex_);
      const bool sent = send_record(there, nullptr, 0, 0, wire::kWantsAcknowledgement);
      const bool closed = sent || was_reset();
      sending.unlock();
      if (!sent) failed(there, closed);
    }
    std::unique_lock reads(read_mutex_, std::try_to_lock);
    if (reads) {
      // What one that has broken still holds has been sent again over the next, or will be.
      if (link() != there) continue;
      if (!bulk_bytes_ && !there->stream->wait_readable(static_cast<int>(kAskAgainNs / 1'000'000)))
        continue;
      if (receive(there, nullptr) <= 0) broke(there, true);
    } else {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::nanoseconds(kAskAgainNs),
                        [&] { return over_ || link_ != there || kept_.acknowledged() >= upto; });
    }
  }
}

void ResumableStream::try_write(const void* data, size_t n) {
  std::unique_lock sending(write_mutex_, std::try_to_lock);
  const Link there = link();
  if (!sending || !there || !there->stream->writable()) return;
  iovec part{const_cast<void*>(data), n};
  {
    std::lock_guard lock(mutex_);
    kept_.copy(data, n);
  }
  const bool sent = send_record(there, &part, 1, n, 0);
  const bool closed = sent || was_reset();
  sending.unlock();
  if (!sent) failed(there, closed);
}

bool ResumableStream::writable() const {
  const Link there = link();
  return !there || there->stream->writable();
}

void ResumableStream::finish() {
  std::lock_guard lock(mutex_);
  last_ = true;
  if (link_) link_->stream->finish();
}

// ---- another connection

// Each says first how much it has received, by a record without data. The other side may let us
// wait for that: nothing else does meanwhile, not even a connection that is newer.
bool ResumableStream::resume(uint32_t epoch, std::unique_ptr<Connection> next) {
  Link before;
  {
    std::lock_guard lock(mutex_);
    if (over_ || epoch <= epoch_) return false;
    before = link_;
  }
  // The other side has left it, whether that has been noticed here or not.
  if (before) broke(before, false);
  const Link link = std::move(next);
  link->stream->look_before_sleeping(terms_.looks_ns);
  StreamRecord said{}, hello{};
  {
    // Nobody is in the middle of sending or receiving over the one before.
    std::lock_guard sending(write_mutex_);
    {
      std::lock_guard lock(mutex_);
      stop_ahead();
    }
    std::lock_guard reads(read_mutex_);
    said.received = received_.load(std::memory_order_acquire);
  }
  iovec part{&said, sizeof said};
  if (!link->stream->begin() || !link->stream->write(&part, 1) || !hear(*link, &hello))
    return false;
  std::unique_lock sending(write_mutex_);
  {
    std::lock_guard reads(read_mutex_);
    std::lock_guard lock(mutex_);
    if (over_ || epoch <= epoch_ || received_.load(std::memory_order_acquire) != said.received ||
        !kept_.acknowledge(hello.received))
      return false;
    stop_ahead();  // of one in between
    epoch_ = epoch;
    wanted_ = Wanted::kNot;
    link_ = link;
    told_.store(said.received, std::memory_order_relaxed);
    if (on_connection) on_connection(link->socket);
    changed_.notify_all();
  }
  bool sent;
  {
    const SendLimit limit(link->socket, terms_.takes_some_seconds);
    sent = send_again(link, hello.received);
  }
  sending.unlock();
  if (!sent) failed(link, true);
  return true;
}

// The record without data with which the other side begins; false: it does not come, or is another.
bool ResumableStream::hear(const Connection& link, StreamRecord* hello) {
  for (size_t have = 0; have < sizeof *hello;) {
    if (!link.stream->wait_readable(kHelloMs)) return false;
    const iovec part{reinterpret_cast<std::byte*>(hello) + have, sizeof *hello - have};
    const ssize_t got = link.stream->read(&part, 1);
    if (got <= 0) return false;
    have += static_cast<size_t>(got);
  }
  return hello->bytes == 0;
}

}  // namespace sluice::channel
