// SPDX-License-Identifier: Apache-2.0
// A stream that outlives its connections (docs/protocol.md, "When a connection breaks"): bytes are
// counted in both directions, what the other side has not acknowledged is kept, and after a break
// whoever dials brings another connection, over which each side says how much it has received and
// is sent the rest. Readers and writers wait meanwhile, as long as `grace` lets them.
//
// Small writes are copied; large ones are lent: they stay where they are until they are
// acknowledged. What is kept is bounded, so a writer may wait for the other side to receive. As
// nobody may be reading then, whoever waits for an acknowledgement reads for it.
#pragma once

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "channel/kept_bytes.h"
#include "channel/stream.h"
#include "channel/subflows.h"
#include "wire/protocol.h"

namespace sluice::channel {

class ResumableStream : public Stream {
 public:
  // The socket, -1 where there is none, is closed with it.
  struct Connection {
    Connection(int s, std::unique_ptr<Stream> over) : socket(s), stream(std::move(over)) {}
    ~Connection();
    Connection(const Connection&) = delete;
    void cut() {
      stream->cut();
      subflows.cut();
    }
    // A write failed, with errno; write_mutex_ held. Some of a record may have gone, and what
    // followed would be taken for the rest of it: nothing does, until whoever failed has cut the
    // connection.
    void failed() { failed_with = errno != 0 ? errno : EIO; }
    int socket;
    std::unique_ptr<Stream> stream;
    Subflows subflows;  // beside it, for bulk
    int failed_with = 0;
  };
  struct Terms {
    int64_t grace_ns;         // from a break until the stream is over
    int64_t closed_grace_ns;  // where the other side's end was closed: its process may have ended
    size_t most_kept = 8 << 20;   // bytes of copies
    size_t most_lent = 64 << 20;  // bytes in memory of others
    // So long without a word from the other side is a break, whatever the kernel says of its
    // machine. 0: it may stand still. Whoever looks reads for it, where nobody else does.
    int64_t silent_ns = 0;
    // After so many sent bytes a writer takes in what was acknowledged, where nobody else reads, so
    // that little memory is kept and used again soon. 0: it does not, as whoever waits for bytes
    // waits for the connection and not here.
    size_t hear_after = 0;
    // Whoever reads looks for so long before he sleeps, at most (Stream::look_before_sleeping).
    uint64_t looks_ns = 0;
    // The other side of a connection by which something is sent again takes some of it in so many
    // seconds, or another connection has to be made: nobody looks meanwhile whether it is there.
    int takes_some_seconds = 15;
  };

  ResumableStream(std::unique_ptr<Connection> first, const Terms& terms);
  ~ResumableStream() override;

  ssize_t read(const iovec* parts, int count) override;
  bool write(iovec* parts, int count) override;
  bool write_lent(iovec* parts, int count, std::shared_ptr<const void> held) override;
  bool settle() override;
  void try_write(const void* data, size_t n) override;
  std::byte* await_placed(size_t bytes) override;
  bool pending() const override;
  bool readable() const override;
  bool writable() const override;
  void finish() override;
  void give_up() override { give_up(std::string()); }
  uint32_t last_words(std::string* why) override;

  // `why` is for last_words() where the other side has said nothing; empty: nothing is known.
  void give_up(const std::string& why);
  // Nobody waits for anything here any more. `status`: a CUresult for last_words(), and why.
  void end(uint32_t status = 0, const std::string& why = {});

  // Whoever dials, in one thread: waits for a break, and finds that of a connection which nobody
  // reads; false: it did not come in time, or the stream is over.
  bool wait_for_break(int64_t nanoseconds);
  // A number above that of every connection so far, and of every attempt: the other side may have
  // taken one that failed here.
  uint32_t next_epoch();
  // The other side has proved who it is. False: it is not newer than what there is, or its words
  // make no sense; the stream goes on without it.
  bool resume(uint32_t epoch, std::unique_ptr<Connection> next);
  // Asked every few seconds: says a word where nothing else was said since, and breaks a connection
  // that is silent although something is under way, whose other end is closed or of which a subflow
  // is lost. True: it has been broken for too long.
  bool look(uint32_t silent_ms);
  bool over() const;
  // Whether it was the other side's end that was closed when it broke last.
  bool was_closed() const;
  // Since when there has been no connection, by now_ns(); 0: there is one.
  int64_t broken_since() const;
  // As the kernel saw it when somebody looked last.
  uint32_t round_trip_us() const override { return round_trip_us_.load(std::memory_order_relaxed); }
  // -1: there is none now.
  int socket() const;

  // As read(), but what is not there yet is not waited for, nor is another connection: 0.
  ssize_t read_present(const iovec* parts, int count);

