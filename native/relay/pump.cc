// SPDX-License-Identifier: Apache-2.0
#include "relay/pump.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "channel/end_reason.h"
#include "channel/futex.h"
#include "channel/thread.h"

namespace sluice::relay {

using channel::now_ns;
using channel::SlotState;
using wire::EndCause;

namespace {

constexpr uint32_t kUnknown = 999;  // CUDA_ERROR_UNKNOWN
// How long each side looks again before it sleeps: a client that has its answer asks again soon.
constexpr uint64_t kSpinNs = 100'000;
constexpr uint64_t kSleepNs = 5'000'000'000;
// So much goes to or comes from the kernel at once: the room comes back to the client meanwhile.
constexpr size_t kAtOnce = 256 << 10;
constexpr size_t kLittle = 8 << 10;  // a question or an answer; more is a stream
constexpr uint64_t kPauseMinNs = 20'000, kPauseMaxNs = 2'000'000;
constexpr uint64_t kLastWordsNs = 500'000'000;  // for the client to read why it ended
constexpr uint64_t kGoodbyeFirstNs = 100'000'000;
constexpr uint64_t kGoodbyeNs = 1'500'000'000;  // for the node to end what its client has closed
constexpr uint64_t kAwaitNs = 100'000'000;      // then look whether the connection is still there

template <typename Condition>
bool wait_until(uint64_t most_ns, Condition done) {
  for (const uint64_t start = now_ns(); !done(); channel::sleep_ns(1'000'000))
    if (now_ns() - start > most_ns) return false;
  return true;
}

process::End closed() { return {EndCause::kClientEnded, "the client closed its session"}; }
process::End no_counters() {
  return {EndCause::kClientRefused, "the client's channel holds no valid counters"};
}

}  // namespace

Pump::Pump(channel::MappedSlot slot, std::string node,
           std::function<void(const process::End&)> ended)
    : slot_(std::move(slot)), node_(std::move(node)), ended_(std::move(ended)) {
  auto& h = slot_.header();
  in_.attach(h.tail, h.head, slot_.ring(), slot_.layout().ring_bytes);
  back_.attach(h.back_tail, h.back_head, slot_.arena(), slot_.layout().ring_bytes);
}

void Pump::carry(std::unique_ptr<channel::Stream> stream, int socket) {
  slot_.header().node_round_trip_us.store(stream->round_trip_us(), std::memory_order_relaxed);
  stream_ = std::move(stream);
  socket_.store(socket, std::memory_order_release);
}

void Pump::outlive(uint32_t link, std::function<void()> lost) {
  link_ = link;
  told_lost_ = std::move(lost);
}

bool Pump::open(std::span<const std::byte> reply, std::string* error) {
  auto& h = slot_.header();
  if (reply.size() > slot_.mailbox().size() - channel::kEndReasonBytes) {
    *error = "the session's record does not fit the mailbox";
    return false;
  }
  std::memcpy(slot_.mailbox().data(), reply.data(), reply.size());
  h.dialect.store(static_cast<uint32_t>(channel::SlotDialect::kBytes));
  h.outlives_relay.store(link_ != 0);
  h.link.store(link_);
  uint32_t expected = static_cast<uint32_t>(SlotState::kOpening);
  if (h.state.compare_exchange_strong(expected, static_cast<uint32_t>(SlotState::kReady)))
    return true;
  *error = "the client went away while its session was being opened";
  return false;
}

bool Pump::take_up() {
  auto& h = slot_.header();
  if (!ready()) return false;
  h.head.store(0);
  h.back_tail.store(0);
  h.link.store(link_, std::memory_order_seq_cst);
  // The other thread waits until the client uses it, too.
  reader_.store(kUp);
  return true;
}

bool Pump::start() {
  threads_ = 1;
  if (!channel::start_detached("down", [this] { down(); })) return false;
  ++threads_;
  if (channel::start_detached("up", [this] { up(); })) return true;
  --threads_;
  return false;
}

void Pump::up() {
  if (link_ <= channel::kFirstLink || await_client()) carry_up();
  leave_reading();
  thread_ended();
}

void Pump::down() {
  carry_down();
  thread_ended();
}

void Pump::thread_ended() {
  if (--threads_ == 0 && lost_ && !over_ && told_lost_) told_lost_();
}

bool Pump::through() const { return over_ || lost_; }

// Its words begin anew with the connection, so they say nothing before it uses that.
bool Pump::await_client() {
  auto& h = slot_.header();
  while (!through()) {
    if (h.link_taken.load(std::memory_order_seq_cst) == link_) {
      taken_ = true;
      leave_reading();
      return true;
    }
    if (!ready()) {
      finish(closed(), 0);
      return false;
    }
    if (stream_->line() != channel::Stream::Line::kUp) {
      lose();
      return false;
    }
    const uint32_t seen = h.wake.load(std::memory_order_seq_cst);
    h.sleeping.store(1, std::memory_order_seq_cst);
    if (h.link_taken.load(std::memory_order_seq_cst) != link_)
      channel::futex_wait(h.wake, seen, kAwaitNs);
    h.sleeping.store(0, std::memory_order_relaxed);
  }
  return false;
}

// The client gave up the connection: it waits for another. One that has closed the slot has, too.
bool Pump::client_left() {
  if (link_ == 0) return false;
  const bool uses = slot_.header().link_taken.load(std::memory_order_acquire) == link_;
  taken_ |= uses;
  return taken_ && !uses && ready();
}

void Pump::lose() {
  if (lost_.exchange(true)) return;
  auto& h = slot_.header();
  uint32_t mine = link_;
  h.link.compare_exchange_strong(mine, 0);
  h.reader_sleeps.store(1);
  wake_reader();
  if (const int s = socket_; s >= 0) shutdown(s, SHUT_RDWR);
  h.wake.fetch_add(1, std::memory_order_seq_cst);
  channel::futex_wake(h.wake);
  leave_reading();
}

void Pump::look() {
  const int s = socket_.load(std::memory_order_acquire);
  if (s < 0 || through()) return;
  slot_.header().node_round_trip_us.store(channel::round_trip_us(s), std::memory_order_relaxed);
  if (link_ != 0) {
    if (channel::unheard_of(s, channel::kSilentMs)) lose();
  } else if (channel::unheard_of(s, kUnheardMs)) {
    end({EndCause::kNodeLost, node_ + " has not answered for a minute: the connection is given up"},
        kUnknown);
  }
}

bool Pump::ready() const {
  return slot_.header().state.load(std::memory_order_acquire) ==
         static_cast<uint32_t>(SlotState::kReady);
}

void Pump::leave_reading() {
  if (reader_.load(std::memory_order_seq_cst) != kUp) return;
  reader_.store(kDown, std::memory_order_seq_cst);
  channel::futex_wake(reader_);
}

bool Pump::read_little() {
  iovec parts[2];
  const int n = back_.room(parts, kAtOnce);
  size_t got = 0;
  if (n <= 0) {
    leave_reading();  // a client that does not read is waited for there
    return true;
  }
  if (!carry_back(parts, n, false, &got)) return false;
  if (got > kLittle) leave_reading();
  return true;
}

void Pump::carry_up() {
  auto& h = slot_.header();
  uint64_t idle_since = 0;
  while (!through()) {
    // Read before the bytes: what was sent before the slot was closed is still carried.
    const bool open = ready();
    iovec parts[2];
    const int n = in_.there(parts, kAtOnce);
    if (n < 0) return finish(no_counters(), kUnknown);
    if (n > 0) {
      const size_t bytes = parts[0].iov_len + (n > 1 ? parts[1].iov_len : 0);
      // Whoever may have to wait for the node must not be the one who takes its answers.
      if (bytes > kLittle || !stream_->writable()) {
        hot_.store(false, std::memory_order_seq_cst);
        leave_reading();
      }
      bytes_in_.fetch_add(bytes, std::memory_order_relaxed);
      if (!stream_->write(parts, n)) {
        if (link_ != 0 && ready()) return lose();
        // The node's last words may be there still: they are read first.
        hot_.store(false, std::memory_order_seq_cst);
        leave_reading();
        wait_until(kGoodbyeNs, [this] { return over_.load(); });
        return finish({EndCause::kNodeLost, "the connection to " + node_ + " was lost"}, kUnknown);
      }
      in_.release(bytes);
      idle_since = 0;
      hot_.store(true, std::memory_order_relaxed);
      continue;
    }
    if (!open) break;
    if (client_left()) return lose();
    if (reader_.load(std::memory_order_acquire) == kUp && stream_->readable()) {
      if (!read_little()) return;
      idle_since = 0;
      continue;
    }
    const uint64_t now = now_ns();
    if (idle_since == 0) idle_since = now;
    if (now - idle_since < kSpinNs) {
      for (int i = 0; i < 20 && in_.empty(); ++i) channel::cpu_relax();
      if (in_.empty()) channel::spin_round();
      continue;
    }
    hot_.store(false, std::memory_order_seq_cst);
    leave_reading();
    const uint32_t seen = h.wake.load(std::memory_order_seq_cst);
    h.sleeping.store(1, std::memory_order_seq_cst);
    if (in_.empty() && ready() && !through() && !client_left())
      channel::futex_wait(h.wake, seen, kSleepNs);
    h.sleeping.store(0, std::memory_order_relaxed);
    idle_since = 0;
  }
  if (lost_) return;
  hot_.store(false, std::memory_order_seq_cst);
  leave_reading();
  // The node's worker ends when it has done all that came.
  stream_->finish();
  wait_until(kGoodbyeNs, [this] { return over_.load(); });
  finish(closed(), 0);
}

void Pump::wake_reader() {
  auto& h = slot_.header();
  if (h.reader_sleeps.load(std::memory_order_seq_cst) == 0 || h.reader_sleeps.exchange(0) == 0)
    return;
  h.reader_wake.fetch_add(1, std::memory_order_seq_cst);
  channel::futex_wake(h.reader_wake, 1 << 20);
}

bool Pump::carry_back(iovec parts[2], int n, bool discards, size_t* count) {
  const ssize_t got = stream_->read(parts, n);
  if (got < 0 && errno == EAGAIN) return true;
  if (got <= 0) {
    // A client that ends says so to its worker first, and a moment later here.
    if (got == 0 && !lost_) wait_until(kGoodbyeFirstNs, [this] { return !ready(); });
    if (link_ != 0 && ready())
      lose();
    else if (ready())
      finish({EndCause::kNodeLost, "the connection to " + node_ + " was lost" +
                                       (got < 0 ? std::string(": ") + std::strerror(errno)
                                                : ": its worker ended, or the node went down")},
             kUnknown);
    else
      finish(closed(), 0);
    return false;
  }
  // Counted first: who has had the bytes may ask at once how many there were.
  bytes_out_.fetch_add(static_cast<size_t>(got), std::memory_order_relaxed);
  if (!discards) {
    back_.commit(static_cast<size_t>(got));
    wake_reader();
  }
  *count = static_cast<size_t>(got);
  return true;
}

void Pump::carry_down() {
  std::string rest;  // of a client that reads no more
  uint64_t full_since = 0, pause = kPauseMinNs;
  while (!through()) {
    if (reader_.load(std::memory_order_acquire) == kUp) {
      channel::futex_wait(reader_, kUp);
      continue;
    }
    iovec parts[2];
    int n = back_.room(parts, kAtOnce);
    if (n < 0) return finish(no_counters(), kUnknown);
    const bool discards = n == 0 && !ready();
    if (discards) {
      rest.resize(kAtOnce);
      parts[0] = {rest.data(), rest.size()};
      n = 1;
    }
    if (n == 0) {
      const uint64_t now = now_ns();
      if (full_since == 0) full_since = now;
      if (now - full_since < kSpinNs) {
        channel::spin_round();
        continue;
      }
      channel::sleep_ns(pause);
      pause = std::min(pause * 2, kPauseMaxNs);
      continue;
    }
    full_since = 0;
    pause = kPauseMinNs;
    size_t got = 0;
    if (!carry_back(parts, n, discards, &got)) return;
    if (got > kLittle || !hot_.load(std::memory_order_relaxed)) continue;
    // It may be falling asleep meanwhile: then it leaves the reading here, or it is taken back.
    reader_.store(kUp, std::memory_order_seq_cst);
    uint32_t given = kUp;
    if (!hot_.load(std::memory_order_seq_cst)) reader_.compare_exchange_strong(given, kDown);
  }
}

void Pump::end(const process::End& why, uint32_t error) {
  // The server says so too when the client has closed: what it sent before is carried all the same.
  if (threads_ > 0 && !lost_ && !ready() && wait_until(kGoodbyeNs, [this] { return over_.load(); }))
    return;
  finish(why, error);
}

void Pump::finish(const process::End& why, uint32_t error) {
  if (over_.exchange(true)) return;
  auto& h = slot_.header();
  if (ready()) {
    channel::write_end_reason(slot_, why.reason);
    h.sticky_error.store(error, std::memory_order_seq_cst);
    uint32_t expected = static_cast<uint32_t>(SlotState::kReady);
    h.state.compare_exchange_strong(expected, static_cast<uint32_t>(SlotState::kDead));
    h.reader_sleeps.store(1);
    wake_reader();
  }
  if (const int s = socket_; s >= 0) shutdown(s, SHUT_RDWR);
  // The slot is blank soon after this process: a client that looks now and then is to see it first.
  wait_until(kLastWordsNs, [&] {
    return h.state.load(std::memory_order_acquire) != static_cast<uint32_t>(SlotState::kDead);
  });
  ended_(why);
}

}  // namespace sluice::relay
