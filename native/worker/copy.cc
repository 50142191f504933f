// SPDX-License-Identifier: Apache-2.0
// Copies and fills. Host sides lie in the arena or in the command (the reply); everything a command
// names is checked against what the session has.
#include "worker/copy.h"

#include <algorithm>

#include "worker/dispatch.h"

namespace sluice::worker {

namespace {

constexpr uint64_t kMaxPitch = 1ull << 40;

}  // namespace

uint64_t span_of(uint64_t pitch, uint64_t width, uint64_t rows) {
  if (width == 0 || rows == 0 || width > kMaxPitch || rows > kMaxPitch) return 0;
  if (rows == 1) return width;
  if (pitch < width || pitch > kMaxPitch || rows > (1ull << 46) / pitch) return 0;
  return pitch * (rows - 1) + width;
}

namespace {

enum class Way { kToDevice, kToHost, kOnDevice };

// Whose memory the device sides are, where that is not the stream's GPU's throughout: such a copy
// must name the contexts, as the one GPU need not have access to the other's memory.
struct Foreign {
  CUcontext to = nullptr, from = nullptr;
  explicit operator bool() const { return to || from; }
};

CUresult box(Session& s, CUstream stream, Way way, uint64_t to, uint64_t to_pitch, uint64_t from,
             uint64_t from_pitch, uint64_t width, uint64_t rows, const Foreign& foreign) {
  CUDA_MEMCPY3D_PEER p{};
  p.srcMemoryType = way == Way::kToDevice ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  p.dstMemoryType = way == Way::kToHost ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  if (way == Way::kToDevice)
    p.srcHost = reinterpret_cast<void*>(from);
  else
    p.srcDevice = from;
  if (way == Way::kToHost)
    p.dstHost = reinterpret_cast<void*>(to);
  else
    p.dstDevice = to;
  p.srcContext = foreign.from;
  p.dstContext = foreign.to;
  p.srcPitch = from_pitch;
  p.dstPitch = to_pitch;
  p.WidthInBytes = width;
  p.srcHeight = p.dstHeight = p.Height = rows;
  p.Depth = 1;
  return s.driver.cuMemcpy3DPeerAsync(&p, stream);
}

CUresult plain(Session& s, CUstream stream, Way way, uint64_t to, uint64_t from, uint64_t bytes,
               const Foreign& foreign) {
  if (foreign)
    return way == Way::kOnDevice
               ? s.driver.cuMemcpyPeerAsync(to, foreign.to, from, foreign.from, bytes, stream)
               : box(s, stream, way, to, bytes, from, bytes, bytes, 1, foreign);
  switch (way) {
    case Way::kToDevice:
      return s.driver.cuMemcpyHtoDAsync_v2(to, reinterpret_cast<void*>(from), bytes, stream);
    case Way::kToHost:
      return s.driver.cuMemcpyDtoHAsync_v2(reinterpret_cast<void*>(to), from, bytes, stream);
    case Way::kOnDevice:
      break;
  }
  return s.driver.cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}

}  // namespace

uint64_t registered_from(Session& s, uint64_t host) {
  const auto arena = s.endpoint().arena();
  const uint64_t at = host - reinterpret_cast<uint64_t>(arena.data());
  return at < arena.size() ? wire::kArenaChunk - at % wire::kArenaChunk : ~0ull;
}

namespace {

CUresult split(Session& s, CUstream stream, Way way, uint64_t to, uint64_t from, uint64_t bytes,
               const Foreign& foreign) {
  while (bytes > 0) {
    const uint64_t room =
        way == Way::kOnDevice ? bytes : registered_from(s, way == Way::kToHost ? to : from);
    const uint64_t n = std::min(bytes, room);
    if (const CUresult e = plain(s, stream, way, to, from, n, foreign); e != CUDA_SUCCESS) return e;
    to += n, from += n, bytes -= n;
  }
  return CUDA_SUCCESS;
}

CUresult run(Session& s, CUstream stream, Way way, uint64_t to, uint64_t to_pitch, uint64_t from,
             uint64_t from_pitch, uint64_t width, uint64_t rows, const Foreign& foreign) {
  const bool to_host = way == Way::kToHost, from_host = way == Way::kToDevice;
  const uint64_t host_span =
      to_host ? span_of(to_pitch, width, rows) : span_of(from_pitch, width, rows);
  // A captured copy is one node, as natively.
  if ((to_host || from_host) && host_span > registered_from(s, to_host ? to : from) &&
      capturing(s, stream)) {
    uint64_t& host = to_host ? to : from;
    host = s.arena_views.whole(s, host, host_span);
  }
  if (rows == 1) return split(s, stream, way, to, from, width, foreign);
  if ((to_host || from_host) && host_span > registered_from(s, to_host ? to : from)) {
    for (uint64_t row = 0; row < rows; ++row)
      if (const CUresult e =
              split(s, stream, way, to + row * to_pitch, from + row * from_pitch, width, foreign);
          e != CUDA_SUCCESS)
        return e;
    return CUDA_SUCCESS;
  }
  if (foreign) return box(s, stream, way, to, to_pitch, from, from_pitch, width, rows, foreign);
  CUDA_MEMCPY2D p{};
  p.WidthInBytes = width;
  p.Height = rows;
  p.srcMemoryType = from_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  p.dstMemoryType = to_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  if (from_host)
    p.srcHost = reinterpret_cast<void*>(from);
  else
    p.srcDevice = from;
  if (to_host)
    p.dstHost = reinterpret_cast<void*>(to);
  else
    p.dstDevice = to;
  p.srcPitch = from_pitch;
  p.dstPitch = to_pitch;
  return s.driver.cuMemcpy2DAsync_v2(&p, stream);
}

// Contexts of the memory at two addresses (0: the host), when one is not on the stream's GPU.
Foreign foreign_to(Session& s, const Vgpu& of_stream, uint64_t to, uint64_t from) {
  Foreign f;
  if (s.vgpus.size() == 1) return f;
  const CUcontext own = of_stream.gpu->context;
  const auto context = [&](uint64_t address) {
    const uint32_t owner = address ? s.memory_owner(address) : Session::kNobody;
    return owner == Session::kNobody ? own : s.vgpus[owner]->gpu->context;
  };
  f = {context(to), context(from)};
  if (f.to == own && f.from == own) f = {};
  return f;
}

// Checks what both directions share. False: rejected.
bool accept(Session& s, const Command& c, const wire::CopyToDevice& copy, CUstream* stream,
            Vgpu** owner, uint64_t* host) {
  *host = copy.host_address;
  const uint64_t device_span = span_of(copy.device_pitch, copy.width, copy.rows);
  if (device_span == 0 || !s.device_range(copy.device_address, device_span)) {
    s.reject("a copy names device memory that the session does not have");
    return false;
  }
  if (copy.place == wire::HostPlace::kArena) {
    const uint64_t host_span = span_of(copy.host_pitch, copy.width, copy.rows);
    if (host_span == 0 || !s.arena_range(copy.host_address, host_span)) {
      s.reject("a copy names host memory outside the arena");
      return false;
    }
  } else if (copy.place == wire::HostPlace::kShadow) {
    const auto shadow = s.shadows.find(copy.host_address);
    const uint64_t host_span = span_of(copy.host_pitch, copy.width, copy.rows);
    if (!shadow || host_span == 0 || host_span > shadow->bytes) {
      s.reject("a copy names a shadow that there is not");
      return false;
    }
    *host = reinterpret_cast<uint64_t>(shadow->at);
  } else if (copy.place != wire::HostPlace::kInline) {
    s.reject("a copy's host side lies nowhere");
    return false;
  }
  if (copy.mark != wire::kNoMark && !s.marks.valid(copy.mark)) {
    s.reject("a copy names a mark that there is not");
    return false;
  }
  return s.stream(copy.stream, c.header.context, stream, owner);
}

void to_device(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& copy = d.fixed<wire::CopyToDevice>();
  CUstream stream;
  Vgpu* v;
  if (!d.ok()) return s.reject("CopyToDevice is cut short");
  uint64_t from;
  if (!accept(s, c, copy, &stream, &v, &from)) return;
  uint64_t pitch = copy.host_pitch;
  if (copy.place == wire::HostPlace::kInline) {
    if (copy.width > wire::kMaxLargeFrameBytes || copy.rows > wire::kMaxLargeFrameBytes)
      return s.reject("CopyToDevice carries more than a frame holds");
    const auto data = d.bytes(copy.width * copy.rows);
    if (!d.ok()) return s.reject("CopyToDevice carries less than it says");
    from = reinterpret_cast<uint64_t>(data.data());
    pitch = copy.width;
  }
  v->gate->followed(stream);
  reply.status = run(s, stream, Way::kToDevice, copy.device_address, copy.device_pitch, from, pitch,
                     copy.width, copy.rows, foreign_to(s, *v, copy.device_address, 0));
  if (reply.status == CUDA_SUCCESS)
    count(s, stream, traffic_of(s, copy.device_address, from, copy.width * copy.rows));
  if (reply.status == CUDA_SUCCESS && c.bulk)
    reply.status = c.bulk->owner->read_by(*c.bulk, stream, v->index);
  if (reply.status == CUDA_SUCCESS) reply.status = s.mark(stream, copy.mark, copy.value);
  if (reply.status == CUDA_SUCCESS && c.answered())
    reply.status = s.driver.cuStreamSynchronize(stream);
}

void to_host(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& copy = d.fixed<wire::CopyToHost>();
  CUstream stream;
  Vgpu* v;
  if (!d.ok()) return s.reject("CopyToHost is cut short");
  uint64_t host;
  if (!accept(s, c, copy, &stream, &v, &host)) return;
  const Foreign foreign = foreign_to(s, *v, 0, copy.device_address);
  v->gate->followed(stream);
  if (copy.place != wire::HostPlace::kInline) {
    reply.status = run(s, stream, Way::kToHost, host, copy.host_pitch, copy.device_address,
                       copy.device_pitch, copy.width, copy.rows, foreign);
    if (reply.status == CUDA_SUCCESS)
      count(s, stream, traffic_of(s, host, copy.device_address, copy.width * copy.rows));
    if (reply.status == CUDA_SUCCESS) reply.status = s.mark(stream, copy.mark, copy.value);
    if (reply.status == CUDA_SUCCESS && c.answered())
      reply.status = s.driver.cuStreamSynchronize(stream);
    return;
  }
  if (!c.answered()) return s.reject("CopyToHost wants its data in a reply and no reply");
  const size_t limit = s.endpoint().reply_limit();
  if (copy.width > limit || copy.rows > limit || copy.width * copy.rows > limit)
    return s.reject("CopyToHost asks for more than a reply holds");
  const size_t bytes = copy.width * copy.rows;
  reply.held = s.bounces.take(bytes);
  std::byte* const to = reply.held.get();
  if (!to) {
    reply.status = CUDA_ERROR_OUT_OF_MEMORY;
    return;
  }
  reply.status = run(s, stream, Way::kToHost, reinterpret_cast<uint64_t>(to), copy.width,
                     copy.device_address, copy.device_pitch, copy.width, copy.rows, foreign);
  if (reply.status == CUDA_SUCCESS) reply.status = s.driver.cuStreamSynchronize(stream);
  if (reply.status == CUDA_SUCCESS) reply.borrowed = {to, bytes};
}

void on_device(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& copy = d.fixed<wire::CopyOnDevice>();
  if (!d.ok()) return s.reject("CopyOnDevice is cut short");
  const uint64_t to_span = span_of(copy.to_pitch, copy.width, copy.rows);
  const uint64_t from_span = span_of(copy.from_pitch, copy.width, copy.rows);
  if (!to_span || !from_span || !s.device_range(copy.to, to_span) ||
      !s.device_range(copy.from, from_span))
    return s.reject("CopyOnDevice names device memory that the session does not have");
  CUstream stream;
  Vgpu* v;
  if (!s.stream(copy.stream, c.header.context, &stream, &v)) return;
  Gate::Passage passage;
  if (!capturing(s, stream)) passage = v->gate->pass(stream, copy_work(copy.width * copy.rows));
  reply.status = run(s, stream, Way::kOnDevice, copy.to, copy.to_pitch, copy.from, copy.from_pitch,
                     copy.width, copy.rows, foreign_to(s, *v, copy.to, copy.from));
  if (reply.status == CUDA_SUCCESS) passage.issued();
  if (reply.status == CUDA_SUCCESS)
    count(s, stream, traffic_of(s, copy.to, copy.from, copy.width * copy.rows));
  if (reply.status == CUDA_SUCCESS && c.answered())
    reply.status = s.driver.cuStreamSynchronize(stream);
}

CUresult fill_on(const Driver& d, CUstream stream, const wire::FillDevice& f) {
  const uint32_t e = f.element_bytes;
  const auto b = static_cast<unsigned char>(f.value);
  const auto h = static_cast<unsigned short>(f.value);
  if (f.rows == 1)
    return e == 1   ? d.cuMemsetD8Async(f.address, b, f.width, stream)
           : e == 2 ? d.cuMemsetD16Async(f.address, h, f.width, stream)
                    : d.cuMemsetD32Async(f.address, f.value, f.width, stream);
  return e == 1   ? d.cuMemsetD2D8Async(f.address, f.pitch, b, f.width, f.rows, stream)
         : e == 2 ? d.cuMemsetD2D16Async(f.address, f.pitch, h, f.width, f.rows, stream)
                  : d.cuMemsetD2D32Async(f.address, f.pitch, f.value, f.width, f.rows, stream);
}

struct Place {
  uint32_t vgpu;
  CUstream stream;
};

// Has `later` wait for what `earlier` has. Leaves the context of `later` current: a stream's handle
// may mean the default stream of whatever is.
CUresult follow(Session& s, const Place& later, const Place& earlier) {
  CUevent event;
  s.use(earlier.vgpu);
  CUresult e = s.driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (e == CUDA_SUCCESS) {
    e = s.driver.cuEventRecord(event, earlier.stream);
    s.use(later.vgpu);
    if (e == CUDA_SUCCESS) e = s.driver.cuStreamWaitEvent(later.stream, event, 0);
    s.driver.cuEventDestroy_v2(event);  // it ends when it has been reached
  }
  s.use(later.vgpu);
  return e;
}

// Fills name no context, so another GPU's memory is filled by that GPU, in the stream's order.
CUresult fill_foreign(Session& s, uint32_t owner, const Place& asked, const wire::FillDevice& f) {
  const Place house{owner, s.vgpus[owner]->gpu->house};
  CUresult e = follow(s, house, asked);
  if (e == CUDA_SUCCESS) e = fill_on(s.driver, house.stream, f);
  if (e == CUDA_SUCCESS) e = follow(s, asked, house);
  s.use(asked.vgpu);
  return e;
}

void fill(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& f = d.fixed<wire::FillDevice>();
  if (!d.ok()) return s.reject("FillDevice is cut short");
  const uint32_t e = f.element_bytes;
  if ((e != 1 && e != 2 && e != 4) || f.address % e || f.width > kMaxPitch)
    return s.reject("FillDevice has elements of no size that there is");
  const uint64_t span = span_of(f.pitch, f.width * e, f.rows);
  if (!span || !s.device_range(f.address, span))
    return s.reject("FillDevice names device memory that the session does not have");
  CUstream stream;
  Vgpu* v;
  if (!s.stream(f.stream, c.header.context, &stream, &v)) return;
  Gate::Passage passage;
  if (!capturing(s, stream)) passage = v->gate->pass(stream, fill_work(f.width * e * f.rows));
  const uint32_t owner = s.vgpus.size() > 1 ? s.memory_owner(f.address) : Session::kNobody;
  if (owner == Session::kNobody || s.vgpus[owner]->gpu == v->gpu)
    reply.status = fill_on(s.driver, stream, f);
  else
    reply.status = fill_foreign(s, owner, {v->index, stream}, f);
  if (reply.status == CUDA_SUCCESS) passage.issued();
  if (reply.status == CUDA_SUCCESS)
    count(s, stream, traffic_of(s, f.address, 0, f.width * e * f.rows));
}

}  // namespace

void add_copy_handlers(DispatchTable& t) {
  t[wire::kCopyToDevice].run = to_device;
  t[wire::kCopyToHost].run = to_host;
  t[wire::kCopyOnDevice].run = on_device;
  t[wire::kFillDevice].run = fill;
}

}  // namespace sluice::worker
