// SPDX-License-Identifier: Apache-2.0
// CUDA arrays: the life of plain and mipmapped ones. Charged by array_bytes() before the worker
// hears of them. What an array may look like is the driver's to say, once: a shape that it has
// taken is created without asking again.
#include "client/driver/array.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "client/core/enter.h"
#include "client/core/session.h"
#include "client/driver/transfer.h"
#include "client/driver/wait.h"
#include "client/objects/device.h"
#include "client/unsupported.h"
#include "wire/generated.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

constexpr unsigned kKnownFlags =
    CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP |
    CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_DEPTH_TEXTURE | CUDA_ARRAY3D_COLOR_ATTACHMENT |
    CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_VIDEO_ENCODE_DECODE;

wire::ArrayShape shape_of(const CUDA_ARRAY3D_DESCRIPTOR& p, unsigned levels) {
  return {p.Width,       p.Height, p.Depth, static_cast<uint32_t>(p.Format),
          p.NumChannels, p.Flags,  levels};
}

CUDA_ARRAY3D_DESCRIPTOR descriptor_of(const wire::ArrayShape& a) {
  CUDA_ARRAY3D_DESCRIPTOR p{};
  p.Width = a.width, p.Height = a.height, p.Depth = a.depth;
  p.Format = static_cast<CUarray_format>(a.format);
  p.NumChannels = a.channels;
  p.Flags = a.flags;
  return p;
}

// What CUDA refuses whatever the device is, and what Sluice does not speak.
CUresult check(const char* function, const wire::ArrayShape& a) {
  if (a.width == 0 || a.flags & ~kKnownFlags) return CUDA_ERROR_INVALID_VALUE;
  if (a.channels != 1 && a.channels != 2 && a.channels != 3 && a.channels != 4)
    return CUDA_ERROR_INVALID_VALUE;
  if (a.flags & ~wire::kArrayFlags || wire::channel_bytes(a.format) == 0) {
    note_unsupported(function);
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return wire::sensible(a) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// The command, as one that is waited for until the driver has taken such an array.
CUresult tell(Session* s, Device* d, uint64_t id, const wire::ArrayShape& a, bool mipmapped) {
  wire::SluiceArrayCreate c{};
  c.width = a.width, c.height = a.height, c.depth = a.depth;
  c.format = a.format, c.channels = a.channels, c.flags = a.flags;
  c.levels = mipmapped ? a.levels : 0;
  const Question question{wire::kSluiceArrayCreate, d->context(), c};  // without the id
  c.id = id;
  uint64_t epoch, taken = 0;
  if (s->answers.find(AnswerCache::kForEver, question, &taken, &epoch))
    return s->post(wire::kSluiceArrayCreate, c, {}, nullptr, d->context());
  const CUresult e =
      s->exchange(wire::kSluiceArrayCreate, c, {}, {}, nullptr, nullptr, d->context());
  if (e == CUDA_SUCCESS) s->answers.keep(AnswerCache::kForEver, question, uint64_t{1}, epoch);
  return e;
}

template <class T>
CUresult create(const char* function, HandleTable<T>& table, uint64_t* handle,
                const wire::ArrayShape& a, bool mipmapped) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = check(function, a); e != CUDA_SUCCESS) return e;
  if (const CUresult e = s->captures.unsafe(); e != CUDA_SUCCESS) return e;
  const uint64_t bytes = wire::array_bytes(a);
  // The accounts change in the order in which the worker hears of it.
  std::lock_guard lock(d->arrays_mutex);
  uint64_t id;
  T* made = table.create(&id);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!d->memory.charge(d->array_charges.needed(bytes))) {
    table.destroy(id);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  d->array_charges.add(bytes);
  made->device = d;
  made->shape = a;
  if (const CUresult e = tell(s, d, id, a, mipmapped); e != CUDA_SUCCESS) {
    d->memory.refund(d->array_charges.remove(bytes));
    table.destroy(id);
    return e;
  }
  *handle = id;
  return CUDA_SUCCESS;
}

// The device is done with it.
template <class T>
CUresult end(Session* s, Device* d, HandleTable<T>& table, uint64_t id) {
  std::lock_guard lock(d->arrays_mutex);
  T* array = table.find(id);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  const uint64_t bytes = wire::array_bytes(array->shape);
  std::vector<uint64_t> levels;
  if constexpr (requires { array->levels; }) {
    std::erase(array->levels, 0);
    levels.swap(array->levels);
  }
  if (!table.retire(id)) return CUDA_ERROR_INVALID_HANDLE;
  for (const uint64_t level : levels) s->arrays.retire(level);
  const CUresult e =
      s->post(wire::kSluiceArrayDestroy, wire::SluiceArrayDestroy{id}, {}, nullptr, d->context());
  d->memory.refund(d->array_charges.remove(bytes));
  for (const uint64_t level : levels) s->arrays.recycle(level);
  table.recycle(id);
  return e;
}

CUDA_ARRAY3D_DESCRIPTOR without_depth(const CUDA_ARRAY_DESCRIPTOR& p) {
  CUDA_ARRAY3D_DESCRIPTOR all{};
  all.Width = p.Width, all.Height = p.Height;
  all.Format = p.Format, all.NumChannels = p.NumChannels;
  return all;
}

