// SPDX-License-Identifier: Apache-2.0
#include "client/driver/across_nodes.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "channel/thread.h"
#include "client/core/addresses.h"
#include "client/core/enter.h"
#include "client/core/log.h"
#include "client/driver/transfer_pieces.h"
#include "client/driver/wait.h"
#include "client/objects/event.h"

namespace sluice::client {

namespace {

// Of a copy from node to node, by way of this process.
constexpr uint64_t kPieceBytes = 16 << 20;

// A stream of a device for what other nodes' streams want done on it: one of a few, so that what
// waits there seldom waits for another's. Whoever is before it was sent before, so waiting for that
// takes longer and is no circle.
CUresult crossing_stream(Session* s, Device* d, Stream** stream) {
  static std::mutex making;
  std::lock_guard lock(making);
  uint64_t& id = d->crossing[d->crossings++ % d->crossing.size()];
  if (id && (*stream = s->streams.find(id))) return CUDA_SUCCESS;
  return mint_stream(s, d, CU_STREAM_NON_BLOCKING, 0, &id, stream);
}

Device* device_of(Session* s, const Stream* stream, uint64_t address, uint64_t bytes) {
  if (Device* d = device_of_address(s, address)) return d;
  // A module's global: another node may have one at the same address, and its own is meant then.
  ModuleGlobal global;
  const bool is_one = s->module_globals.find(address, bytes, stream->device->place.node, &global) ||
                      s->module_globals.find(address, bytes, &global);
  return is_one ? global.device : stream->device;
}

CUresult own_or_crossing(Session* s, Stream* stream, Device* d, Stream** where) {
  *where = stream;
  return d->place.node == stream->device->place.node ? CUDA_SUCCESS : crossing_stream(s, d, where);
}

// From one node's memory to another's: while a piece is written there, the next is read here.
CUresult relay(Session* s, Stream* reading, const DeviceSide& from, Stream* writing,
               const DeviceSide& to, Rect r) {
  const uint64_t most = std::min(kPieceBytes, r.width * r.rows);
  std::vector<std::byte> pieces[2];
  size_t count = 0;
  CUresult written = CUDA_SUCCESS;
  channel::Thread writer;
  const CUresult read =
      transfer::for_pieces(r, most, [&](uint64_t row, uint64_t column, Rect part) {
        std::vector<std::byte>& piece = pieces[count++ % 2];
        piece.resize(most);
        if (const CUresult e = copy_to_host(s, reading, piece.data(), part.width,
                                            from.at(row, column), part, true);
            e != CUDA_SUCCESS)
          return e;
        writer.join();
        if (written != CUDA_SUCCESS) return written;
        const auto write = [&, there = to.at(row, column), part] {
          written = copy_to_device(s, writing, there, piece.data(), part.width, part, true);
        };
        const bool last = row + part.rows == r.rows && column + part.width == r.width;
        if (!last && writer.start("sluice-across", write, channel::Signals::kBlocked))
          return CUDA_SUCCESS;
        write();
        return written;
      });
  writer.join();
  return read != CUDA_SUCCESS ? read : written;
}

// The two ends of a transfer, each to its node; `work` is what the receiver's device is given.
CUresult send_pair(Session* s, const Stream* sending, wire::NodeTransfer sends, Stream* sends_work,
                   Stream* receiving, wire::NodeTransfer receives) {
  const Device &from = *sending->device, &to = *receiving->device;
  const NodeLinks::Pairing pair(s->node_links);
  sends.transfer = receives.transfer = pair.transfer;
  sends.peer = s->node_links.peer(to);
  receives.peer = s->node_links.peer(from);
  sends.stream = sending->wire_id;
  receives.stream = receiving->wire_id;
  if (const CUresult e = s->post(wire::kNodeSend, sends, {}, sends_work, from.context());
      e != CUDA_SUCCESS)
    return e;
  return s->post(wire::kNodeReceive, receives, {}, receiving, to.context());
}

// The stream of the end that the program's own stream is not of. In the legacy stream a copy comes
// behind whatever either device was given, and before what either gets then: not while a blocking
// stream of either captures.
CUresult other_end(Session* s, Stream* stream, Device* d, Stream** where) {
  if (stream->wire_id != 0) return crossing_stream(s, d, where);
  *where = &d->legacy;
  return s->captures.work(*where);
}

// From one node's memory to another's, straight, where the stream is of either. Nobody waits.
// Nothing: it is no such copy, or the nodes have no link. In the legacy stream of a third device a
// copy comes behind what all three were given, which only whoever waits for them all can make so.
std::optional<CUresult> copy_by_link(Session* s, Stream* stream, Device* target, uint64_t to,
                                     uint64_t to_pitch, Device* source, uint64_t from,
                                     uint64_t from_pitch, Rect r) {
  const uint32_t here = stream->device->place.node;
  const bool sends = source->place.node == here, receives = target->place.node == here;
  const bool is_thirds = stream->device != source && stream->device != target;
  if (sends == receives || (stream->wire_id == 0 && is_thirds)) return {};
  if (!s->node_links.between(*source, *target)) return {};
  Stream* other;
  if (const CUresult e = other_end(s, stream, sends ? target : source, &other); e != CUDA_SUCCESS)
    return e;
  Stream *const sending = sends ? stream : other, *const receiving = sends ? other : stream;
  note_use(s, sending, from);
  note_use(s, receiving, to);
  wire::NodeTransfer end{};
  end.width = r.width, end.rows = r.rows;
  end.whole_device = stream->wire_id == 0;
  wire::NodeTransfer reads = end, writes = end;
  reads.address = from, reads.pitch = from_pitch;
  writes.address = to, writes.pitch = to_pitch;
  return send_pair(s, sending, reads, sending, receiving, writes);
}

}  // namespace

CUresult wait_for_other_node(Session* s, Stream* stream, CUevent handle, Event* event) {
  if (stream->capture || event->captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const wire::EventId id{reinterpret_cast<uint64_t>(handle)};
  if (event->shared) return s->ask(*event->device, wire::kSharedEventSynchronize, id);
  if (event->value == 0) return CUDA_SUCCESS;
  if (!event->in_graph && s->work().idle(*event->device)) return CUDA_SUCCESS;  // it is done
  if (s->node_links.between(*event->device, *stream->device)) {
    Stream* tells;
    if (const CUresult e = crossing_stream(s, event->device, &tells); e != CUDA_SUCCESS) return e;
    wire::NodeTransfer sends{};
    sends.event = id.event;
    return send_pair(s, tells, sends, nullptr, stream, {});
  }
  const CUresult e = s->ask(*event->device, wire::kEventSynchronize, id);
  if (e == CUDA_SUCCESS && !event->in_graph)
    s->work().note_done(*event->device, event->stream, event->work);
  return e;
}

std::optional<CUresult> copy_across_nodes(Session* s, Stream* stream, uint64_t to,
                                          uint64_t to_pitch, bool to_device, uint64_t from,
                                          uint64_t from_pitch, bool from_device, Rect r) {
  const uint32_t here = stream->device->place.node;
  const auto end = [&](bool is_device, uint64_t address, uint64_t pitch) {
    const uint64_t bytes = (r.rows - 1) * pitch + r.width;
    return is_device ? device_of(s, stream, address, bytes) : stream->device;
  };
  Device* target = end(to_device, to, to_pitch);
  Device* source = end(from_device, from, from_pitch);
  if (target->place.node == here && source->place.node == here) return {};
  if (stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (to_device && from_device)
    if (const auto straight =
            copy_by_link(s, stream, target, to, to_pitch, source, from, from_pitch, r))
      return *straight;
  Stream *reading, *writing;
  if (const CUresult e = own_or_crossing(s, stream, source, &reading); e != CUDA_SUCCESS) return e;
  if (const CUresult e = own_or_crossing(s, stream, target, &writing); e != CUDA_SUCCESS) return e;
  // In stream order: after everything before it, before everything after it. In the legacy stream,
  // as CUDA has it between two devices, that is whatever either was given.
  if (const CUresult e = synchronize_stream(s, stream); e != CUDA_SUCCESS) return e;
  if (stream->wire_id == 0)
    for (Device* d : {source, target})
      if (const CUresult e = wait_idle(s, d); e != CUDA_SUCCESS) return e;
  auto* const host_to = reinterpret_cast<void*>(to);
  if (!to_device) return copy_to_host(s, reading, host_to, to_pitch, {from, from_pitch}, r, true);
  if (!from_device) {
    const CUresult e = copy_to_device(s, writing, {to, to_pitch},
                                      reinterpret_cast<const void*>(from), from_pitch, r, true);
    return e == CUDA_SUCCESS ? synchronize_stream(s, writing) : e;
  }
  const CUresult e = relay(s, reading, {from, from_pitch}, writing, {to, to_pitch}, r);
  return e == CUDA_SUCCESS && writing != stream ? synchronize_stream(s, writing) : e;
}

CUresult stream_for_memory(Session* s, Stream* stream, uint64_t address, uint64_t bytes,
                           Stream** where) {
  const CUresult e = own_or_crossing(s, stream, device_of(s, stream, address, bytes), where);
  if (e != CUDA_SUCCESS || *where == stream) return e;
  return stream->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : synchronize_stream(s, stream);
}

bool can_share(Session* s) {
  if (!s->spans_nodes()) return true;
  log_once(LogLevel::kError,
           "CUDA IPC: memory, pools and events of a process with vGPUs of several nodes "
           "(SLUICE_CROSS_NODE) cannot be opened by other processes, nor theirs by it: ask for "
           "vGPUs of one node, or exchange data by NCCL or by way of the host");
  return false;
}

}  // namespace sluice::client
