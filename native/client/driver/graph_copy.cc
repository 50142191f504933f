// SPDX-License-Identifier: Apache-2.0
// Copies in graphs. Between device memory and the arena a copy is the driver's own. Host memory
// that the worker cannot reach has a stand-in: a block of the arena or, over a network, a shadow in
// the worker; a function on this side fills it when the node runs, or empties it. So the memory is
// read and written when the graph comes to the node, as CUDA does, however often and from wherever
// it is launched. Between two places on the host such a function is all there is.
#include "client/core/addresses.h"
#include "client/driver/graph.h"

namespace sluice::client {

namespace {

std::mutex g_mutex;  // what follows
struct Limbo {
  void* at;
  uint64_t shadow;
  uint64_t bytes;
  Device* device;
};
std::vector<Limbo> g_limbo;  // stand-ins that a run may still be using
uint64_t g_next_shadow = 1, g_shadow_bytes = 0;

struct Box {
  uint64_t width = 0, rows = 0, depth = 0;
  uint64_t bytes() const { return width * rows * depth; }
};

// Rows of a box in host memory, from the first to the last of them.
struct Rows {
  std::byte* at = nullptr;
  uint64_t pitch = 0, slice = 0;
  std::byte* row(uint64_t z, uint64_t y) const { return at + z * slice + y * pitch; }
};

void move_box(const Rows& to, const Rows& from, const Box& box) {
  for (uint64_t z = 0; z < box.depth; ++z)
    for (uint64_t y = 0; y < box.rows; ++y) std::memmove(to.row(z, y), from.row(z, y), box.width);
}

// Stand-ins go once their device has nothing left to do.
void empty_limbo(Session* s) {
  std::lock_guard lock(g_mutex);
  std::erase_if(g_limbo, [&](const Limbo& l) {
    if (!s->work().idle(*l.device)) return false;
    if (l.at) return s->host_memory().release(l.at), true;
    g_shadow_bytes -= l.bytes;
    s->post(wire::kShadowMake, wire::ShadowMake{l.shadow, 0}, {}, nullptr, l.device->context());
    return true;
  });
}

// What a graph copies to or from in the place of memory that the worker cannot reach: the box
// without gaps.
struct StandIn {
  Session* s = nullptr;
  Device* device = nullptr;
  Box box;
  std::byte* at = nullptr;  // in the arena
  uint64_t shadow = 0;      // or the worker's

  StandIn() = default;
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;
  ~StandIn() {
    std::lock_guard lock(g_mutex);
    if (at || shadow) g_limbo.push_back({at, shadow, box.bytes(), device});
  }

  Rows rows(std::byte* from) const { return {from, box.width, box.width * box.rows}; }
  wire::CopySide side() const {
    const auto place = at ? wire::NodeMemory::kArena : wire::NodeMemory::kShadow;
    return {at ? reinterpret_cast<uint64_t>(at) : shadow, box.width, box.width * box.rows, place,
            0};
  }

