// SPDX-License-Identifier: Apache-2.0
// The connection of this session's worker to that of another node which has vGPUs of the same
// client (docs/protocol.md, "Between nodes"): copies between the two nodes' memory, and events of
// the one that streams of the other wait for. Each transfer has two ends, of which the client tells
// each worker its own; a message names a transfer and never an address. So a peer that was taken
// over reaches the bytes of copies to here that this node's client has asked for, and nothing else.
//
// Nobody waits for anybody: the streams of both ends wait for words in pinned memory, which are
// written when a transfer's bytes are about to move and when it is done. A sender sends what its
// receiver is ready for, so no message waits for another's transfer, and whatever streams wait for
// one another natively may do so here. All that the driver is to do for a transfer it is given when
// the transfer begins, by the client's lane (link_kernel.h): three threads of the link's, of which
// one writes, one reads and one looks after the connection, which is made again where it breaks
// (channel/resumable_stream.h), only write words, and call no driver.
//
// What is bounded: transfers under way, numbers that a peer is ready for before the client has told
// this side of them, staging memory. Whoever is told of more transfers waits, as for CUDA's own
// full queue.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "channel/resumable_stream.h"
#include "channel/thread.h"
#include "wire/bodies/commands.h"
#include "worker/driver.h"
#include "worker/link_kernel.h"
#include "worker/link_slots.h"
#include "worker/link_staging.h"

namespace sluice::worker {

class Session;

class NodeLink {
 public:
  static constexpr size_t kMostTransfers = LinkSlots::kSlots;

  // `peer`: the first of the client's vGPUs there. `dials`: whether this side has its server dial:
  // `ask` has it do so, for a connection with that epoch, and with 0 says that the link is over.
  NodeLink(Session& session, uint32_t peer, bool dials, std::function<bool(uint32_t epoch)> ask);
  ~NodeLink();

  // Memory, threads and a first connection. False with `why`: there is no link.
  bool open(std::string* why);
  bool is_open();
  // The client says that it is over, while both nodes are there: the other end has given it up, or
  // this one has.
  void given_up();

  // An end of a transfer, of which the range and the stream have been checked and the stream's
  // context is current; may wait for room. kSends with `event` set and no rows: it is the event's.
  // `prepared`: what the driver said to what the stream was to be given before. Where that or what
  // it says here is an error, which is returned, the peer is told that the transfer does not begin.
  enum class End { kSends, kReceives };
  struct Place {
    uint32_t memory = 0;  // the device whose memory it is
    uint32_t device = 0;  // the stream's
    CUstream stream = nullptr;
    CUevent event = nullptr;
  };
  CUresult begin(End end, const wire::NodeTransfer& transfer, const Place& place,
                 CUresult prepared);
  // Whether a transfer with this number is under way here.
  bool knows(uint64_t transfer);

  // The server has a connection, or none; not the main thread, as the peer is waited for.
  void connected(uint32_t epoch, std::unique_ptr<channel::ResumableStream::Connection> connection);
  void refused(const std::string& why, bool over);
  // Whatever the server was asked, no answer is to come any more: it is another one.
  void ask_again();
  // This session's GPU has failed: the peer is told, and nothing goes on.
  void fail();

 private:
  struct Transfer {
    End end;
    wire::NodeTransfer of;
    LinkSlots::Slot slot;
    std::atomic<bool> holds_slot{false};
    uint32_t posted = 0;             // pieces; of the thread that moves them
    std::atomic<uint64_t> done{0};   // bytes that were sent, or have come
    std::atomic<bool> ready{false};  // the receiver is, as the sender was told
    bool begun = false;              // the driver has taken all work for it
    bool refused = false;            // or not: the receiver, once ready, is told
    bool reached = false;            // by the stream
    bool is_event() const { return of.rows == 0; }
    uint64_t bytes() const { return of.width * of.rows; }
  };
  using Known = std::shared_ptr<Transfer>;

  bool start_threads();
  bool make_memory(std::string* why);
  channel::ResumableStream* stream();  // made at its first use
  void look_after();
  void lose(const std::string& why);
  void incomplete();

  CUresult issue(const Known& t, const Place& place);
  CUresult issue_move(const Known& t, const Place& place);
  CUresult issue_kernel(const Known& t, uint32_t device, CUstream stream);
  void go_on(const Known& t);   // mutex_ held
  void refuse(const Known& t);  // mutex_ held
  CUresult tell(CUstream stream, void (NodeLink::*what)(const Known&), const Known& t);
  void reached(const Known& t);
  void landed(const Known& t);
  bool under_way(const Known& t);  // mutex_ held
  Known find(uint64_t transfer, End end);
  void release(Transfer& t);  // mutex_ held
  void finish(const Known& t);

  bool broken(const std::string& what);
  bool take(const wire::LinkMessage& message);
  bool take_receivers(uint64_t transfer, bool ready);
  bool take_senders_refusal(uint64_t transfer);

  // node_link_copies.cc
  void write_all();
  bool say_waiting();
  bool say(const wire::LinkMessage& message);
  bool send(const Known& t);
  bool send_pieces(Transfer& t);
  bool send_piece(const Transfer& t, const Staging::Piece& piece, size_t bytes);
  void read_all();
  bool read_exactly(void* to, size_t n);
  bool take_data(uint64_t transfer, uint32_t bytes);
  Staging::Piece piece_for_data();
  bool post(Transfer& t, const Staging::Piece& piece, size_t bytes);
  void await_moved(const Transfer& t, uint32_t piece);

  Session& session_;
  const uint32_t peer_;
  const bool dials_;
  const std::function<bool(uint32_t)> ask_;

  std::mutex stream_mutex_;
  std::unique_ptr<channel::ResumableStream> stream_;

  std::mutex open_mutex_;
  bool opened_ = false;  // it was tried

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  bool open_ = false, over_ = false, failed_ = false;
  bool told_ = false;      // the client has been told that it is over
  bool let_go_ = false;    // a stream went on for whose event nobody has spoken
  bool given_up_ = false;  // by the client
  std::string why_;
  bool answered_ = false;  // what was asked of the server
  std::map<uint64_t, Known> transfers_;
  // What receivers said of transfers of which the client has not told this side yet: whether ready.
  std::map<uint64_t, bool> early_;
  std::deque<wire::LinkMessage> to_say_;
  std::deque<Known> to_send_;
  std::unique_ptr<LinkSlots> slots_;

  LinkKernel* kernel_ = nullptr;
  std::unique_ptr<Staging> out_, in_;
  // The reader's: what the GPU may still read, oldest first.
  struct Landing {
    Known transfer;
    uint32_t number;
    Staging::Piece piece;
  };
  std::deque<Landing> landing_;
  channel::Thread writer_, reader_, keeper_;
};

}  // namespace sluice::worker