  // A connection beside the one with that epoch, for bulk, of which the other side knows too; they
  // greet each other. False: there is another by now, or a subflow with that number; it is closed.
  bool take_subflow(uint32_t epoch, uint32_t number, std::unique_ptr<Connection> subflow);
  bool add_subflow(uint32_t epoch, uint32_t number, std::unique_ptr<Connection> subflow);
  // Bulk comes or goes: whoever dials is told once for each connection that it has no subflows.
  void want_subflows();
  bool take_wanted(uint32_t* epoch);
  // Whether bulk goes over several connections right now.
  bool has_subflows() const;

  // Told of each connection after the first, before anything is read from it.
  std::function<void(int socket)> on_connection;
  // … and of its break, as the socket lives on for as long as somebody looks at it.
  std::function<void(int socket)> on_break;

 private:
  using Link = std::shared_ptr<Connection>;
  struct Place;  // where a reader's bytes go

  // Whether something is here that a reader did not want yet.
  bool has_taken_in() const;

  static int64_t now();
  // After a failed read or write: whether the other end was closed, and not the way to it lost.
  static bool was_reset();
  Link link() const;
  Link await_link();
  void broke(const Link& link, bool closed);
  void failed(const Link& link, bool closed);
  void keep_alive(const Link& link);
  void take_in(const Link& link);
  bool nothing_came(const Link& link);
  int64_t expires_at() const;           // mutex_ held
  bool has_expired(int64_t now) const;  // mutex_ held

  bool write_parts(iovec* parts, int count, size_t lent, std::shared_ptr<const void> held);
  bool send_parts(const Link& link, iovec* parts, int count, size_t bytes, bool lent,
                  const std::shared_ptr<const void>& held);
  bool send_bulk(const Link& link, const iovec& part, uint32_t subflows, bool lent,
                 const std::shared_ptr<const void>& held);
  void stop_ahead();
  bool send_record(const Link& link, iovec* parts, int count, size_t bytes, uint32_t flags,
                   bool kept = false);
  bool send_again(const Link& link, uint64_t from);
  bool has_room(size_t copied, size_t lent) const;  // mutex_ held
  bool wait_for_acknowledgement(uint64_t upto, bool settled);
  void acknowledge();
  void hear_acknowledgements(const Link& link);
  static bool hear(const Connection& link, wire::StreamRecord* hello);
  void acknowledged(uint64_t upto, const Link& link);

  size_t take_waiting(Place* place);
  ssize_t receive(const Link& link, Place* place);
  ssize_t receive_bulk(const Link& link, Place* place);
  ssize_t received(bool good, ssize_t got);
  bool take_header(const Link& link);
  bool scan(const std::byte* data, size_t n, Place* place, const Link& link);

  const Terms terms_;

  mutable std::mutex mutex_;  // of the following; taken after the two below, or alone
  std::condition_variable changed_;
  Link link_;
  uint32_t epoch_ = 0, asked_ = 0;
  int64_t broken_at_ = 0;
  bool closed_ = false, over_ = false;
  bool last_ = false;     // no connection follows this one
  bool expired_ = false;  // none came in time
  uint32_t said_ = 0;     // the CUresult that the session was ended with, and why
  std::string why_;
  KeptBytes kept_;  // sent and not acknowledged
  Link ahead_;      // over whose subflows something lent may still be on its way
  enum class Wanted : uint8_t { kNot, kSaid, kTaken };
  std::atomic<Wanted> wanted_{Wanted::kNot};  // for subflows of this connection
  std::atomic<uint32_t> round_trip_us_{0};
  std::atomic<int> wake_{-1};  // an eventfd for whoever waits for a break and looks at the socket

  std::mutex write_mutex_;  // the order of what is sent
  std::atomic<bool> owes_acknowledgement_{false};
  size_t unheard_ = 0;             // bytes sent since somebody looked what was acknowledged
  std::atomic<uint64_t> told_{0};  // how much the other side knows to have been received

  std::mutex read_mutex_;  // of a connection's reading, and of:
  Link reading_;           // what the next three are about
  uint32_t left_ = 0;      // of the record that is being received
  size_t header_bytes_ = 0;
  std::byte header_[16];
  std::vector<std::byte> scratch_;
  std::vector<std::byte> in_;  // received, and nobody has taken it yet
  size_t in_begin_ = 0;
  std::atomic<size_t> waiting_in_{0};
  // Of a record whose bytes come over subflows: how many of both; and what has been read behind it.
  std::atomic<uint32_t> bulk_bytes_{0};
  uint32_t bulk_subflows_ = 0;
  std::vector<std::byte> behind_bulk_;
  std::atomic<uint64_t> received_{0};
  std::atomic<uint64_t> arrivals_{0};  // how often something came

  uint64_t arrivals_seen_ = 0;  // of whoever looks
  int64_t heard_at_ = 0;
  Link looked_at_;
};

}  // namespace sluice::channel
