// SPDX-License-Identifier: Apache-2.0
#include "channel/resumable_stream.h"

#include <poll.h>
#include <sys/socket.h>
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

constexpr size_t kScratch = 64 << 10;

constexpr size_t kBehind = 4 << 10;     // received with it
constexpr size_t kLend = 32 << 10;      // less is copied
constexpr size_t kTellAfter = 1 << 20;  // received bytes that the other side has to know of
constexpr size_t kMostRecord = 2 * wire::kMaxReplyBytes;  // the largest write and some
constexpr size_t kAgain = 1 << 20;                        // of what is sent again, in a record
constexpr size_t kMostUntaken = 64 << 20;  // more than all lanes' answers that nobody waits for
constexpr int64_t kAskAgainNs = 50'000'000;
constexpr int kHelloMs = 10'000;

int64_t now() { return static_cast<int64_t>(now_ns()); }

size_t sum(const iovec* parts, int count) {
  size_t n = 0;
  for (int i = 0; i < count; ++i) n += parts[i].iov_len;
  return n;
}

}  // namespace

ResumableStream::Connection::~Connection() {
  stream.reset();
  if (socket >= 0) ::close(socket);
}

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

ResumableStream::ResumableStream(std::unique_ptr<Connection> first, const Terms& terms)
    : Stream(-1), terms_(terms), link_(std::move(first)), scratch_(kScratch) {
  round_trip_us_.store(channel::round_trip_us(link_->socket), std::memory_order_relaxed);
}

ResumableStream::~ResumableStream() = default;

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

bool ResumableStream::has_expired(int64_t at) const {
  return !link_ && at - broken_at_ >= (closed_ ? terms_.closed_grace_ns : terms_.grace_ns);
}

void ResumableStream::end() {
  std::lock_guard lock(mutex_);
  over_ = true;
  if (link_) shutdown(link_->socket, SHUT_RDWR);
  changed_.notify_all();
}

void ResumableStream::give_up() {
  std::lock_guard lock(mutex_);
  last_ = true;
  over_ |= !link_;
  changed_.notify_all();
}

uint32_t ResumableStream::last_words(std::string* why) {
  constexpr uint32_t kUnknown = 999;  // CUresult
  std::lock_guard lock(mutex_);
  if (!expired_) return 0;
  *why = "the connection to its node broke, and the node could not be reached again in time";
  return kUnknown;
}

// Whoever reads or writes there is woken by the shutdown, and comes here as well.
void ResumableStream::broke(const Link& link, bool closed) {
  std::lock_guard lock(mutex_);
  if (link_ != link) return;
  shutdown(link->socket, SHUT_RDWR);
  link_.reset();
  broken_at_ = now();
  closed_ = closed;
  over_ |= last_;
  breaks_.fetch_add(1, std::memory_order_relaxed);
  changed_.notify_all();
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
    const int64_t left = broken_at_ + (closed_ ? terms_.closed_grace_ns : terms_.grace_ns) - at;
    changed_.wait_for(lock, std::chrono::nanoseconds(left));
  }
  return over_ ? nullptr : link_;
}

bool ResumableStream::wait_for_break(int64_t nanoseconds) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(nanoseconds),
                    [this] { return over_ || !link_; });
  return !over_ && !link_;
}

