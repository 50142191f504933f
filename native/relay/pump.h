// SPDX-License-Identifier: Apache-2.0
// The two directions of a relayed session: from the slot's ring into the connection, from the
// connection into the slot's way back, without a copy in between. Each has a thread; while small
// questions and answers follow one another, the first reads too, so that an answer wakes nobody. It
// understands nothing of what it carries. The client is hostile: of the slot only counters are
// read, and those that no client of ours writes end the session.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "channel/region_stream.h"
#include "process/control.h"

namespace sluice::relay {

class Pump {
 public:
  // The slot is mapped with its arena and started. `node` is named in lines for the client's user;
  // `ended` is called once, on whichever thread learns of the end, and does not return in the
  // relay itself.
  Pump(channel::MappedSlot slot, std::unique_ptr<channel::Stream> stream, int socket,
       std::string node, std::function<void(const process::End&)> ended);

  // The opening reply goes into the mailbox and the slot is ready; false with `error`: the client
  // went away meanwhile.
  bool open(std::span<const std::byte> reply, std::string* error);
  // False: there are no threads to be had.
  [[nodiscard]] bool start();

  // The client's calls return `error` from now on, its user is told the reason, and ended() is
  // called. Where the client has closed its slot, what it sent before is carried first.
  void end(const process::End& why, uint32_t error);

  uint64_t bytes_in() const { return bytes_in_.load(std::memory_order_relaxed); }  // of the client
  uint64_t bytes_out() const { return bytes_out_.load(std::memory_order_relaxed); }  // to it

 private:
  enum Reader : uint32_t { kDown, kUp };  // whose thread reads the connection

  void up();
  void down();
  // Something was read, or the end was: then false, and the session has ended.
  bool carry_back(iovec parts[2], int n, bool discards, size_t* got);
  bool read_little();    // of the thread that sends, when it reads
  void leave_reading();  // to the other thread
  bool ready() const;    // neither side has closed the slot
  void finish(const process::End& why, uint32_t error);
  void wake_reader();

  channel::MappedSlot slot_;
  std::unique_ptr<channel::Stream> stream_;
  const int socket_;
  const std::string node_;
  const std::function<void(const process::End&)> ended_;
  channel::ByteConsumer in_;
  channel::ByteProducer back_;
  std::atomic<uint32_t> reader_{kDown};
  std::atomic<bool> hot_{false};  // the thread that sends is looking, and would read as well
  std::atomic<bool> over_{false};
  std::atomic<uint64_t> bytes_in_{0}, bytes_out_{0};
};

}  // namespace sluice::relay
