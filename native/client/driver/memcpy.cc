// SPDX-License-Identifier: Apache-2.0
// The copy and fill functions: what CUDA's signatures say, turned into the four moves of
// transfer.h.
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>

#include "client/core/addresses.h"
#include "client/driver/across_nodes.h"
#include "client/driver/array.h"
#include "client/driver/graph.h"
#include "client/driver/wait.h"
#include "client/objects/context.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

enum class Side { kHost, kDevice };

struct Pointer {
  Side side;
  uint64_t address;
  void* host() const { return reinterpret_cast<void*>(address); }
};

// By its value alone, as unified addressing does.
Pointer classify(Session* s, uint64_t address) {
  return {is_device_address(s, address) ? Side::kDevice : Side::kHost, address};
}

struct Copy {
  Session* s = nullptr;
  Device* d = nullptr;
  Stream* stream = nullptr;
};

CUresult begin(Copy* c, CUstream stream) {
  if (const CUresult e = enter(&c->s, &c->d); e != CUDA_SUCCESS) return e;
  return stream_for_work(c->s, c->d, stream, &c->stream);
}

CUresult host_to_host(const Copy& c, void* to, uint64_t to_pitch, const void* from,
                      uint64_t from_pitch, Rect r) {
  if (c.stream->capture) return capture_host_copy(c.s, c.stream, to, to_pitch, from, from_pitch, r);
  // In stream order: after everything before it, before everything after it.
  if (const CUresult e = synchronize_stream(c.s, c.stream); e != CUDA_SUCCESS) return e;
  for (uint64_t row = 0; row < r.rows; ++row)
    std::memmove(static_cast<char*>(to) + row * to_pitch,
                 static_cast<const char*>(from) + row * from_pitch, r.width);
  return CUDA_SUCCESS;
}

// Bytes from the first to the last of a rectangle; all there are when that does not fit a number.
uint64_t span(uint64_t pitch, Rect r) {
  uint64_t bytes = 0;
  if (r.rows == 1) return r.width;
  return __builtin_mul_overflow(pitch, r.rows - 1, &bytes) ||
                 __builtin_add_overflow(bytes, r.width, &bytes)
             ? ~uint64_t{0}
             : bytes;
}

// Whether the program asked for synchronous functions to wait on this memory.
bool must_wait(Session* s, uint64_t address) {
  AddressRange range;
  return s->sync_memops.any() && find_range(s, address, &range) && s->sync_memops.has(range.start);
}

struct ManagedEnd {
  Pointer* at;
  uint64_t bytes;
};

// Managed memory is the device's, whatever the caller calls it: what the program has written there
// is stored before the copy, and its next touch comes after it. A graph's launch sees to that.
CUresult use_managed(const Copy& c, std::initializer_list<ManagedEnd> ends) {
  for (const auto& [end, bytes] : ends) {
    if (!c.s->managed.may_contain(end->address)) continue;
    if (c.s->managed.contains(end->address)) end->side = Side::kDevice;
    if (c.stream->capture) continue;
    if (const CUresult e = c.s->managed.before_use(*c.stream, end->address, bytes);
        e != CUDA_SUCCESS)
      return e;
  }
  return CUDA_SUCCESS;
}