uint32_t ResumableStream::next_epoch() {
  std::lock_guard lock(mutex_);
  return asked_ = std::max(asked_, epoch_) + 1;
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
  round_trip_us_.store(channel::round_trip_us(there->socket), std::memory_order_relaxed);
  pollfd p{there->socket, POLLRDHUP, 0};
  if (unheard_of(there->socket, silent_ms))
    broke(there, false);
  else if (poll(&p, 1, 0) > 0 && p.revents & (POLLERR | POLLHUP))
    broke(there, true);
  return over();
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
    uint64_t before = 0;
    {
      std::lock_guard lock(mutex_);
      if (over_) return false;
      if (has_room(copied, lent)) {
        before = kept_.sent();
        for (int i = 0; i + 1 < count; ++i) kept_.copy(parts[i].iov_base, parts[i].iov_len);
        if (count > 0) {
          const iovec& last = parts[count - 1];
          lent ? kept_.lend(last.iov_base, last.iov_len, held)
               : kept_.copy(last.iov_base, last.iov_len);
        }
        there = link_;
      } else {
        before = UINT64_MAX;
        there = link_;
      }
    }
    if (before != UINT64_MAX) {
      if (there && !send_record(there, parts, count, bytes, 0)) broke(there, true);
      sending.unlock();
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

// write_mutex_ held. Changes `parts`.
bool ResumableStream::send_record(const Link& link, iovec* parts, int count, size_t bytes,
                                  uint32_t flags) {
  constexpr int kMost = 8;
  owes_acknowledgement_.exchange(false, std::memory_order_seq_cst);
  const uint64_t received = received_.load(std::memory_order_acquire);
  told_.store(received, std::memory_order_relaxed);
  StreamRecord header{static_cast<uint32_t>(bytes), flags, received};
  if (count < kMost) {
    iovec all[kMost] = {{&header, sizeof header}};
    std::copy(parts, parts + count, all + 1);
    return link->stream->write(all, count + 1);
  }
  iovec first{&header, sizeof header};
  return link->stream->write(&first, 1) && link->stream->write(parts, count);
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
    if (!send_record(link, gathered.parts.data(), static_cast<int>(gathered.parts.size()), n, 0))
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
    if (!send_record(there, nullptr, 0, 0, 0)) broke(there, true);
  }
}

void ResumableStream::acknowledged(uint64_t upto, const Link& link) {
  std::lock_guard lock(mutex_);
  if (link_ != link || upto == kept_.acknowledged()) return;
  if (kept_.acknowledge(upto)) return changed_.notify_all();
  over_ = true;  // it has what was never sent: that is not our other side
  shutdown(link->socket, SHUT_RDWR);
  changed_.notify_all();
}

bool ResumableStream::settle() {
  uint64_t upto;
  {
    std::lock_guard lock(mutex_);
    if (kept_.lent_bytes() == 0) return !over_;
    upto = kept_.sent();
  }
  return wait_for_acknowledgement(upto, true);
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
      std::lock_guard sending(write_mutex_);
      if (!send_record(there, nullptr, 0, 0, wire::kWantsAcknowledgement)) broke(there, true);
    }
    std::unique_lock reads(read_mutex_, std::try_to_lock);
    if (reads) {
      // What one that has broken still holds has been sent again over the next, or will be.
      if (link() != there) continue;
      pollfd p{there->socket, POLLIN, 0};
      if (!there->stream->pending() && poll(&p, 1, static_cast<int>(kAskAgainNs / 1'000'000)) <= 0)
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
  if (!send_record(there, &part, 1, n, 0)) broke(there, true);
}

bool ResumableStream::writable() const {
  const Link there = link();
  return !there || there->stream->writable();
}

void ResumableStream::finish() {
  std::lock_guard lock(mutex_);
  finished_ = last_ = true;
  if (link_) link_->stream->finish();
}

// ---- receiving

bool ResumableStream::pending() const { return waiting_in_.load(std::memory_order_acquire) > 0; }

bool ResumableStream::readable() const {
  if (pending()) return true;
  const Link there = link();
  return !there || there->stream->readable();
}

// Of what has been received; read_mutex_ held.
size_t ResumableStream::take_waiting(Place* place) {
  const size_t have = waiting_in_.load(std::memory_order_relaxed);
  if (have == 0) return 0;
  const size_t took = place->put(in_.data() + in_begin_, have);
  in_begin_ += took;
  if (in_begin_ == in_.size()) in_.clear(), in_begin_ = 0;
  waiting_in_.store(have - took, std::memory_order_release);
  return took;
}

ssize_t ResumableStream::read_present(const iovec* parts, int count) {
  std::lock_guard reads(read_mutex_);
  Place place{parts, count};
  if (const size_t took = take_waiting(&place)) return static_cast<ssize_t>(took);
  const Link there = link();
  if (!there || over() || !there->stream->readable()) return 0;
  if (const ssize_t got = receive(there, &place); got <= 0) broke(there, true);
  return static_cast<ssize_t>(place.filled);
}

ssize_t ResumableStream::read(const iovec* parts, int count) {
  for (;;) {
    Link there;
    {
      std::lock_guard reads(read_mutex_);
      Place place{parts, count};
      if (const size_t took = take_waiting(&place)) return static_cast<ssize_t>(took);
      there = link();
      if (there && !over()) {
        const ssize_t got = receive(there, &place);
        if (got <= 0) broke(there, got == 0 || errno == ECONNRESET || errno == EPIPE);
        if (place.filled > 0) return static_cast<ssize_t>(place.filled);
      }
    }
    if (!there && !await_link()) return 0;
    if (over()) return 0;
  }
}

// One read of the connection; read_mutex_ held. Bytes go where they are wanted at once, as far as
// is known what they are: the rest of a record, or what follows a header. Without a place, or where
// theirs is full, they wait in `in_`.
ssize_t ResumableStream::receive(const Link& link, Place* place) {
  if (reading_ != link) reading_ = link, left_ = 0, header_bytes_ = 0;
  const size_t room = place ? place->room_here() : 0;
  std::byte* const here = room ? place->here() : nullptr;
  const size_t header = left_ == 0 ? sizeof header_ - header_bytes_ : 0;
  const size_t direct = left_ > 0 ? std::min<size_t>(left_, room) : std::min(room, kScratch);
  // A record that ends here is followed by another's header.
  const size_t next = left_ > 0 && direct == left_ ? sizeof header_ : 0;
  const size_t behind = direct > 0 && left_ == 0 ? 0 : place ? kBehind : kScratch;
  iovec parts[4];
  int count = 0;
  const auto add = [&](std::byte* to, size_t n) {
    if (n > 0) parts[count++] = {to, n};
  };
  add(header_ + header_bytes_, header);
  add(here, direct);
  if (left_ == 0 || next) {
    add(header_, next);
    add(scratch_.data(), behind);
  } else if (direct == 0) {
    add(scratch_.data(), std::min<size_t>(kScratch, left_));
  }
  const ssize_t got = link->stream->read(parts, count);
  if (got <= 0) return got;
  auto n = static_cast<size_t>(got);
  const auto end_with = [&](bool good) -> ssize_t {
    if (!good) return end(), 0;
    if (received_.load(std::memory_order_relaxed) - told_.load(std::memory_order_relaxed) >=
        kTellAfter)
      owes_acknowledgement_.store(true, std::memory_order_seq_cst);
    acknowledge();
    return got;
  };
  if (header > 0) {
    header_bytes_ += std::min(n, header);
    n -= std::min(n, header);
    if (!take_header(link)) return end_with(false);
  }
  const size_t landed = std::min(n, direct), placed = std::min<size_t>(landed, left_);
  if (landed > placed) {  // it belongs to the records that follow
    std::memcpy(scratch_.data(), here + placed, landed - placed);
  }
  if (placed > 0) {
    place->went(placed);
    left_ -= static_cast<uint32_t>(placed);
    received_.fetch_add(placed, std::memory_order_release);
  }
  if (landed > placed) return end_with(scan(scratch_.data(), landed - placed, place, link));
  n -= landed;
  if (next > 0) {
    header_bytes_ = std::min(n, next);
    n -= header_bytes_;
    if (!take_header(link)) return end_with(false);
  }
  return end_with(scan(scratch_.data(), n, place, link));
}

// Of the record that begins, once all of its header is there. False: it is none.
bool ResumableStream::take_header(const Link& link) {
  if (header_bytes_ < sizeof header_) return true;
  header_bytes_ = 0;
  StreamRecord record;
  std::memcpy(&record, header_, sizeof record);
  if (record.bytes > kMostRecord) return false;
  left_ = record.bytes;
  acknowledged(record.received, link);
  if (record.flags & wire::kWantsAcknowledgement)
    owes_acknowledgement_.store(true, std::memory_order_seq_cst);
  return true;
}

bool ResumableStream::scan(const std::byte* data, size_t n, Place* place, const Link& link) {
  while (n > 0) {
    if (left_ == 0) {
      const size_t take = std::min(n, sizeof header_ - header_bytes_);
      std::memcpy(header_ + header_bytes_, data, take);
      header_bytes_ += take;
      data += take;
      n -= take;
      if (!take_header(link)) return false;
      continue;
    }
    const size_t take = std::min<size_t>(n, left_);
    const size_t placed = place ? place->put(data, take) : 0;
    if (placed < take) {
      if (in_.size() - in_begin_ + take - placed > kMostUntaken) return false;
      in_.insert(in_.end(), data + placed, data + take);
      waiting_in_.store(in_.size() - in_begin_, std::memory_order_release);
    }
    received_.fetch_add(take, std::memory_order_release);
    left_ -= static_cast<uint32_t>(take);
    data += take;
    n -= take;
  }
  return true;
}

// ---- another connection

// Each says first how much it has received: by a record without data.
bool ResumableStream::resume(uint32_t epoch, std::unique_ptr<Connection> next) {
  Link before;
  {
    std::lock_guard lock(mutex_);
    if (over_ || epoch <= epoch_) return false;
    before = link_;
  }
  // The other side has left it, whether that has been noticed here or not.
  if (before) broke(before, false);
  std::lock_guard sending(write_mutex_);
  const Link link = std::move(next);
  uint64_t theirs;
  {
    // Nobody takes anything from the one before any more: what was received is received.
    std::lock_guard reads(read_mutex_);
    StreamRecord hello{};
    if (!send_record(link, nullptr, 0, 0, 0)) return false;
    for (size_t have = 0; have < sizeof hello;) {
      pollfd p{link->socket, POLLIN, 0};
      if (!link->stream->pending() && poll(&p, 1, kHelloMs) <= 0) return false;
      const iovec part{reinterpret_cast<std::byte*>(&hello) + have, sizeof hello - have};
      const ssize_t got = link->stream->read(&part, 1);
      if (got <= 0) return false;
      have += static_cast<size_t>(got);
    }
    if (hello.bytes != 0) return false;
    theirs = hello.received;
    std::lock_guard lock(mutex_);
    if (over_ || epoch <= epoch_ || !kept_.acknowledge(theirs)) return false;
    epoch_ = epoch;
    link_ = link;
    if (on_connection) on_connection(link->socket);
    changed_.notify_all();
  }
  if (send_again(link, theirs)) {
    std::lock_guard lock(mutex_);
    if (finished_) link->stream->finish();
  } else {
    broke(link, true);
  }
  return true;
}

}  // namespace sluice::channel
