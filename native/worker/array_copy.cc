// SPDX-License-Identifier: Apache-2.0
// Copies with an array at one end or both. What a command names of an array lies within it, the
// host side in the arena, in the command or in the answer, as in copy.cc.
#include <algorithm>

#include "wire/generated.h"
#include "worker/copy.h"
#include "worker/dispatch.h"

namespace sluice::worker {

namespace {

// The two commands with a host side have the same fields.
struct HostCopy {
  uint64_t array, x, y, z, width, rows, host, pitch;
  bool to_array;
};

// A box of an array that the stream's GPU has. False: rejected.
bool find_array(Session& s, uint64_t id, uint64_t x, uint64_t y, uint64_t z, uint64_t width,
                uint64_t rows, uint64_t slices, ArrayObject* o) {
  if (!s.objects.arrays.get(id, o)) {
    s.reject("a copy names an array that the session does not have");
    return false;
  }
  const uint64_t element = wire::element_bytes(o->shape.format, o->shape.channels);
  const wire::ArrayExtent e = wire::extent_of(o->shape);
  const auto fits = [](uint64_t at, uint64_t n, uint64_t limit) {
    return n > 0 && at <= limit && n <= limit - at;
  };
  if (x % element == 0 && width % element == 0 && fits(x, width, e.row_bytes) &&
      fits(y, rows, e.rows) && fits(z, slices, e.slices))
    return true;
  s.reject("a copy names a place outside its array");
  return false;
}

// One piece whose host side lies in one registration.
CUresult piece(Session& s, CUstream stream, CUarray array, const HostCopy& c) {
  CUDA_MEMCPY3D p{};
  // Of one row no distance to the next was checked.
  const uint64_t pitch = c.rows == 1 ? c.width : c.pitch;
  p.WidthInBytes = c.width, p.Height = c.rows, p.Depth = 1;
  if (c.to_array) {
    p.srcMemoryType = CU_MEMORYTYPE_HOST;
    p.srcHost = reinterpret_cast<const void*>(c.host);
    p.srcPitch = pitch, p.srcHeight = c.rows;
    p.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    p.dstArray = array;
    p.dstXInBytes = c.x, p.dstY = c.y, p.dstZ = c.z;
  } else {
    p.dstMemoryType = CU_MEMORYTYPE_HOST;
    p.dstHost = reinterpret_cast<void*>(c.host);
    p.dstPitch = pitch, p.dstHeight = c.rows;
    p.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    p.srcArray = array;
    p.srcXInBytes = c.x, p.srcY = c.y, p.srcZ = c.z;
  }
  return call(s.driver.cuMemcpy3DAsync_v2, &p, stream);
}

CUresult run(Session& s, CUstream stream, CUarray array, const HostCopy& c) {
  if (span_of(c.pitch, c.width, c.rows) <= registered_from(s, c.host))
    return piece(s, stream, array, c);
  for (uint64_t row = 0; row < c.rows; ++row) {
    HostCopy rest = c;
    rest.host += row * c.pitch;
    rest.y += row;
    rest.rows = 1;
    while (rest.width > 0) {
      HostCopy now = rest;
      now.width = std::min(rest.width, registered_from(s, rest.host));
      if (const CUresult e = piece(s, stream, array, now); e != CUDA_SUCCESS) return e;
      rest.host += now.width, rest.x += now.width, rest.width -= now.width;
    }
  }
  return CUDA_SUCCESS;
}

// Checks what both directions share. False: rejected.
template <class Copy>
bool accept(Session& s, const Command& c, const Copy& copy, ArrayObject* array, CUstream* stream) {
  if (!find_array(s, copy.array, copy.x, copy.y, copy.z, copy.width, copy.rows, 1, array))
    return false;
  if (copy.place == static_cast<unsigned>(wire::HostPlace::kArena)) {
    const uint64_t element = wire::element_bytes(array->shape.format, array->shape.channels);
    const uint64_t span = span_of(copy.hostPitch, copy.width, copy.rows);
    if (span == 0 || !s.arena_range(copy.hostAddress, span) || copy.hostAddress % element ||
        (copy.rows > 1 && copy.hostPitch % element)) {
      s.reject("a copy names host memory outside the arena, or divides an element");
      return false;
    }
  } else if (copy.place != static_cast<unsigned>(wire::HostPlace::kInline)) {
    s.reject("a copy's host side lies nowhere");
    return false;
  }
  if (copy.mark != wire::kNoMark && !s.marks.valid(copy.mark)) {
    s.reject("a copy names a mark that there is not");
    return false;
  }
  Vgpu* v;
  if (!s.stream(copy.stream, c.header.context, stream, &v)) return false;
  if (v == s.vgpus[array->device].get()) return true;
  s.reject("a copy names a stream of another vGPU than its array's");
  return false;
}

template <class Copy>
HostCopy host_copy(const Copy& c, uint64_t host, uint64_t pitch, bool to_array) {
  return {c.array, c.x, c.y, c.z, c.width, c.rows, host, pitch, to_array};
}

void finish(Session& s, const Command& c, CUstream stream, uint32_t mark, uint64_t value,
            Reply& reply) {
  if (reply.status == CUDA_SUCCESS) reply.status = s.mark(stream, mark, value);
  if (reply.status == CUDA_SUCCESS && c.answered())
    reply.status = s.driver.cuStreamSynchronize(stream);
}

void to_array(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& copy = d.fixed<wire::SluiceCopyToArray>();
  ArrayObject array;
  CUstream stream;
  if (!d.ok()) return s.reject("CopyToArray is cut short");
  if (!accept(s, c, copy, &array, &stream)) return;
  uint64_t from = copy.hostAddress, pitch = copy.hostPitch;
  if (copy.place == static_cast<unsigned>(wire::HostPlace::kInline)) {
    if (copy.width > wire::kMaxFrameBytes || copy.rows > wire::kMaxFrameBytes)
      return s.reject("CopyToArray carries more than a frame holds");
    const auto data = d.bytes(copy.width * copy.rows);
    if (!d.ok()) return s.reject("CopyToArray carries less than it says");
    from = reinterpret_cast<uint64_t>(data.data());
    pitch = copy.width;
  }
  reply.status = run(s, stream, array.array, host_copy(copy, from, pitch, true));
  if (reply.status == CUDA_SUCCESS)
    count(s, stream, traffic_of(s, 0, from, copy.width * copy.rows));
  finish(s, c, stream, copy.mark, copy.value, reply);
}

void from_array(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& copy = d.fixed<wire::SluiceCopyFromArray>();
  ArrayObject array;
  CUstream stream;
  if (!d.ok()) return s.reject("CopyFromArray is cut short");
  if (!accept(s, c, copy, &array, &stream)) return;
  if (copy.place == static_cast<unsigned>(wire::HostPlace::kArena)) {
    reply.status =
        run(s, stream, array.array, host_copy(copy, copy.hostAddress, copy.hostPitch, false));
    if (reply.status == CUDA_SUCCESS)
      count(s, stream, traffic_of(s, copy.hostAddress, 0, copy.width * copy.rows));
    return finish(s, c, stream, copy.mark, copy.value, reply);
  }
  if (!c.answered()) return s.reject("CopyFromArray wants its data in a reply and no reply");
  const size_t limit = s.endpoint().reply_limit();
  if (copy.width > limit || copy.rows > limit || copy.width * copy.rows > limit)
    return s.reject("CopyFromArray asks for more than a reply holds");
  const size_t bytes = copy.width * copy.rows;
  if (!s.driver.cuMemcpy3DAsync_v2) {
    reply.status = CUDA_ERROR_NOT_SUPPORTED;
    return;
  }
  reply.held = s.bounces.take(bytes);
  std::byte* const to = reply.held.get();
  if (!to) {
    reply.status = CUDA_ERROR_OUT_OF_MEMORY;
    return;
  }
  reply.status = run(s, stream, array.array,
                     host_copy(copy, reinterpret_cast<uint64_t>(to), copy.width, false));
  if (reply.status == CUDA_SUCCESS) reply.status = s.driver.cuStreamSynchronize(stream);
  if (reply.status == CUDA_SUCCESS) reply.borrowed = {to, bytes};
}

// Device memory at one end: slices of `height` rows. False: rejected.
bool find_memory(Session& s, uint64_t address, uint64_t pitch, uint64_t height, uint64_t width,
                 uint64_t rows, uint64_t slices) {
  uint64_t all_rows = 0;
  const uint64_t last = span_of(pitch, width, rows);
  uint64_t before = 0;
  const bool counted =
      last != 0 && slices > 0 && (slices == 1 || (height >= rows && pitch >= width)) &&
      !__builtin_mul_overflow(height, slices - 1, &all_rows) &&
      !__builtin_mul_overflow(all_rows, pitch, &before) && before <= ~uint64_t{0} - last;
  if (counted && s.device_range(address, before + last)) return true;
  s.reject("a copy names device memory that the session does not have");
  return false;
}

// What the driver is told beside an address: of one row, or one slice, the distance to the next was
// not checked, as nothing lies there; the driver multiplies it all the same.
uint64_t pitch_of(uint64_t pitch, const wire::SluiceCopyArrays& m) {
  return m.rows == 1 && m.slices == 1 ? m.width : pitch;
}
uint64_t height_of(uint64_t height, const wire::SluiceCopyArrays& m) {
  return m.slices == 1 ? m.rows : height;
}

void between(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::SluiceCopyArrays>();
  if (!d.ok() || (m.toArray == 0 && m.fromArray == 0)) return s.reject("CopyArrays names no array");
  CUDA_MEMCPY3D p{};
  p.WidthInBytes = m.width, p.Height = m.rows, p.Depth = m.slices;
  CUstream stream;
  Vgpu* v;
  if (!s.stream(m.stream, c.header.context, &stream, &v)) return;
  ArrayObject o;
  const auto mine = [&] {
    if (v == s.vgpus[o.device].get()) return true;
    s.reject("a copy names a stream of another vGPU than its array's");
    return false;
  };
  if (m.toArray) {
    if (!find_array(s, m.toArray, m.toX, m.toY, m.toZ, m.width, m.rows, m.slices, &o) || !mine())
      return;
    p.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    p.dstArray = o.array;
    p.dstXInBytes = m.toX, p.dstY = m.toY, p.dstZ = m.toZ;
  } else {
    if (!find_memory(s, m.toAddress, m.toPitch, m.toHeight, m.width, m.rows, m.slices)) return;
    p.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    p.dstDevice = m.toAddress;
    p.dstPitch = pitch_of(m.toPitch, m), p.dstHeight = height_of(m.toHeight, m);
  }
  if (m.fromArray) {
    if (!find_array(s, m.fromArray, m.fromX, m.fromY, m.fromZ, m.width, m.rows, m.slices, &o) ||
        !mine())
      return;
    p.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    p.srcArray = o.array;
    p.srcXInBytes = m.fromX, p.srcY = m.fromY, p.srcZ = m.fromZ;
  } else {
    if (!find_memory(s, m.fromAddress, m.fromPitch, m.fromHeight, m.width, m.rows, m.slices))
      return;
    p.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    p.srcDevice = m.fromAddress;
    p.srcPitch = pitch_of(m.fromPitch, m), p.srcHeight = height_of(m.fromHeight, m);
  }
  Gate::Passage passage;
  if (!capturing(s, stream))
    passage = v->gate->pass(stream, copy_work(m.width * m.rows * m.slices));
  reply.status = call(s.driver.cuMemcpy3DAsync_v2, &p, stream);
  if (reply.status == CUDA_SUCCESS) passage.issued();
  // Pinned memory may be named as the device's.
  if (reply.status == CUDA_SUCCESS)
    count(s, stream, traffic_of(s, p.dstDevice, p.srcDevice, m.width * m.rows * m.slices));
}

}  // namespace

void add_array_copy_handlers(DispatchTable& t) {
  t[wire::kSluiceCopyToArray].run = to_array;
  t[wire::kSluiceCopyFromArray].run = from_array;
  t[wire::kSluiceCopyArrays].run = between;
}

}  // namespace sluice::worker