CUresult copy(const Copy& c, Pointer to, uint64_t to_pitch, Pointer from, uint64_t from_pitch,
              Rect r, bool wait) {
  if (r.width == 0 || r.rows == 0) return CUDA_SUCCESS;
  if (wait)
    if (const CUresult e = c.s->captures.unsafe(); e != CUDA_SUCCESS) return e;
  if (to.address == 0 || from.address == 0) return CUDA_ERROR_INVALID_VALUE;
  const ManagedMemory::Giving giving(c.s->managed);
  if (c.s->managed.any())
    if (const CUresult e = use_managed(c, {{&to, span(to_pitch, r)}, {&from, span(from_pitch, r)}});
        e != CUDA_SUCCESS)
      return e;
  for (const auto& [end, pitch] : {std::pair(&to, to_pitch), std::pair(&from, from_pitch)}) {
    if (end->side == Side::kHost || is_backed(c.s, end->address, span(pitch, r))) continue;
    // By unified addressing pinned memory is the device's too, where no memory is shared as well.
    if (!c.s->host_memory().is_unmapped(end->address, span(pitch, r)))
      return CUDA_ERROR_INVALID_VALUE;
    end->side = Side::kHost;
  }
  if (c.s->spans_nodes())
    if (const auto done =
            copy_across_nodes(c.s, c.stream, to.address, to_pitch, to.side == Side::kDevice,
                              from.address, from_pitch, from.side == Side::kDevice, r))
      return *done == CUDA_SUCCESS && wait &&
                     (must_wait(c.s, to.address) || must_wait(c.s, from.address))
                 ? synchronize_stream(c.s, c.stream)
                 : *done;
  if (to.side == Side::kDevice && from.side == Side::kDevice)
    return copy_on_device(c.s, c.stream, to.address, to_pitch, from.address, from_pitch, r,
                          wait && (must_wait(c.s, to.address) || must_wait(c.s, from.address)));
  if (to.side == Side::kDevice)
    return copy_to_device(c.s, c.stream, {to.address, to_pitch}, from.host(), from_pitch, r, wait);
  if (from.side == Side::kDevice)
    return copy_to_host(c.s, c.stream, to.host(), to_pitch, {from.address, from_pitch}, r, wait);
  return host_to_host(c, to.host(), to_pitch, from.host(), from_pitch, r);
}

CUresult plain(CUstream stream, Pointer to, Pointer from, size_t bytes, bool wait) {
  Copy c;
  if (const CUresult e = begin(&c, stream); e != CUDA_SUCCESS) return e;
  return copy(c, to, bytes, from, bytes, Rect{bytes, 1}, wait);
}

Pointer device(CUdeviceptr p) { return {Side::kDevice, p}; }
Pointer host(const void* p) { return {Side::kHost, reinterpret_cast<uint64_t>(p)}; }

// One end of a 2D or 3D copy in memory. False: there is no such kind of memory.
template <class Params>
bool ends(Session* s, const Params& p, Pointer* to, Pointer* from) {
  switch (p.srcMemoryType) {
    case CU_MEMORYTYPE_HOST:
      *from = host(p.srcHost);
      break;
    case CU_MEMORYTYPE_DEVICE:
      *from = device(p.srcDevice);
      break;
    case CU_MEMORYTYPE_UNIFIED:
      *from = classify(s, p.srcDevice);
      break;
    default:
      return false;
  }
  switch (p.dstMemoryType) {
    case CU_MEMORYTYPE_HOST:
      *to = host(p.dstHost);
      break;
    case CU_MEMORYTYPE_DEVICE:
      *to = device(p.dstDevice);
      break;
    case CU_MEMORYTYPE_UNIFIED:
      *to = classify(s, p.dstDevice);
      break;
    default:
      return false;
  }
  return true;
}

CUDA_MEMCPY3D with_depth(const CUDA_MEMCPY2D& p) {
  CUDA_MEMCPY3D all{};
  all.srcXInBytes = p.srcXInBytes, all.srcY = p.srcY, all.srcMemoryType = p.srcMemoryType;
  all.srcHost = p.srcHost, all.srcDevice = p.srcDevice, all.srcArray = p.srcArray;
  all.srcPitch = p.srcPitch;
  all.dstXInBytes = p.dstXInBytes, all.dstY = p.dstY, all.dstMemoryType = p.dstMemoryType;
  all.dstHost = p.dstHost, all.dstDevice = p.dstDevice, all.dstArray = p.dstArray;
  all.dstPitch = p.dstPitch;
  all.WidthInBytes = p.WidthInBytes, all.Height = p.Height, all.Depth = 1;
  return all;
}

CUresult copy_2d(const CUDA_MEMCPY2D* p, CUstream stream, bool wait) {
  Copy c;
  if (const CUresult e = begin(&c, stream); e != CUDA_SUCCESS) return e;
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  Pointer to{}, from{};
  if (names_array(*p)) return copy_with_arrays(c.s, c.stream, with_depth(*p), wait);
  if (!ends(c.s, *p, &to, &from)) return CUDA_ERROR_INVALID_VALUE;
  const size_t to_pitch = p->dstPitch ? p->dstPitch : p->WidthInBytes;
  const size_t from_pitch = p->srcPitch ? p->srcPitch : p->WidthInBytes;
  if (to_pitch < p->WidthInBytes || from_pitch < p->WidthInBytes) return CUDA_ERROR_INVALID_VALUE;
  to.address += p->dstY * to_pitch + p->dstXInBytes;
  from.address += p->srcY * from_pitch + p->srcXInBytes;
  return copy(c, to, to_pitch, from, from_pitch, Rect{p->WidthInBytes, p->Height}, wait);
}