template <class T>
void end_all(Session* s, Device* d, HandleTable<T>& table, CUresult* result) {
  std::vector<uint64_t> ids;
  table.for_each([&](uint64_t id, const T& array) {
    bool own = array.device == d;
    if constexpr (requires { array.mipmapped; }) own = own && array.mipmapped == 0;
    if (own) ids.push_back(id);
  });
  for (const uint64_t id : ids)
    if (const CUresult e = end(s, d, table, id); e != CUDA_SUCCESS) *result = e;
}

template <class Table, class Handle>
CUresult refuse(Table Session::*table, Handle array) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  return (s->*table).find(array) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

namespace sluice::client {

CUresult end_arrays_of(Session* s, Device* d) {
  CUresult result = CUDA_SUCCESS;
  end_all(s, d, s->mipmapped_arrays, &result);
  end_all(s, d, s->arrays, &result);
  return result;
}

}  // namespace sluice::client

extern "C" {

CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* p) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!array || !p) return CUDA_ERROR_INVALID_VALUE;
  return create(__func__, s->arrays, reinterpret_cast<uint64_t*>(array), shape_of(*p, 1), false);
}

CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_ARRAY3D_DESCRIPTOR all = without_depth(*p);
  return cuArray3DCreate_v2(array, &all);
}

CUresult cuArrayDestroy(CUarray array) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  const Array* a = s->arrays.find(array);
  if (!a || a->mipmapped) return CUDA_ERROR_INVALID_HANDLE;
  Device* d = a->device;
  if (const CUresult e = s->captures.unsafe(); e != CUDA_SUCCESS) return e;
  if (const CUresult e = wait_idle(s, d); e != CUDA_SUCCESS) return e;
  return end(s, d, s->arrays, reinterpret_cast<uint64_t>(array));
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* p, CUarray array) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  const Array* a = s->arrays.find(array);
  if (!a) return CUDA_ERROR_INVALID_HANDLE;
  *p = descriptor_of(a->shape);
  return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* p, CUarray array) {
  CUDA_ARRAY3D_DESCRIPTOR all;
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = cuArray3DGetDescriptor_v2(&all, array); e != CUDA_SUCCESS) return e;
  if (all.Depth != 0) return CUDA_ERROR_INVALID_VALUE;
  *p = {all.Width, all.Height, all.Format, all.NumChannels};
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* p,
                                unsigned int levels) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!array || !p || levels == 0) return CUDA_ERROR_INVALID_VALUE;
  // More levels than there are become as many as there are.
  const bool layers = p->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
  const size_t longest = std::max({p->Width, p->Height, layers ? size_t{0} : p->Depth, size_t{1}});
  const unsigned most = static_cast<unsigned>(std::bit_width(longest));
  return create(__func__, s->mipmapped_arrays, reinterpret_cast<uint64_t*>(array),
                shape_of(*p, std::min(levels, most)), true);
}

CUresult cuMipmappedArrayGetLevel(CUarray* level_array, CUmipmappedArray array,
                                  unsigned int level) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  const auto id = reinterpret_cast<uint64_t>(array);
  MipmappedArray* m = s->mipmapped_arrays.find(id);
  if (!m) return CUDA_ERROR_INVALID_HANDLE;
  if (!level_array || level >= m->shape.levels) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(m->device->arrays_mutex);
  if (s->mipmapped_arrays.find(id) != m) return CUDA_ERROR_INVALID_HANDLE;
  m->levels.resize(m->shape.levels);
  uint64_t& known = m->levels[level];
  if (known == 0) {
    uint64_t made_id;
    Array* made = s->arrays.create(&made_id);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    made->device = m->device;
    made->shape = wire::level_of(m->shape, level);
    made->mipmapped = id;
    const CUresult e =
        s->post(wire::kSluiceArrayLevel, wire::SluiceArrayLevel{made_id, id, level, {}}, {},
                nullptr, m->device->context());
    if (e != CUDA_SUCCESS) {
      s->arrays.destroy(made_id);
      return e;
    }
    known = made_id;
  }
  *level_array = reinterpret_cast<CUarray>(known);
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  const MipmappedArray* m = s->mipmapped_arrays.find(array);
  if (!m) return CUDA_ERROR_INVALID_HANDLE;
  Device* d = m->device;
  if (const CUresult e = s->captures.unsafe(); e != CUDA_SUCCESS) return e;
  if (const CUresult e = wait_idle(s, d); e != CUDA_SUCCESS) return e;
  return end(s, d, s->mipmapped_arrays, reinterpret_cast<uint64_t>(array));
}

// No array is planar, sparse or mapped later, so CUDA's answer is the one for arrays that are not.
CUresult cuArrayGetPlane(CUarray* plane, CUarray array, unsigned int) {
  return plane ? refuse(&Session::arrays, array) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES*, CUarray array) {
  return refuse(&Session::arrays, array);
}
CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES*,
                                             CUmipmappedArray array) {
  return refuse(&Session::mipmapped_arrays, array);
}
CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS*, CUarray array, CUdevice) {
  return refuse(&Session::arrays, array);
}
CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS*,
                                               CUmipmappedArray array, CUdevice) {
  return refuse(&Session::mipmapped_arrays, array);
}

}  // extern "C"
