// SPDX-License-Identifier: Apache-2.0
// One end of a reliable RDMA connection as a stream of bytes (docs/decisions/0008). What is sent is
// put into a stage of this side's and written from there straight into the other side's ring, each
// piece by one write with immediate data, whose completion there is what says that it has come: no
// word of memory is looked at to learn that. Room is given back the same way, by credits.
//
// The other side can write into the area that it was told of and nowhere else; what stands there is
// copied out before anybody looks at it, and its counts are held against what was sent.
//
// Bulk that lies in memory which Sluice allocated is not put into the stage: it is registered
// (rdma_registrations.h) and written straight from where it lies, where its owner leaves it so; and
// where the other side has a place for it, straight there and not into the ring (rdma_placing.h).
//
// As for any Stream, one thread reads at a time and one writes. Threads that wait look at the
// completion queues for a moment, then sleep on the queues' event channel, the device's events and
// the socket over which the connection was agreed, whose end is the connection's. Who sends says
// with which pieces it is worth waking a reader: the last of a write, and one in each half of the
// ring. Being woken for each piece takes longer than copying it.
#pragma once

#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "channel/rdma_device.h"
#include "channel/rdma_memory.h"
#include "channel/rdma_placing.h"
#include "channel/rdma_registrations.h"
#include "channel/spin_time.h"
#include "channel/stream.h"
#include "wire/protocol.h"

struct ibv_comp_channel;
struct ibv_cq;
struct ibv_qp;
struct ibv_wc;

namespace sluice::channel {

class RdmaConnection {
 public:
  // Everything of this end, not connected yet. nullptr with `error`.
  static std::shared_ptr<RdmaConnection> make(std::shared_ptr<RdmaDevice> device,
                                              std::string* error);
  ~RdmaConnection();
  RdmaConnection(const RdmaConnection&) = delete;

  // What the other side has to know, without a header.
  wire::RdmaTerms terms() const;
  // Whether terms make sense: they are somebody else's words.
  static bool sound(const wire::RdmaTerms& other);
  // Both ends are to be connected before one of them writes. False with `error`.
  bool connect(const wire::RdmaTerms& other, std::string* error);
  // Shows the other side that it is reached.
  bool greet();
  bool await_greeting(int milliseconds);
  // The connection's life is this socket's from here on; it stays its owner's.
  void follow(int socket);
  void leave();  // before it is closed

  ssize_t read(const iovec* parts, int count);
  std::byte* await_placed(size_t bytes);  // as Stream's
  bool write(iovec* parts, int count) { return write_parts(parts, count, nullptr); }
  // The last part stays as it is until the other side is known to have it.
  bool write_kept(iovec* parts, int count);
  // Before anything is written: large parts are offered to the other side, which says where it
  // wants them. A round trip for each, so it is for parts of MiBs, by one who is not waited for.
  void offer_parts() { offers_ = true; }
  // The next large part that comes shall lie there, in memory of Sluice's own that stays. By
  // whoever reads. False: too many are granted, or it cannot be registered.
  bool grant(std::byte* at, size_t bytes);
  void try_write(const void* data, size_t n);
  bool readable();
  bool writable();
  // Until what was written is there. False: it was not within a second.
  bool flush();
  // Nothing more is written; waits, for a moment, until what was written is there.
  void finish();

  // A descriptor that is readable once something comes after arm().
  int descriptor() const { return epoll_; }
  void arm();
  // Hears the device; ends the socket where the connection is over. True: it is.
  bool look();
  // After the end of its stream: nothing is written into what was granted any more.
  void end_placing();
  bool broken() const { return broken_.load(); }
  std::string why();  // it broke
  // How much went straight from where it lay.
  uint64_t straight_bytes() const { return straight_bytes_.load(); }
  // And of that, into a place that the other side granted.
  uint64_t placed_bytes() const { return placed_bytes_.load(); }
  uint64_t read_in_place() const { return placing_.read_in_place(); }
  const RdmaRegistrations& registrations() const { return *own_; }
  const RdmaDevice& device() const { return *device_; }

