// SPDX-License-Identifier: Apache-2.0
// The bytes of one connection, in both directions: as the socket carries them (here), under TLS
// (tls/record_stream.h, tls/kernel_stream.h), or through a slot of shared memory to a relay that
// has the socket (region_stream.h). One thread reads at a time and one writes, at the same time as
// it likes. The socket, where there is one, stays its owner's, blocks, and outlives the stream.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "channel/spin_time.h"

struct msghdr;

namespace sluice::channel {

class Stream {
 public:
  explicit Stream(int socket) : socket_(socket) {}  // -1: there is none
  virtual ~Stream() = default;
  // What has come, as far as there is room; waits while nothing has. 0: the other side is through.
  // -1: the connection is lost, or what came is not the other side's.
  virtual ssize_t read(const iovec* parts, int count) = 0;
  // All of it, or false: the connection is lost. Changes `parts`.
  virtual bool write(iovec* parts, int count) = 0;
  // As write(), but the last part may be kept as it is: until settle(), or with `held`, which goes
  // when it is not needed any more.
  virtual bool write_lent(iovec* parts, int count, std::shared_ptr<const void> /*held*/) {
    return write(parts, count);
  }
  // What was lent is the caller's again. False: the connection is lost.
  virtual bool settle() { return true; }
  // As write(), of what is kept for the case that it has to be sent again over another stream: the
  // last part stays as it is until the other side has said that it has it.
  virtual bool write_kept(iovec* parts, int count) { return write(parts, count); }
  // A few bytes if there is room for them now; whether they went does not come back.
  virtual void try_write(const void* data, size_t n) = 0;
  // Whether something came of which poll() on the socket does not tell any more. Asked by anybody.
  virtual bool pending() const { return false; }
  // Waits until something can be read. Where that is a part of so many bytes, and lies already
  // where it was to be written (rdma_placing.h): there; reading it to that place copies nothing.
  virtual std::byte* await_placed(size_t /*bytes*/) { return nullptr; }
  // Before its first use: whoever reads from the socket and finds nothing looks again for up to so
  // many nanoseconds before he sleeps, where the last waits were as short (spin_time.h).
  void look_before_sleeping(uint64_t most, int processors = usable_processors()) {
    patience_ = SpinTime({0, most}, processors);
  }
  // Whether read() would return at once. Asked by the reader.
  virtual bool readable() const;
  // Whether a write of a few KiB would return at once.
  virtual bool writable() const;
  // Nothing more is written from here.
  virtual void finish();
  // Ends both directions: whoever reads or writes comes back.
  virtual void cut();
  // Before its first use, of a connection that follows another of which nobody reads or writes any
  // more. False: it is gone already.
  virtual bool begin() { return true; }
  // As readable(), within so long. Asked by the reader.
  virtual bool wait_readable(int milliseconds);
  // Whether the other end was closed, or the way to it lost, of which a read would tell.
  enum class Line { kUp, kClosed, kLost };
  virtual Line line() const;
  // The socket that is closed with it; -1: none.
  int socket_of_it() const { return socket_; }
  // Whether nothing has been acknowledged for so long although something is under way, where the
  // kernel can tell that.
  virtual bool unheard_of(uint32_t milliseconds) const;
  virtual uint32_t round_trip_us() const;
  // Whether no connection can follow this one: the session itself was ended.
  virtual bool is_last() const { return false; }
  // The session is over: a connection that ends is not missed.
  virtual void give_up() {}
  // After the end: the CUresult that was said beside the bytes, and why; 0 where none was.
  virtual uint32_t last_words(std::string*) { return 0; }

 protected:
  // As recvmsg(): waits while nothing has come, through signals.
  ssize_t receive(msghdr* message) const;

  const int socket_;

 private:
  mutable SpinTime patience_;  // the reader's
};

class PlainStream : public Stream {
 public:
  explicit PlainStream(int socket) : Stream(socket) {}
  ssize_t read(const iovec* parts, int count) override;
  bool write(iovec* parts, int count) override;
  void try_write(const void* data, size_t n) override;
};

// sendmsg() until everything is sent. Changes `parts`.
bool send_parts(int socket, iovec* parts, int count);

// Whether the machine at the other end of a TCP connection has acknowledged nothing for so long,
// though something was sent: it, or the way to it, is gone. Keep-alive asks only where nothing is
// under way, and the kernel itself sends such bytes again for a quarter of an hour. One whose
// process does not read still acknowledges.
bool unheard_of(int socket, uint32_t milliseconds);
// Of a connection that another may follow: so long without an acknowledgement of what was sent, or
// where the other side never stands still without a word of it, is a break. Both sides of a session
// say something every five seconds, those of a link every two; who looks every five finds it within
// 15 (docs/protocol.md, "When a connection breaks").
inline constexpr uint32_t kSilentMs = 10'000;
inline constexpr int64_t kSilentNs = int64_t{kSilentMs} * 1'000'000;
// Has the kernel ask after so many idle seconds whether the other end is there, again after
// `interval`, and take so many unanswered `probes` for its end; small writes go at once.
struct KeepAlive {
  int idle, interval, probes;
};
void keep_alive(int socket, const KeepAlive& how);
// How long a round trip takes, smoothed; 0: it is no TCP connection, or nothing has gone round yet.
uint32_t round_trip_us(int socket);

}  // namespace sluice::channel