// Of one device, or between two: unified addresses say which.
template <class Params>
CUresult copy_3d(const Params* p, CUstream stream, bool wait) {
  Copy c;
  if (const CUresult e = begin(&c, stream); e != CUDA_SUCCESS) return e;
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  Pointer to{}, from{};
  if (names_array(*p)) {
    // Copies between contexts name these where the others have reserved words.
    static_assert(sizeof(Params) == sizeof(CUDA_MEMCPY3D));
    CUDA_MEMCPY3D plain;
    std::memcpy(&plain, p, sizeof plain);
    return copy_with_arrays(c.s, c.stream, plain, wait);
  }
  if (!ends(c.s, *p, &to, &from)) return CUDA_ERROR_INVALID_VALUE;
  const size_t to_pitch = p->dstPitch ? p->dstPitch : p->WidthInBytes;
  const size_t from_pitch = p->srcPitch ? p->srcPitch : p->WidthInBytes;
  const size_t to_height = p->dstHeight ? p->dstHeight : p->Height;
  const size_t from_height = p->srcHeight ? p->srcHeight : p->Height;
  if (to_pitch < p->WidthInBytes || from_pitch < p->WidthInBytes || to_height < p->Height ||
      from_height < p->Height)
    return CUDA_ERROR_INVALID_VALUE;
  if (c.stream->capture && p->Depth > 1) {
    CUDA_MEMCPY3D whole;  // one node
    static_assert(sizeof(Params) == sizeof whole);
    std::memcpy(&whole, p, sizeof whole);
    return capture_copy(c.s, c.stream, whole);
  }
  for (size_t z = 0; z < p->Depth; ++z) {
    Pointer t = to, f = from;
    t.address += ((p->dstZ + z) * to_height + p->dstY) * to_pitch + p->dstXInBytes;
    f.address += ((p->srcZ + z) * from_height + p->srcY) * from_pitch + p->srcXInBytes;
    const CUresult e = copy(c, t, to_pitch, f, from_pitch, Rect{p->WidthInBytes, p->Height}, wait);
    if (e != CUDA_SUCCESS) return e;
  }
  return CUDA_SUCCESS;
}

bool in_arena(const Copy& c, uint64_t address) {
  return c.s->host_memory().in_arena(reinterpret_cast<const void*>(address), 1);
}

// Pinned memory that the device does not reach is filled here, in stream order.
CUresult fill_host(const Copy& c, uint64_t address, uint64_t pitch, Rect r, uint32_t element,
                   uint32_t value) {
  const auto work = [=] {
    for (uint64_t row = 0; row < r.rows; ++row) {
      auto* at = reinterpret_cast<std::byte*>(address + row * pitch);
      for (uint64_t i = 0; i < r.width; i += element) std::memcpy(at + i, &value, element);
    }
  };
  if (c.stream->capture) return capture_host_work(c.s, c.stream, work);
  if (const CUresult e = synchronize_stream(c.s, c.stream); e != CUDA_SUCCESS) return e;
  work();
  return CUDA_SUCCESS;
}

CUresult fill(CUdeviceptr address, size_t pitch, size_t width, size_t rows, uint32_t element,
              uint32_t value, CUstream stream, bool wait) {
  Copy c;
  if (const CUresult e = begin(&c, stream); e != CUDA_SUCCESS) return e;
  if (width == 0 || rows == 0) return CUDA_SUCCESS;
  uint64_t row = 0;
  if (__builtin_mul_overflow(width, uint64_t{element}, &row) || address % element ||
      (rows > 1 && pitch < row))
    return CUDA_ERROR_INVALID_VALUE;
  const Rect r{row, rows};
  if (!is_backed(c.s, address, span(pitch, r))) {
    if (!c.s->host_memory().is_unmapped(address, span(pitch, r))) return CUDA_ERROR_INVALID_VALUE;
    return fill_host(c, address, pitch, r, element, value);
  }
  Stream* at = c.stream;
  if (c.s->spans_nodes())
    if (const CUresult e = stream_for_memory(c.s, c.stream, address, span(pitch, r), &at);
        e != CUDA_SUCCESS)
      return e;
  const ManagedMemory::Giving giving(c.s->managed);
  if (c.s->managed.any() && !c.stream->capture)
    if (const CUresult e = c.s->managed.before_use(*at, address, span(pitch, r)); e != CUDA_SUCCESS)
      return e;
  note_use(c.s, at, address);
  const wire::FillDevice f{at->wire_id, address, pitch, width, rows, element, value};
  const Session::Work work{at, in_arena(c, address)};
  const CUresult e = c.s->post(wire::kFillDevice, f, {}, work, at->device->context());
  if (e == CUDA_SUCCESS && at != c.stream) return synchronize_stream(c.s, at);
  if (e != CUDA_SUCCESS || !wait || !(in_arena(c, address) || must_wait(c.s, address))) return e;
  // Only where host memory is filled does CUDA wait, unless it was told to.
  return synchronize_stream(c.s, c.stream);
}

}  // namespace

