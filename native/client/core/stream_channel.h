// SPDX-License-Identifier: Apache-2.0
// The channel over one connection: TCP, or a slot whose other end a relay carries there. Commands
// are gathered and sent in one write, at once when their sender waits; a flusher thread sends what
// nobody waits for. Whichever thread waits for an answer reads for all.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "channel/resumable_stream.h"
#include "channel/stream.h"
#include "channel/thread.h"
#include "client/core/channel.h"
#include "client/core/resume.h"

namespace sluice::client {

class StreamChannel : public Channel {
 public:
  // Takes the stream, from which the opening reply was read, and the socket that it is of (-1:
  // none).
  StreamChannel(int socket, std::unique_ptr<channel::Stream> stream,
                std::vector<std::byte> open_reply);
  // Makes another connection for the stream when its own breaks.
  using Again = std::function<Resumed(channel::ResumableStream* stream, std::string* error)>;
  // Makes one of a connection's subflows; false: none, nor any after it.
  using Subflow = std::function<bool(channel::ResumableStream* stream, uint32_t epoch,
                                     uint32_t number, std::string* error)>;
  struct Subflows {
    uint32_t most;
    Subflow open;
  };
  // `look`: done every few seconds, for what tells of a break only if it is asked, or brings
  // another connection for a better way.
  using Look = std::function<void(channel::ResumableStream* stream)>;
  StreamChannel(std::unique_ptr<channel::ResumableStream> stream, std::vector<std::byte> open_reply,
                Again again, Subflows subflows = {}, Look look = {});
  ~StreamChannel() override;

  wire::ChannelKind kind() const override { return wire::ChannelKind::kTcp; }
  std::byte* reserve(size_t n) override;
  void commit(size_t n, bool answered) override;
  size_t tail_apart_from() const override { return 32 << 10; }
  void commit_apart(size_t n, std::span<const std::byte> tail) override;
  bool begin_lending(size_t bytes, Lent how) override;
  void end_lending() override;
  bool settle() override;
  void expect(uint32_t lane, std::span<std::byte> sink) override;
  bool wait(uint32_t lane, uint32_t sequence, Reply* reply) override;
  uint32_t sticky_error() override {
    if (gone_.load(std::memory_order_relaxed) && !all_read_.load(std::memory_order_relaxed))
        [[unlikely]] {
      read_last_words();
      if (resumable_ && sticky_.load(std::memory_order_relaxed) == 0) ended();
    }
    return sticky_.load(std::memory_order_relaxed);
  }
  bool alive() override { return !gone_; }
  std::atomic<uint64_t>* marks() override { return nullptr; }
  std::span<std::byte> arena() override { return {}; }
  size_t inline_limit() const override { return 960 << 10; }  // a multiple of the page
  size_t copy_limit() const override {
    return resumable_ && resumable_->has_subflows() ? 8 << 20 : inline_limit();
  }
  uint32_t lane_count() const override { return kLanes; }
  void close() override;
  std::span<const std::byte> open_reply() override { return open_reply_; }

 private:
  static constexpr uint32_t kLanes = wire::kStreamLanes;
  struct LaneState {
    uint32_t sequence = 0;
    uint32_t status = 0;
    size_t bytes = 0;
    bool in_sink = false;
    std::vector<std::byte> body;
    std::span<std::byte> sink;  // of the waiting thread
  };

  // Takes send_mutex_ when something may be added to what was gathered.
  void lock_to_add();
  // What was gathered, and `tail` behind it; send_mutex_ held. It waits while the flusher sends.
  bool send_all(std::span<const std::byte> tail = {});
  // The same without a tail; what comes meanwhile is gathered in another piece.
  void send_beside(std::unique_lock<std::mutex>& lock);
  bool read_frame();  // reads one frame and puts it into its lane; called by one thread at a time
  // What the worker said before it went, for a thread that only sends and so has not read it.
  void read_last_words();
  void ended();  // nothing more comes; called by the thread that reads
  bool read_exact(std::byte* to, size_t n);
  void start();
  void flush_when_idle();
  void watch();
  void watch_resumable();
  void resume();
  void open_subflows(uint32_t epoch);

  int socket_;
  std::unique_ptr<channel::Stream> stream_;
  channel::ResumableStream* resumable_ = nullptr;  // the same, if it is one
  Again again_;
  Subflows subflows_;
  Look look_;
  std::vector<std::byte> open_reply_;
  std::mutex send_mutex_;
  std::condition_variable send_pending_, sent_;
  bool sending_ = false;        // the flusher is, without the mutex
  bool sender_waits_ = false;   // for that, and nobody adds anything until it has sent
  uint32_t adders_wait_ = 0;    // for that one
  bool flusher_looks_ = false;  // by itself: nobody has to wake it
  // Where commands are gathered. One that was sent is kept as it is until the worker has it.
  using Piece = std::shared_ptr<std::byte[]>;
  void next_piece();
  Piece out_;
  std::vector<Piece> pieces_;
  size_t out_used_ = 0;
  bool closing_ = false;
  bool flushes_ = false;  // set before the first command
  std::atomic<uint32_t> sticky_{0};
  std::atomic<bool> gone_{false};
  std::atomic<bool> all_read_{false};  // the worker says nothing more: its last words were read

  std::mutex read_mutex_;
  std::condition_variable read_done_;
  bool reading_ = false;
  uint32_t readers_waiting_ = 0;
  std::vector<LaneState> lanes_;
  std::vector<std::byte> in_;
  size_t in_begin_ = 0, in_end_ = 0;
  channel::Thread flusher_;  // without one everything is sent at once
  // Ends what waits for a host that is gone without a word.
  std::mutex watch_mutex_;
  std::condition_variable watch_over_;
  bool watched_ = false;
  channel::Thread watcher_;
};

}  // namespace sluice::client
