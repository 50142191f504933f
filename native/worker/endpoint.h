// SPDX-License-Identifier: Apache-2.0
// The worker's end of a channel. take() is called by one thread at a time (the leader, see
// executor.h); reply() by any. What take() yields is a private copy of the frame; nothing of it is
// believed yet but that its size fits.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "channel/rdma_opening.h"
#include "channel/region.h"
#include "channel/resumable_stream.h"
#include "channel/stream.h"
#include "wire/bodies/commands.h"
#include "wire/frame.h"

namespace sluice::worker {

class Endpoint {
 public:
  enum class Got { kFrame, kEmpty, kBroken, kGone };

  virtual ~Endpoint() = default;
  // `out` has room for kMaxFrameBytes. Network endpoints block instead of answering kEmpty.
  virtual Got take(std::byte* out) = 0;
  // Asked by take() of a network's endpoint for the place of a frame with bulk data, of so many
  // bytes, instead of `out`; nullptr: there is none. One of more than kMaxFrameBytes, up to
  // kMaxLargeFrameBytes, has to have one.
  std::function<std::byte*(size_t bytes)> place_for_bulk;
  // A place for a later frame, kept for it; nullptr: there is none now. And that frame has come.
  std::function<std::byte*()> place_ahead;
  std::function<void(std::byte* place)> came_to;
  virtual bool empty() = 0;
  // The client closed its session in good order, or its watcher says that it died.
  virtual bool closed() = 0;
  // Its machine, or the way to it, is gone. Asked now and then by the control thread.
  virtual bool lost() { return false; }
  // After that: whether it was the client's end that was closed, as when its process ends.
  virtual bool closed_by_client() { return false; }
  // Whether it can go on over another connection; then lost() is asked every few seconds.
  virtual bool resumable() const { return false; }
  // Since when its client has had no connection, by now_ns(); 0: it has one.
  virtual int64_t broken_since() const { return 0; }
  // Another connection of its client's, which has proved itself: goes on over it. May wait for the
  // client. False: the client has a newer one, or its words make no sense.
  virtual bool resume(uint32_t, std::unique_ptr<channel::ResumableStream::Connection>) {
    return false;
  }
  // The same, over RDMA: the client has asked for that and is told what there is. Where it does not
  // come to that the session's present connection stays what it is.
  virtual bool resume_over_rdma(uint32_t, std::unique_ptr<channel::ResumableStream::Connection>) {
    return false;
  }
  // Another that carries bulk beside the one with that epoch, if there is still that one.
  virtual bool take_subflow(uint32_t, uint32_t,
                            std::unique_ptr<channel::ResumableStream::Connection>) {
    return false;
  }
  // A connection whose hang-up (POLLRDHUP) says that the client sends nothing more; -1: none.
  virtual int connection() const { return -1; }
  // While nobody takes frames: takes some of what waits in the connection, so that an end behind it
  // is seen. May wait for the rest of a piece that has begun.
  virtual void read_ahead() {}
  // Whether nobody leads from now on, so that a frame that comes has to wake a sleeper: set before
  // the last look at an empty channel.
  virtual void set_sleeping(bool sleeping) = 0;
  // After set_sleeping(true): whether frames are there already that would wake nobody by
  // themselves.
  virtual bool unannounced() = 0;
  // Giving the lead up costs system calls, so it is worth asking first whether a wait would be one.
  virtual bool parking_is_dear() const = 0;
  // Sleep until woken: pass what wake_count() said before the last look.
  virtual uint32_t wake_count() = 0;
  virtual void sleep(uint32_t seen) = 0;
  virtual void wake_one() = 0;

  // `held`, if given, is what keeps `body`, which may then be sent later.
  virtual void reply(uint16_t lane, uint32_t sequence, uint32_t status,
                     std::span<const std::byte> head, std::span<const std::byte> body,
                     const std::shared_ptr<const void>& held = {}) = 0;
  // Lanes that there are; those of commands are held against it.
  virtual uint32_t lane_count() const = 0;
  // Largest body of a reply.
  virtual size_t reply_limit() const = 0;
  // Why the session is about to be ended, for the client's user: before publish_error(…, true).
  virtual void say_why(const std::string&) {}
  // Every later call of the client returns `error`. `over`: and the session has ended.
  virtual void publish_error(uint32_t error, bool over) = 0;
  // The opening reply: head, record and devices. Then the session runs.
  virtual bool publish_record(std::span<const std::byte> all, std::string* error) = 0;

  // Memory that the client shares; empty on a network.
  virtual std::span<std::byte> arena() = 0;
  virtual std::atomic<uint64_t>* marks() = 0;
  virtual size_t mark_count() const = 0;
  // The word that client and worker both charge a vGPU's memory in; nullptr on a network.
  virtual std::atomic<uint64_t>* memory_used(uint32_t device) = 0;
  // For clients that share no such word. Those that do have nothing to be told.
  virtual void tell_library_memory(const wire::LibraryMemory& memory) = 0;
  // A link to another node is over (node_link.h): copies to and from there go by way of the client.
  virtual void tell_link_lost(uint32_t) {}
  virtual uint64_t bytes_in() const = 0;
  // Whether it goes over RDMA now: as was agreed when the record was published, or since.
  virtual bool over_rdma() const { return false; }
};

// What an endpoint offers its client, where the session is to go over RDMA.
struct RdmaPlan {
  std::shared_ptr<channel::RdmaDevice> device;  // null: it could not be opened
  std::string why_none = "its worker was started without --rdma";
};

// A formatted slot of the region (formats it: the session starts blank).
// `arena_address`: as MappedSlot::map() takes it.
std::unique_ptr<Endpoint> make_shm_endpoint(int region_fd, size_t region_bytes, uint32_t slots,
                                            uint32_t slot, bool format, uint64_t arena_address,
                                            std::string* error);
// A slot that is mapped, formatted and blank.
std::unique_ptr<Endpoint> make_shm_endpoint(channel::MappedSlot slot);
// A connected socket, from which the server has read the OpenSession frame, and its stream where it
// is not plain. With `terms` the session outlives the connection; with `rdma` it goes over that as
// soon as its client agrees.
std::unique_ptr<Endpoint> make_tcp_endpoint(
    int socket, std::unique_ptr<channel::Stream> stream = {},
    const std::optional<channel::ResumableStream::Terms>& terms = {},
    std::optional<RdmaPlan> rdma = {});

}  // namespace sluice::worker
