// SPDX-License-Identifier: Apache-2.0
// The account of work that devices and streams were given, and of how much of it is known to be
// done. Commands that give a device work are numbered, device by device, while they are appended to
// the channel: the account owns the lock under which that happens, so numbers are in the channel's
// order. What is done it learns from waits that have ended; it asks nobody.
// Session::append() counts; streams, events, pools and graphs ask.
#pragma once

#include <cstdint>
#include <mutex>

namespace sluice::client {

struct Device;
struct Stream;

// The work that a stream had been given at some moment, as a number of its device's work.
struct StreamPoint {
  uint64_t work = 0;
  // The stream was ordered behind other streams' work by the rules of the default stream only: just
  // the whole device's progress says when that is done.
  bool whole_device = false;
};

// A stream's part.
class StreamWork {
  friend class WorkAccount;
  uint64_t last_ = 0;  // the newest work that it was given
  uint64_t done_ = 0;  // up to where its work is known to be done
  uint64_t seen_ = 0;  // the newest work of which the host may notice that it is done
};

// A device's part.
class DeviceWork {
  friend class WorkAccount;
  uint64_t issued_ = 0;            // commands that gave it work
  uint64_t idle_at_ = 0;           // how many of them are known to be done
  uint64_t last_blocking_ = 0;     // the newest work of streams that the legacy one waits for
  uint64_t seen_blocking_ = 0;     // and of that, what the host may notice
  Stream* only_stream_ = nullptr;  // that has all work not known to be done; nullptr: several have
};

class WorkAccount {
 public:
  using Appending = std::lock_guard<std::mutex>;

  // For whoever appends a command, from before it is written until it is committed.
  [[nodiscard]] Appending appending() { return Appending(mutex_); }
  // The command that is being appended gives `stream` work, unless it goes into a graph. `seen`:
  // the host may notice that it is done, as by memory that both reach; not so of a copy to the
  // device whose bytes have left, or of a fill there.
  void count(Stream& stream, bool seen, const Appending&);
  // A command that was sent gave work to this stream, too.
  void add(Stream& stream, bool seen = true) { count(stream, seen, appending()); }
  // An event is about to be recorded in it, which may be asked whether it is done: its number.
  uint64_t add_event(Stream& stream);

  // What a completed wait teaches: all work of `stream` (nullptr: of the device) up to number
  // `upto` is done.
  void note_done(Device& device, Stream* stream, uint64_t upto);
  // The stream is gone and its place may be another's soon, while its work goes on.
  void forget(Device& device, const Stream* stream);

  // The number of the newest work.
  uint64_t issued(const Device& device);
  // Whether all work is known to be done.
  bool idle(const Device& device);
  // Whether all that a wait for the stream would wait for is known to be done.
  bool finished(const Stream& stream);
  // Whether the host cannot notice the end of anything that a wait for the stream would wait for.
  bool unseen(const Stream& stream);
  // Where all that the stream has been given ends, and whether all before such a point is known to
  // be done. `stream` may be nullptr for points of a whole device.
  StreamPoint point(const Stream& stream);
  bool passed(const Device& device, const Stream* stream, StreamPoint point);

 private:
  std::mutex mutex_;  // of every StreamWork and DeviceWork, and of appending
};

}  // namespace sluice::client
