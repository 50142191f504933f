// SPDX-License-Identifier: Apache-2.0
#include "client/core/stream_channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "channel/futex.h"
#include "client/core/end_notice.h"
#include "client/core/log.h"

namespace sluice::client {

namespace {
constexpr size_t kSendWhen = 48 << 10;  // gathered bytes that are sent without waiting for more
constexpr size_t kPiece = kSendWhen + wire::kMaxFrameBytes;
constexpr auto kGather = std::chrono::microseconds(40);
constexpr uint64_t kLooksNs = 2'000'000;  // after the last command
constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kBulkAnswer = 1 << 20;  // deserves connections of its own
// Whose commands' data this thread leaves as it is.
thread_local const void* t_lends = nullptr;
constexpr auto kLookEvery = std::chrono::seconds(5);
constexpr uint32_t kUnheardMs = 60'000;
constexpr auto kFirstPause = std::chrono::milliseconds(50);
constexpr auto kLongestPause = std::chrono::milliseconds(1600);
}  // namespace

StreamChannel::StreamChannel(int socket, std::unique_ptr<channel::Stream> stream,
                             std::vector<std::byte> open_reply)
    : socket_(socket),
      stream_(std::move(stream)),
      open_reply_(std::move(open_reply)),
      lanes_(kLanes),
      in_(kReadBytes) {
  stream_->look_before_sleeping(channel::kLooksForAnswer);
  start();
}

StreamChannel::StreamChannel(std::unique_ptr<channel::ResumableStream> stream,
                             std::vector<std::byte> open_reply, Again again, Subflows subflows,
                             Look look)
    : socket_(-1),
      stream_(std::move(stream)),
      resumable_(static_cast<channel::ResumableStream*>(stream_.get())),
      again_(std::move(again)),
      subflows_(std::move(subflows)),
      look_(std::move(look)),
      open_reply_(std::move(open_reply)),
      lanes_(kLanes),
      in_(kReadBytes) {
  start();
}

void StreamChannel::start() {
  next_piece();
  watched_ = socket_ >= 0 || resumable_;
  constexpr auto kQuiet = channel::Signals::kBlocked;
  flushes_ = flusher_.start("sluice-flush", [this] { flush_when_idle(); }, kQuiet);
  const bool watches = !watched_ || watcher_.start("sluice-watch", [this] { watch(); }, kQuiet);
  if (!flushes_ || !watches)
    log_line(LogLevel::kError,
             "no thread can be started for the session's connection (the limit of processes and "
             "threads is reached: ulimit -u, or pids.max of the cgroup): it is slower, and a host "
             "that goes away is noticed late");
}

StreamChannel::~StreamChannel() {
  {
    std::lock_guard lock(send_mutex_);
    closing_ = true;
  }
  send_pending_.notify_all();
  flusher_.join();
  {
    std::lock_guard lock(watch_mutex_);
    watched_ = false;
  }
  watch_over_.notify_all();
  if (resumable_) resumable_->end();
  watcher_.join();
  if (socket_ >= 0) ::close(socket_);
}

void StreamChannel::lock_to_add() {
  std::unique_lock lock(send_mutex_);
  if (sender_waits_) {
    ++adders_wait_;
    sent_.wait(lock, [this] { return !sender_waits_; });
    --adders_wait_;
  }
  lock.release();
}

std::byte* StreamChannel::reserve(size_t n) {
  lock_to_add();
  if (gone_ || (out_used_ + n > kPiece && !send_all())) {
    send_mutex_.unlock();
    return nullptr;
  }
  return out_.get() + out_used_;
}

void StreamChannel::commit(size_t n, bool answered) {
  const bool asleep = out_used_ == 0 && !flusher_looks_;
  out_used_ += n;
  bytes_out += n;
  if (answered || out_used_ >= kSendWhen || !flushes_) {
    send_all();
    send_mutex_.unlock();
  } else {
    send_mutex_.unlock();
    if (asleep) send_pending_.notify_one();
  }
}

void StreamChannel::commit_apart(size_t n, std::span<const std::byte> tail) {
  out_used_ += n;
  bytes_out += n + wire::round_up(tail.size(), 8);
  send_all(tail);
  send_mutex_.unlock();
}

void StreamChannel::next_piece() {
  for (const Piece& piece : pieces_)
    if (piece != out_ && piece.use_count() == 1) return void(out_ = piece);
  out_ = pieces_.emplace_back(new std::byte[kPiece]);
}

bool StreamChannel::send_all(std::span<const std::byte> tail) {
  if (sending_) {  // what it sends comes first
    std::unique_lock lock(send_mutex_, std::adopt_lock);
    sender_waits_ = true;
    sent_.wait(lock, [this] { return !sending_; });
    sender_waits_ = false;
    if (adders_wait_ > 0) sent_.notify_all();
    lock.release();
  }
  const uint64_t zeros = 0;
  iovec parts[3] = {{out_.get(), out_used_},
                    {const_cast<std::byte*>(tail.data()), tail.size()},
                    {const_cast<uint64_t*>(&zeros), wire::round_up(tail.size(), 8) - tail.size()}};
  bool sent;
  if (tail.empty())
    sent = stream_->write_lent(parts, 1, out_);
  else if (t_lends == this && parts[2].iov_len == 0)
    sent = stream_->write_lent(parts, 2, {});
  else
    sent = stream_->write(parts, 3);
  if (!sent) gone_ = true;
  if (out_.use_count() > 2) next_piece();  // it is kept as it is
  out_used_ = 0;
  return !gone_;
}

// A copy takes about as long as it says there; waiting for the acknowledgement takes a round trip.
// Where nobody waits for that, whoever waits for the stream does.
bool StreamChannel::begin_lending(size_t bytes, Lent how) {
  constexpr size_t kLeast = 256 << 10, kBytesPerUs = 10'000;
  if (!resumable_ || bytes < kLeast ||
      (how == Lent::kUntilSettled && bytes / kBytesPerUs < resumable_->round_trip_us()))
    return false;
  t_lends = this;
  return true;
}

void StreamChannel::end_lending() { t_lends = nullptr; }

bool StreamChannel::settle() {
  end_lending();
  return stream_->settle();
}

// A system call that wakes somebody takes as long as ten launches, so the program's threads do not
// wait for it.
void StreamChannel::send_beside(std::unique_lock<std::mutex>& lock) {
  const Piece piece = out_;
  iovec part{piece.get(), out_used_};
  next_piece();
  out_used_ = 0;
  sending_ = true;
  lock.unlock();
  const bool sent = stream_->write_lent(&part, 1, piece);
  lock.lock();
  if (!sent) gone_ = true;
  sending_ = false;
  if (sender_waits_) sent_.notify_all();
}

void StreamChannel::flush_when_idle() {
  std::unique_lock lock(send_mutex_);
  while (!closing_) {
    send_pending_.wait(lock, [this] { return closing_ || out_used_ > 0; });
    // From here on it looks by itself, for as long as commands come: to be woken for each burst
    // would cost the program more.
    flusher_looks_ = true;
    for (uint64_t busy_at = channel::now_ns(); !closing_;) {
      // A burst is likely: let it gather, then send what its own threads have not sent.
      lock.unlock();
      std::this_thread::sleep_for(kGather);
      lock.lock();
      if (out_used_ > 0) {
        if (!sender_waits_) send_beside(lock);  // who waits sends it himself
        busy_at = channel::now_ns();
      } else if (channel::now_ns() - busy_at > kLooksNs) {
        break;
      }
    }
    flusher_looks_ = false;
  }
}

void StreamChannel::watch() {
  if (resumable_) return watch_resumable();
  std::unique_lock lock(watch_mutex_);
  while (!watch_over_.wait_for(lock, kLookEvery, [this] { return !watched_; }))
    if (channel::unheard_of(socket_, kUnheardMs)) {
      say_ended("its node has acknowledged nothing for a minute: it, or the way there, is gone");
      shutdown(socket_, SHUT_RDWR);
    }
}

void StreamChannel::watch_resumable() {
  while (!resumable_->over())
    if (resumable_->wait_for_break(std::chrono::nanoseconds(kLookEvery).count()))
      resume();
    else if (uint32_t epoch; resumable_->take_wanted(&epoch))
      open_subflows(epoch);
    else {
      if (look_) look_(resumable_);
      resumable_->look(channel::kSilentMs);
    }
}

// For large copies, once for each connection.
void StreamChannel::open_subflows(uint32_t epoch) {
  for (uint32_t number = 0; number < subflows_.most && resumable_->broken_since() == 0; ++number)
    if (std::string why; !subflows_.open(resumable_, epoch, number, &why))
      return log_line(LogLevel::kDebug, "no further connection for large copies: " + why);
}

void StreamChannel::resume() {
  log_line(LogLevel::kInfo, "the connection to the session's node broke; making another");
  std::string why;
  auto pause = kFirstPause;
  while (!resumable_->look(channel::kSilentMs)) {
    const Resumed done = again_(resumable_, &why);
    if (done == Resumed::kYes)
      return log_line(LogLevel::kInfo, "the session goes on over another connection");
    if (done == Resumed::kNever) {
      // before anybody is woken, who would not know why; what a slot says of it is known already
      resumable_->give_up(resumable_->over() ? std::string() : why);
      read_last_words();  // came before the end, and say more than whoever was asked now
      if (sticky_ == 0) ended();
      return resumable_->end();
    }
    log_line(LogLevel::kDebug, "no other connection yet: " + why);
    std::unique_lock lock(watch_mutex_);
    if (watch_over_.wait_for(lock, pause, [this] { return !watched_; })) return;
    pause = std::min(pause * 2, kLongestPause);
  }
  log_line(LogLevel::kInfo, "no other connection was to be had: " + why);
}

bool StreamChannel::read_exact(std::byte* to, size_t n) {
  while (n > 0) {
    if (in_begin_ < in_end_) {
      const size_t take = std::min(n, in_end_ - in_begin_);
      std::memcpy(to, in_.data() + in_begin_, take);
      in_begin_ += take;
      to += take;
      n -= take;
      continue;
    }
    // Large bodies go straight to their place.
    std::byte* into = n >= in_.size() ? to : in_.data();
    const size_t want = n >= in_.size() ? n : in_.size();
    const iovec part{into, want};
    const ssize_t got = stream_->read(&part, 1);
    if (got <= 0) return false;
    if (into == to) {
      to += got;
      n -= static_cast<size_t>(got);
    } else {
      in_begin_ = 0;
      in_end_ = static_cast<size_t>(got);
    }
  }
  return true;
}

bool StreamChannel::read_frame() {
  wire::FrameHeader h;
  if (!read_exact(reinterpret_cast<std::byte*>(&h), sizeof h)) return false;
  if (h.function != wire::kReply || h.size < sizeof h || h.size > wire::kMaxReplyBytes)
    return false;
  const size_t bytes = h.size - sizeof h;
  if (h.lane == wire::kNoLane && h.context == 0 && h.sequence == wire::kLinkLost) {
    uint64_t peer = 0;
    if (bytes != sizeof peer || !read_exact(reinterpret_cast<std::byte*>(&peer), bytes))
      return false;
    if (on_link_lost) on_link_lost(0, peer);
    return true;
  }
  if (h.lane == wire::kNoLane && h.context == 0) {
    wire::LibraryMemory memory;
    if (bytes != sizeof memory || !read_exact(reinterpret_cast<std::byte*>(&memory), bytes))
      return false;
    if (on_library_memory) on_library_memory(memory);
    return true;
  }
  if (h.lane == wire::kNoLane) {  // said unasked: the session is over
    sticky_.store(h.context ? h.context : 999u, std::memory_order_relaxed);
    std::string why(bytes, '\0');
    if (!read_exact(reinterpret_cast<std::byte*>(why.data()), bytes)) return false;
    stream_->give_up();
    if (*why.c_str()) say_ended(why.c_str());
    return true;
  }
  if (h.lane >= kLanes) return false;
  LaneState& lane = lanes_[h.lane];
  std::byte* to;
  {
    std::lock_guard lock(read_mutex_);
    lane.in_sink = !lane.sink.empty() && bytes >= lane.sink.size();
    if (!lane.in_sink && lane.body.size() < bytes) lane.body.resize(bytes);
    to = lane.in_sink ? lane.sink.data() : lane.body.data();
  }
  size_t direct = lane.in_sink ? lane.sink.size() : bytes;
  if (!read_exact(to, direct)) return false;
  std::byte padding[8];
  for (size_t rest = bytes - direct; rest > 0;) {
    const size_t n = std::min(rest, sizeof padding);
    if (!read_exact(padding, n)) return false;
    rest -= n;
  }
  std::lock_guard lock(read_mutex_);
  lane.bytes = direct;
  lane.status = h.context;
  lane.sequence = h.sequence;
  return true;
}

void StreamChannel::expect(uint32_t lane, std::span<std::byte> sink) {
  if (resumable_ && sink.size() >= kBulkAnswer) resumable_->want_subflows();
  std::lock_guard lock(read_mutex_);
  lanes_[lane].sink = sink;
}

bool StreamChannel::wait(uint32_t lane_index, uint32_t sequence, Reply* reply) {
  LaneState& lane = lanes_[lane_index];
  std::unique_lock lock(read_mutex_);
  while (lane.sequence != sequence) {
    // Also when the connection is gone: whoever reads may be writing into this thread's sink.
    if (reading_) {
      ++readers_waiting_;
      read_done_.wait(lock);
      --readers_waiting_;
      continue;
    }
    if (gone_) return false;
    reading_ = true;
    lock.unlock();
    const bool ok = read_frame();
    if (!ok) ended();
    lock.lock();
    reading_ = false;
    if (!ok) gone_ = all_read_ = true;
    if (readers_waiting_ > 0) read_done_.notify_all();
  }
  const std::span<std::byte> sink = std::exchange(lane.sink, {});
  reply->status = lane.status;
  reply->body = lane.in_sink ? std::span<const std::byte>(sink)
                             : std::span<const std::byte>(lane.body.data(), lane.bytes);
  return true;
}

void StreamChannel::read_last_words() {
  std::unique_lock lock(read_mutex_);
  while (!reading_ && !all_read_ && sticky_ == 0 && (in_begin_ < in_end_ || stream_->readable())) {
    reading_ = true;
    lock.unlock();
    const bool ok = read_frame();
    if (!ok) ended();
    lock.lock();
    reading_ = false;
    if (!ok) all_read_ = true;
    if (readers_waiting_ > 0) read_done_.notify_all();
  }
}

void StreamChannel::ended() {
  std::string why;
  const uint32_t error = sticky_ == 0 ? stream_->last_words(&why) : 0;
  if (error == 0) return;
  sticky_.store(error, std::memory_order_relaxed);
  if (!why.empty()) say_ended(why);
}

void StreamChannel::close() {
  lock_to_add();
  std::lock_guard lock(send_mutex_, std::adopt_lock);
  if (gone_) return;
  const wire::FrameHeader bye{sizeof bye, wire::kClose, wire::kNoLane, 0, 0};
  std::memcpy(out_.get() + out_used_, &bye, sizeof bye);
  out_used_ += sizeof bye;
  stream_->give_up();  // first: the node's answer is its end, for which nobody dials
  send_all();
  stream_->finish();
}

}  // namespace sluice::client