  // In the course of a run. What goes wrong on the way is the session's end.
  void fill(const Rows& from) const {
    if (at) return move_box(rows(at), from, box);
    std::vector<std::byte> packed(box.bytes());
    move_box(rows(packed.data()), from, box);
    const uint64_t limit = s->channel().inline_limit();
    for (uint64_t done = 0; done < packed.size(); done += limit) {
      const auto piece =
          std::span(packed).subspan(done, std::min<uint64_t>(limit, packed.size() - done));
      const wire::ShadowAccess a{shadow, done, piece.size(), 0};
      if (s->post(wire::kShadowWrite, a, piece, nullptr, device->context()) != CUDA_SUCCESS) return;
    }
  }
  void empty(const Rows& to) const {
    if (at) return move_box(to, rows(at), box);
    constexpr uint64_t kPiece = 1 << 20;
    std::vector<std::byte> packed(box.bytes());
    for (uint64_t done = 0; done < packed.size(); done += kPiece) {
      const auto piece =
          std::span(packed).subspan(done, std::min<uint64_t>(kPiece, packed.size() - done));
      const wire::ShadowAccess a{shadow, done, piece.size(), 0};
      size_t got = 0;
      const CUresult e =
          s->exchange(wire::kShadowRead, a, {}, piece, &got, nullptr, device->context());
      if (e != CUDA_SUCCESS || got < piece.size()) return;
    }
    move_box(to, rows(packed.data()), box);
  }
};

// nullptr: there is no room for it.
std::shared_ptr<StandIn> make_stand_in(Session* s, Device* device, const Box& box) {
  empty_limbo(s);
  auto made = std::make_shared<StandIn>();
  made->s = s;
  made->device = device;
  made->box = box;
  if (!s->marks()) {
    {
      std::lock_guard lock(g_mutex);
      if (box.bytes() > wire::kMaxShadowBytes - g_shadow_bytes) return nullptr;
      g_shadow_bytes += box.bytes();
      made->shadow = g_next_shadow++;
    }
    s->post(wire::kShadowMake, wire::ShadowMake{made->shadow, box.bytes()}, {}, nullptr,
            device->context());
    return made;
  }
  void* at = nullptr;
  if (!s->host_memory().allocate(box.bytes(), 0, device->index, &at)) return nullptr;
  if (!s->host_memory().in_arena(at, box.bytes())) {
    s->host_memory().release(at);
    return nullptr;
  }
  made->at = static_cast<std::byte*>(at);
  return made;
}

struct End {
  wire::CopySide side{};
  uint64_t span = 0;
  bool host = false;
  bool pinned = false;  // on the host, where the worker reaches it
  Rows rows() const { return {reinterpret_cast<std::byte*>(side.address), side.pitch, side.slice}; }
};

// One end of a copy. CUDA_ERROR_NOT_SUPPORTED: an array.
CUresult pack_end(Session* s, const Device* user, CUmemorytype type, const void* host,
                  CUdeviceptr device, uint64_t x, uint64_t y, uint64_t z, uint64_t pitch,
                  uint64_t height, const Box& box, End* end) {
  if (type == CU_MEMORYTYPE_ARRAY) return CUDA_ERROR_NOT_SUPPORTED;
  pitch = pitch ? pitch : box.width;
  height = height ? height : box.rows;
  if (pitch < box.width || height < box.rows) return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : device;
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  address += (z * height + y) * pitch + x;
  end->side = {address, pitch, pitch * height, wire::NodeMemory::kDevice, 0};
  uint64_t slices = 0, rows = 0, span = 0;
  if (__builtin_mul_overflow(box.depth - 1, end->side.slice, &slices) ||
      __builtin_mul_overflow(box.rows - 1, pitch, &rows) ||
      __builtin_add_overflow(slices, rows, &span) || __builtin_add_overflow(span, box.width, &span))
    return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEMORYTYPE_HOST && s->managed.any() && s->managed.contains(address))
    type = CU_MEMORYTYPE_DEVICE;
  if (type != CU_MEMORYTYPE_HOST && is_device_address(s, address))
    return is_backed(s, address, span, user) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  // By unified addressing pinned memory is the device's too.
  end->pinned = s->host_memory().in_arena(reinterpret_cast<void*>(address), span);
  if (type == CU_MEMORYTYPE_DEVICE && !end->pinned && !s->host_memory().is_unmapped(address, span))
    return CUDA_ERROR_INVALID_VALUE;
  end->host = true;
  end->span = span;
  if (end->pinned) end->side.place = wire::NodeMemory::kArena;
  return CUDA_SUCCESS;
}

template <class T>
void put(const T& value, std::vector<std::byte>* body) {
  const auto* at = reinterpret_cast<const std::byte*>(&value);
  body->insert(body->end(), at, at + sizeof value);
}

CUresult pack(Session* s, Device* device, const Box& box, End to, End from, HostCall call,
              PackedCopy* packed) {
  const std::vector<wire::MemOp> operations = handshake_operations(*call.words);
  if (call.kind == HostCall::Kind::kHostToHost) {
    packed->type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    put(wire::MemOpsNode{static_cast<uint32_t>(operations.size()), 0}, &packed->body);
    for (const wire::MemOp& op : operations) put(op, &packed->body);
    call.run = [to = to.rows(), from = from.rows(), box] { move_box(to, from, box); };
  } else {
    const bool to_device = call.kind == HostCall::Kind::kToDevice;
    const auto stand_in = make_stand_in(s, device, box);
    if (!stand_in) {
      note_refused("a copy of pageable memory larger than what stands in for it");
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    wire::StagedCopyNode node{};
    node.copy = {to.side, from.side, box.width, box.rows, box.depth};
    (to_device ? node.copy.from : node.copy.to) = stand_in->side();
    node.call_first = to_device;
    std::copy(operations.begin(), operations.end(), node.call);
    packed->type = wire::kStagedCopyNode;
    put(node, &packed->body);
    if (to_device)
      call.run = [stand_in, from = from.rows()] { stand_in->fill(from); };
    else
      call.run = [stand_in, to = to.rows()] { stand_in->empty(to); };
  }
  packed->calls.push_back(std::move(call));
  return CUDA_SUCCESS;
}

// Inside of a condition, where CUDA takes pinned memory only and no host functions: what the device
// does not reach has a stand-in that is filled before each launch, so that a body that does not run
// changes nothing, and emptied after it.
CUresult pack_in_body(Session* s, Device* device, const Box& box, End to, End from,
                      PackedCopy* packed) {
  End& host = to.host ? to : from;
  const auto reached = [&](const End& end) {
    return !end.host || end.pinned || s->host_memory().is_unmapped(end.side.address, end.span);
  };
  const auto stand_in =
      (to.host && from.host) || !reached(host) ? nullptr : make_stand_in(s, device, box);
  if (!stand_in) {
    note_refused("a copy of pageable memory in a condition");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  HostAround around;
  around.before = [stand_in, rows = host.rows()] { stand_in->fill(rows); };
  if (to.host) around.after = [stand_in, rows = host.rows()] { stand_in->empty(rows); };
  host.side = stand_in->side();
  packed->around.push_back(std::move(around));
  packed->type = CU_GRAPH_NODE_TYPE_MEMCPY;
  put(wire::CopyNode{to.side, from.side, box.width, box.rows, box.depth}, &packed->body);
  return CUDA_SUCCESS;
}

CUDA_MEMCPY3D flat(Rect r) {
  CUDA_MEMCPY3D c{};
  c.WidthInBytes = r.width, c.Height = r.rows, c.Depth = 1;
  return c;
}

}  // namespace

CUresult pack_copy(Session* s, Device* device, const CUDA_MEMCPY3D& c, const HostCall* now,
                   bool fixed, bool body, PackedCopy* packed) {
  const Box box{c.WidthInBytes, c.Height, c.Depth};
  uint64_t rows = 0, bytes = 0;
  if (!box.width || !box.rows || !box.depth || __builtin_mul_overflow(box.width, box.rows, &rows) ||
      __builtin_mul_overflow(rows, box.depth, &bytes))
    return CUDA_ERROR_INVALID_VALUE;
  End to, from;
  if (const CUresult e = pack_end(s, device, c.dstMemoryType, c.dstHost, c.dstDevice, c.dstXInBytes,
                                  c.dstY, c.dstZ, c.dstPitch, c.dstHeight, box, &to);
      e != CUDA_SUCCESS)
    return e;
  if (const CUresult e = pack_end(s, device, c.srcMemoryType, c.srcHost, c.srcDevice, c.srcXInBytes,
                                  c.srcY, c.srcZ, c.srcPitch, c.srcHeight, box, &from);
      e != CUDA_SUCCESS)
    return e;
  using enum HostCall::Kind;
  const bool on_device = !to.host && !from.host;
  const HostCall::Kind kind = to.host && from.host ? kHostToHost : to.host ? kToHost : kToDevice;
  bool calls = (to.host && !to.pinned) || (from.host && !from.pinned);
  if (calls && body && !fixed) return pack_in_body(s, device, box, to, from, packed);
  if (fixed) {
    // The driver's node stays what it is, so what was pageable memory stays a call, and what was
    // pinned cannot become one. To the driver such a change is none between "mappings" either.
    if (now ? on_device || now->kind != kind : calls) {
      note_refused("pageable memory in the place of other memory, in an executable graph,");
      return CUDA_ERROR_INVALID_VALUE;
    }
    calls = now;
  }
  if (!calls) {
    packed->type = CU_GRAPH_NODE_TYPE_MEMCPY;
    put(wire::CopyNode{to.side, from.side, box.width, box.rows, box.depth}, &packed->body);
    return CUDA_SUCCESS;
  }
  HostCall call;
  call.kind = kind;
  call.key = now ? now->key : make_call_key();
  call.words = now ? now->words : make_handshake(s);
  call.copy = std::make_shared<const CUDA_MEMCPY3D>(c);
  if (!call.words) return CUDA_ERROR_OUT_OF_MEMORY;
  return pack(s, device, box, to, from, std::move(call), packed);
}

CUresult capture_copy(Session* s, Stream* stream, const CUDA_MEMCPY3D& copy) {
  Graph* graph = graph_of_capture(s, stream);
  if (!graph) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  PackedCopy packed;
  const CUresult e = pack_copy(s, stream->device, copy, nullptr, false, graph->body, &packed);
  if (e == CUDA_ERROR_INVALID_VALUE) return e;
  if (e != CUDA_SUCCESS) return s->captures.refuse(stream);
  for (HostCall& call : packed.calls) graph->host.calls.push_back(std::move(call));
  for (HostAround& around : packed.around) graph->host.around.push_back(std::move(around));
  const wire::CaptureCopy m{stream->wire_id, packed.type,
                            static_cast<uint32_t>(packed.body.size())};
  return s->post(wire::kCaptureCopy, m, packed.body, stream, stream->device->context());
}

CUresult capture_copy_to_device(Session* s, Stream* stream, uint64_t to, uint64_t to_pitch,
                                const void* from, uint64_t from_pitch, Rect r) {
  CUDA_MEMCPY3D c = flat(r);
  c.dstMemoryType = CU_MEMORYTYPE_DEVICE, c.dstDevice = to, c.dstPitch = to_pitch;
  c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = from, c.srcPitch = from_pitch;
  return capture_copy(s, stream, c);
}

CUresult capture_copy_to_host(Session* s, Stream* stream, void* to, uint64_t to_pitch,
                              uint64_t from, uint64_t from_pitch, Rect r) {
  CUDA_MEMCPY3D c = flat(r);
  c.dstMemoryType = CU_MEMORYTYPE_HOST, c.dstHost = to, c.dstPitch = to_pitch;
  c.srcMemoryType = CU_MEMORYTYPE_DEVICE, c.srcDevice = from, c.srcPitch = from_pitch;
  return capture_copy(s, stream, c);
}

CUresult capture_host_copy(Session* s, Stream* stream, void* to, uint64_t to_pitch,
                           const void* from, uint64_t from_pitch, Rect r) {
  CUDA_MEMCPY3D c = flat(r);
  c.dstMemoryType = CU_MEMORYTYPE_HOST, c.dstHost = to, c.dstPitch = to_pitch;
  c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = from, c.srcPitch = from_pitch;
  return capture_copy(s, stream, c);
}

}  // namespace sluice::client