 private:
  enum class Role { kReader, kWriter };
  enum class Kind : uint32_t {
    kData = 0,
    kCredit = 4,
    kFinish = 8,
    kGreeting = 12,
    kOffer = 13,
    kGrant = 14,
    kPlaced = 15
  };
  // What a writer waits for: room for data, for a piece that needs none in the ring, a grant.
  enum class For : uint8_t { kRoom, kPiece, kGrant };
  static constexpr uint32_t kPieces = 256;    // under way in each direction, with data
  static constexpr uint32_t kReceives = 320;  // and credits, the greeting, the end
  static constexpr uint32_t kSends = 320;     // posted at a time
  static constexpr uint32_t kOfCredits = 48;  // of these, kept for others than data
  static constexpr uint32_t kInline = 192;

  explicit RdmaConnection(std::shared_ptr<RdmaDevice> device);
  bool build(std::string* error);
  bool make_queue_pair(std::string* error);
  bool post_receives(uint32_t count);

  // Looks at the queues; what came is counted.
  void progress(bool insist);           // insist: also where another thread does
  bool take(const ibv_wc& completion);  // false: the other side breaks the rules
  void reap();                          // post_mutex_ held
  struct Piece {
    const void* from = nullptr;
    size_t bytes = 0;
    uint64_t to = 0;
    uint32_t key = 0;     // of this side's memory
    uint32_t to_key = 0;  // of the other's, where that is not its ring
  };
  bool post(Kind kind, uint32_t said, const Piece& piece, bool signaled, bool solicited);
  bool write_parts(iovec* parts, int count, const iovec* kept);
  bool post_data(const Piece& piece, bool last);
  bool post_placed(const Piece& piece, bool last);
  // How much of a part went to places that there are for it; the rest goes through the ring.
  // False: the connection is lost.
  bool place(const std::byte* from, size_t bytes, size_t* went);
  bool fill(const RdmaGrant& grant, const std::byte* from, size_t bytes,
            RdmaRegistrations::Source source, size_t* went);
  bool find_place(size_t bytes, RdmaGrant* grant);
  bool post_grant(const RdmaGrant& grant);
  bool answer_offer(const iovec* parts, int count);
  // Until `look` has found something: what it says then. `parts`: where it would go.
  template <class Look>
  ssize_t await_reading(const iovec* parts, int count, const Look& look);
  bool take_grant(uint32_t said);
  bool can(For what) const;
  bool await(For what);
  bool passed(uint64_t number, bool insist);
  void stop();
  size_t room() const;
  bool other_has_room() const;
  bool has_piece() const;
  void give_credit();
  void arm_for(Role role);
  void wait(Role role);
  bool nothing_for(Role role);
  void drain_events();
  void hear_device();
  void judge_port();
  void fail(const std::string& why);
  void nudge();
  size_t there() const { return arrived_.load() - consumed_.load(); }
  size_t take_bytes(const iovec* parts, int count);

  const std::shared_ptr<RdmaDevice> device_;
  const Verbs& verbs_;
  const int owner_;  // its process: a child of it owns nothing here
  struct Objects;
  std::unique_ptr<Objects> objects_;
  std::unique_ptr<RdmaMemory> memory_;
  std::unique_ptr<RdmaRegistrations> own_;
  std::atomic<uint64_t> straight_bytes_{0}, placed_bytes_{0};
  RdmaPlacing placing_;
  bool offers_ = false, unanswered_ = false;
  uint32_t unwanted_ = 0;  // parts that are not offered, as the last that was had no place
  uint64_t grants_given_ = 0, grants_taken_ = 0;  // under post_mutex_ and receive_mutex_
  std::atomic<For> writer_waits_{For::kRoom};
  int epoll_ = -1;
  int nudges_[2] = {-1, -1};  // by Role
  std::atomic<bool> sleeps_[2] = {false, false};
  static constexpr SpinTime::Bounds kLooks{50'000, 400'000};
  SpinTime patience_[2] = {SpinTime(kLooks), SpinTime(kLooks)};  // of who reads, of who writes
  std::atomic<int> socket_{-1};
  uint32_t first_packet_ = 0;
  uint32_t inline_ = 0;
  wire::RdmaTerms other_{};
  std::atomic<bool> broken_{false}, socket_over_{false};
  std::atomic<bool> finished_{false}, greeted_{false};  // by the other side
  std::atomic<uint64_t> port_down_since_{0};            // 0: it is up

