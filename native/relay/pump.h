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
#include "relay/carrier.h"

namespace sluice::relay {

class Pump : public Carrier {
 public:
  // The slot is mapped with its arena and started. `node` is named in lines for the client's user;
  // `ended` is called once, on whichever thread learns of the end, and does not return in the
  // relay itself.
  Pump(channel::MappedSlot slot, std::string node, std::function<void(const process::End&)> ended);

  // Before open() or take_up().
  void carry(std::unique_ptr<channel::Stream> stream, int socket) override;
  // The session outlives its connections, of which this is the one of that number
  // (SlotHeader::link). Once it is lost and nothing here touches the slot any more, `lost` is
  // called. Before open() or take_up().
  void outlive(uint32_t link, std::function<void()> lost);
  // The opening reply goes into the mailbox and the slot is ready; false with `error`: the client
  // went away meanwhile.
  bool open(std::span<const std::byte> reply, std::string* error);
  // In place of open(): the client has been told of the connection, and uses it when it sees that.
  // False: it went away.
  bool take_up();
  [[nodiscard]] bool start() override;

  // The client's calls return `error` from now on, its user is told the reason, and ended() is
  // called. Where the client has closed its slot, what it sent before is carried first.
  void end(const process::End& why, uint32_t error) override;
  void look() override;

 private:
  enum Reader : uint32_t { kDown, kUp };  // whose thread reads the connection

  void up();
  void down();
  void carry_up();
  void carry_down();
  // Something was read, or the end was: then false, and the session or its connection has ended.
  bool carry_back(iovec parts[2], int n, bool discards, size_t* got);
  bool read_little();    // of the thread that sends, when it reads
  void leave_reading();  // to the other thread
  bool ready() const;    // neither side has closed the slot
  bool through() const;  // nothing more is carried
  bool await_client();
  bool client_left();
  void lose();
  void thread_ended();
  void finish(const process::End& why, uint32_t error);
  void wake_reader();

  channel::MappedSlot slot_;
  std::unique_ptr<channel::Stream> stream_;
  std::atomic<int> socket_{-1};
  const std::string node_;
  const std::function<void(const process::End&)> ended_;
  uint32_t link_ = 0;  // 0: the session ends with its connection
  std::function<void()> told_lost_;
  bool taken_ = false;  // of the thread that sends: the client uses the connection
  channel::ByteConsumer in_;
  channel::ByteProducer back_;
  std::atomic<uint32_t> reader_{kDown};
  std::atomic<bool> hot_{false};  // the thread that sends is looking, and would read as well
  std::atomic<bool> over_{false}, lost_{false};
  std::atomic<int> threads_{0};
};

}  // namespace sluice::relay