extern "C" {

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t n) {
  return plain(nullptr, device(to), host(from), n, true);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t n) {
  return plain(nullptr, host(to), device(from), n, true);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t n) {
  // CUDA does not wait for a copy on the device; for one to or from host memory it does.
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  const auto side = [&](CUdeviceptr p) {
    const bool arena = s->host_memory().in_arena(reinterpret_cast<const void*>(p), 1);
    return Pointer{arena ? Side::kHost : Side::kDevice, p};
  };
  const Pointer t = side(to), f = side(from);
  return plain(
      nullptr, t, f, n,
      t.side == Side::kHost || f.side == Side::kHost || must_wait(s, to) || must_wait(s, from));
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t n, CUstream stream) {
  return plain(stream, device(to), host(from), n, false);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t n, CUstream stream) {
  return plain(stream, host(to), device(from), n, false);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream) {
  return plain(stream, device(to), device(from), n, false);
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t n) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  return plain(nullptr, classify(s, to), classify(s, from), n, true);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  return plain(stream, classify(s, to), classify(s, from), n, false);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, size_t n, CUstream stream) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!s->contexts.find(to_context) || !s->contexts.find(from_context))
    return CUDA_ERROR_INVALID_CONTEXT;
  return plain(stream, device(to), device(from), n, false);
}
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                      CUcontext from_context, size_t n) {
  return cuMemcpyPeerAsync(to, to_context, from, from_context, n, nullptr);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* p) { return copy_2d(p, nullptr, true); }
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* p) { return copy_2d(p, nullptr, true); }
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* p, CUstream stream) {
  return copy_2d(p, stream, false);
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* p) { return copy_3d(p, nullptr, true); }
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* p, CUstream stream) {
  return copy_3d(p, stream, false);
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* p, CUstream stream) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& [type, context] :
       {std::pair(p->srcMemoryType, p->srcContext), std::pair(p->dstMemoryType, p->dstContext)})
    if (type == CU_MEMORYTYPE_DEVICE && !s->contexts.find(context))
      return CUDA_ERROR_INVALID_CONTEXT;
  return copy_3d(p, stream, false);
}
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* p) { return cuMemcpy3DPeerAsync(p, nullptr); }

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t n) {
  return fill(to, 0, n, 1, 1, value, nullptr, true);
}
CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t n) {
  return fill(to, 0, n, 1, 2, value, nullptr, true);
}
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t n) {
  return fill(to, 0, n, 1, 4, value, nullptr, true);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n, CUstream stream) {
  return fill(to, 0, n, 1, 1, value, stream, false);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t n, CUstream stream) {
  return fill(to, 0, n, 1, 2, value, stream, false);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t n, CUstream stream) {
  return fill(to, 0, n, 1, 4, value, stream, false);
}
CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t w, size_t h) {
  return fill(to, pitch, w, h, 1, value, nullptr, true);
}
CUresult cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t w, size_t h) {
  return fill(to, pitch, w, h, 2, value, nullptr, true);
}
CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned int value, size_t w, size_t h) {
  return fill(to, pitch, w, h, 4, value, nullptr, true);
}
CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t w, size_t h,
                           CUstream stream) {
  return fill(to, pitch, w, h, 1, value, stream, false);
}
CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t w, size_t h,
                            CUstream stream) {
  return fill(to, pitch, w, h, 2, value, stream, false);
}
CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned int value, size_t w, size_t h,
                            CUstream stream) {
  return fill(to, pitch, w, h, 4, value, stream, false);
}

}  // extern "C"