  std::mutex receive_mutex_;  // of the receive queue, and of:
  uint64_t credits_taken_ = 0;
  std::atomic<uint64_t> arrived_{0}, pieces_arrived_{0};    // ever
  std::atomic<uint64_t> released_{0}, pieces_released_{0};  // of what was sent, by credits

  std::atomic<uint64_t> consumed_{0};  // the reader's own
  uint64_t credited_ = 0, pieces_credited_ = 0, credits_given_ = 0;

  std::mutex post_mutex_;                    // of the send queue, and of:
  std::array<uint64_t, kSends> position_{};  // of the stream behind each piece, by its number
  std::atomic<uint64_t> posted_{0};          // pieces, credits and so on
  uint64_t unsignaled_ = 0, unsignaled_bytes_ = 0, unsolicited_ = 0;
  std::atomic<uint64_t> retired_{0}, completed_{0};  // of posted_, and of sent_
  std::atomic<uint64_t> sent_{0}, pieces_sent_{0};

  std::mutex event_mutex_;  // of the event channel, and of:
  std::string why_;
};

// The same as a Stream, whose socket only tells of the end. Whoever holds the stream of a
// connection that is over does not hold its device: look() lets that go.
class RdmaStream : public Stream {
 public:
  RdmaStream(int socket, std::shared_ptr<RdmaConnection> connection)
      : Stream(socket), use_(std::make_shared<Use>()) {
    connection->follow(socket);
    use_->connection = std::move(connection);
  }
  ~RdmaStream() override {
    if (const auto c = use_->get()) c->leave();
  }
  ssize_t read(const iovec* parts, int count) override {
    const auto c = use_->get();
    return c ? c->read(parts, count) : 0;
  }
  std::byte* await_placed(size_t bytes) override {
    const auto c = use_->get();
    return c ? c->await_placed(bytes) : nullptr;
  }
  bool write(iovec* parts, int count) override {
    const auto c = use_->get();
    return c && c->write(parts, count);
  }
  void cut() override {
    Stream::cut();
    if (const auto c = use_->get()) c->end_placing();
  }
  bool write_kept(iovec* parts, int count) override {
    const auto c = use_->get();
    return c && c->write_kept(parts, count);
  }
  void try_write(const void* data, size_t n) override {
    if (const auto c = use_->get()) c->try_write(data, n);
  }
  bool pending() const override { return readable(); }
  bool readable() const override {
    const auto c = use_->get();
    return !c || c->readable();
  }
  bool writable() const override {
    const auto c = use_->get();
    return !c || c->writable();
  }
  bool wait_readable(int milliseconds) override {
    const auto c = use_->get();
    if (!c) return true;
    c->arm();
    pollfd p[2] = {{c->descriptor(), POLLIN, 0}, {socket_, POLLIN, 0}};
    return c->readable() || poll(p, 2, milliseconds) > 0;
  }
  void finish() override {
    if (const auto c = use_->get()) c->finish();
    Stream::finish();
  }
  // What is to be done now and then for one who is idle; it may outlive the stream. False: the
  // connection is over, or was left: then the stream may live on, but not the connection.
  std::function<bool(bool left)> looking() const {
    return [weak = std::weak_ptr<Use>(use_)](bool left) {
      const auto use = weak.lock();
      const auto c = use ? use->get() : nullptr;
      const bool over = c && (left || c->look());
      if (over) {
        c->end_placing();  // who reads may go on elsewhere before the last who has it lets it go
        use->drop();
      }
      return c && !over;
    };
  }

 private:
  struct Use {
    std::shared_ptr<RdmaConnection> get() const {
      std::lock_guard lock(mutex);
      return connection;
    }
    void drop() {
      std::shared_ptr<RdmaConnection> last;
      std::lock_guard lock(mutex);
      last.swap(connection);
    }
    mutable std::mutex mutex;
    std::shared_ptr<RdmaConnection> connection;
  };
  const std::shared_ptr<Use> use_;
};

}  // namespace sluice::channel
