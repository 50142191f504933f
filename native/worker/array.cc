// SPDX-License-Identifier: Apache-2.0
// Arrays: made with ids that the client minted, charged to the vGPU's memory before the driver is
// asked, by the same rules as in the client (wire/array_shape.h).
#include "wire/generated.h"
#include "worker/dispatch.h"
#include "worker/memory.h"

namespace sluice::worker {

namespace {

CUresult make(const Driver& driver, const CUDA_ARRAY3D_DESCRIPTOR& p, uint32_t levels,
              ArrayObject* o) {
  return levels == 0 ? call(driver.cuArray3DCreate_v2, &o->array, &p)
                     : call(driver.cuMipmappedArrayCreate, &o->mipmapped, &p, levels);
}

void create(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& a = d.fixed<wire::SluiceArrayCreate>();
  auto& table = a.levels ? s.objects.mipmapped_arrays : s.objects.arrays;
  ArrayObject o;
  o.shape = {a.width, a.height, a.depth, a.format, a.channels, a.flags, a.levels ? a.levels : 1};
  if (!d.ok() || !wire::sensible(o.shape) || !table.has_room(a.id))
    return s.reject("ArrayCreate makes no sense, or mints no id that is free");
  Vgpu* v = s.use_context(c.header.context);
  if (!v) return;
  o.device = c.header.context - 1;
  std::lock_guard lock(v->mutex);
  const uint64_t bytes = wire::array_bytes(o.shape);
  const uint64_t more = v->array_charges.needed(bytes);
  if (!may_take(s, *v, more, "ArrayCreate", reply)) return;
  v->array_charges.add(bytes);
  v->memory.take(MemoryUse::kClient, more);
  CUDA_ARRAY3D_DESCRIPTOR p{};
  p.Width = a.width, p.Height = a.height, p.Depth = a.depth;
  p.Format = static_cast<CUarray_format>(a.format);
  p.NumChannels = a.channels;
  p.Flags = a.flags;
  reply.status = make(s.driver, p, a.levels, &o);
  if (reply.status == CUDA_SUCCESS)
    table.add(a.id, o);
  else
    uncharge(s, *v, v->array_charges.remove(bytes));
}

// Small arrays share slabs, so one may take nothing.
uint64_t created(Session& s, const Command& c, uint32_t* device) {
  Decoder d(c.body);
  const auto& a = d.fixed<wire::SluiceArrayCreate>();
  const wire::ArrayShape shape{
      a.width, a.height, a.depth, a.format, a.channels, a.flags, a.levels ? a.levels : 1};
  *device = c.header.context - 1;
  if (!d.ok() || *device >= s.vgpus.size() || !wire::sensible(shape)) return 0;
  Vgpu& v = *s.vgpus[*device];
  std::lock_guard lock(v.mutex);
  return v.array_charges.needed(wire::array_bytes(shape));
}

void destroy(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& a = d.fixed<wire::SluiceArrayDestroy>();
  ArrayObject o;
  if (!d.ok() || (s.objects.arrays.get(a.id, &o) && o.parent != 0) ||
      (!s.objects.arrays.take(a.id, &o) && !s.objects.mipmapped_arrays.take(a.id, &o)))
    return s.reject("ArrayDestroy names an array that the session does not have");
  Vgpu* v = s.use(o.device);
  if (!v) return;
  if (o.mipmapped) {
    std::vector<uint64_t> levels;
    s.objects.arrays.for_each([&](uint64_t id, const ArrayObject& level) {
      if (level.parent == a.id) levels.push_back(id);
    });
    ArrayObject gone;
    for (const uint64_t id : levels) s.objects.arrays.take(id, &gone);
  }
  reply.status = o.mipmapped ? call(s.driver.cuMipmappedArrayDestroy, o.mipmapped)
                             : call(s.driver.cuArrayDestroy, o.array);
  std::lock_guard lock(v->mutex);
  uncharge(s, *v, v->array_charges.remove(wire::array_bytes(o.shape)));
}

void level(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& a = d.fixed<wire::SluiceArrayLevel>();
  ArrayObject whole;
  if (!d.ok() || !s.objects.mipmapped_arrays.get(a.mipmapped, &whole) ||
      a.level >= whole.shape.levels || !s.objects.arrays.has_room(a.id))
    return s.reject("ArrayLevel names a level that there is not, or mints no id that is free");
  if (!s.use(whole.device)) return;
  ArrayObject o;
  o.device = whole.device;
  o.shape = wire::level_of(whole.shape, a.level);
  o.parent = a.mipmapped;
  reply.status = call(s.driver.cuMipmappedArrayGetLevel, &o.array, whole.mipmapped, a.level);
  if (reply.status == CUDA_SUCCESS) s.objects.arrays.add(a.id, o);
}

}  // namespace

void add_array_handlers(DispatchTable& t) {
  t[wire::kSluiceArrayCreate].run = create;
  t[wire::kSluiceArrayCreate].takes = created;
  t[wire::kSluiceArrayDestroy].run = destroy;
  t[wire::kSluiceArrayLevel].run = level;
}

}  // namespace sluice::worker
