// SPDX-License-Identifier: Apache-2.0
// Textures and surfaces: the driver's own numbers, given to the client as they are, because its
// kernels take them as plain parameters. What they are made of has to be the session's.
#include <cstring>

#include "wire/generated.h"
#include "worker/copy.h"
#include "worker/dispatch.h"

namespace sluice::worker {

namespace {

constexpr size_t kMaxTextures = 1 << 20;

// As a number: no enumeration may hold what it does not name.
template <class Enum>
uint32_t number(const Enum& value) {
  static_assert(sizeof value == sizeof(uint32_t));
  uint32_t n;
  std::memcpy(&n, &value, sizeof n);
  return n;
}

bool sensible(const CUDA_TEXTURE_DESC& t) {
  constexpr unsigned kFlags = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES |
                              CU_TRSF_SRGB | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION |
                              CU_TRSF_SEAMLESS_CUBEMAP;
  for (const auto& mode : t.addressMode)
    if (number(mode) > CU_TR_ADDRESS_MODE_BORDER) return false;
  return number(t.filterMode) <= CU_TR_FILTER_MODE_LINEAR &&
         number(t.mipmapFilterMode) <= CU_TR_FILTER_MODE_LINEAR && (t.flags & ~kFlags) == 0;
}

// What the texture is made of. False: rejected.
bool find_resource(Session& s, uint32_t device, const wire::SluiceTextureCreate& t,
                   CUDA_RESOURCE_DESC* r) {
  const auto refuse = [&](const char* why) {
    s.reject(why);
    return false;
  };
  ArrayObject o;
  r->resType = static_cast<CUresourcetype>(t.resource);
  switch (t.resource) {
    case CU_RESOURCE_TYPE_ARRAY:
      if (!s.objects.arrays.get(t.array, &o) || o.device != device)
        return refuse("TextureCreate names an array that the vGPU does not have");
      r->res.array.hArray = o.array;
      return true;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      if (!s.objects.mipmapped_arrays.get(t.array, &o) || o.device != device)
        return refuse("TextureCreate names an array that the vGPU does not have");
      r->res.mipmap.hMipmappedArray = o.mipmapped;
      return true;
    case CU_RESOURCE_TYPE_LINEAR:
    case CU_RESOURCE_TYPE_PITCH2D:
      break;
    default:
      return refuse("TextureCreate names a resource of no kind that there is");
  }
  const uint64_t element = wire::element_bytes(t.format, t.channels);
  if (element == 0) return refuse("TextureCreate names elements of no size that there is");
  const bool linear = t.resource == CU_RESOURCE_TYPE_LINEAR;
  if (!linear && t.width > wire::kMaxArrayWidth)
    return refuse("TextureCreate names a row that is too long");
  const uint64_t bytes = linear ? t.bytes : span_of(t.pitch, t.width * element, t.height);
  if ((bytes == 0 && !linear) || !s.device_range(t.address, bytes))
    return refuse("TextureCreate names device memory that the session does not have");
  if (linear) {
    r->res.linear.devPtr = t.address;
    r->res.linear.format = static_cast<CUarray_format>(t.format);
    r->res.linear.numChannels = t.channels;
    r->res.linear.sizeInBytes = t.bytes;
  } else {
    r->res.pitch2D.devPtr = t.address;
    r->res.pitch2D.format = static_cast<CUarray_format>(t.format);
    r->res.pitch2D.numChannels = t.channels;
    r->res.pitch2D.width = t.width;
    r->res.pitch2D.height = t.height;
    r->res.pitch2D.pitchInBytes = t.pitch;
  }
  return true;
}

void create(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& t = d.fixed<wire::SluiceTextureCreate>();
  if (!d.ok() || t.surface > 1 || t.viewed > 1 || s.objects.textures.size() >= kMaxTextures)
    return s.reject("TextureCreate makes no sense, or there are too many");
  if (!s.use_context(c.header.context)) return;
  const uint32_t device = c.header.context - 1;
  // The client sends what the application says; CUDA's answer to nonsense is this one.
  if (!t.surface && (!sensible(t.texture) ||
                     (t.viewed && number(t.view.format) > CU_RES_VIEW_FORMAT_UNSIGNED_BC7))) {
    reply.status = CUDA_ERROR_INVALID_VALUE;
    return;
  }
  CUDA_RESOURCE_DESC resource{};
  if (!find_resource(s, device, t, &resource)) return;
  wire::SluiceTextureCreateReply r{};
  if (t.surface)
    reply.status = call(s.driver.cuSurfObjectCreate, &r.object, &resource);
  else
    reply.status = call(s.driver.cuTexObjectCreate, &r.object, &resource, &t.texture,
                        t.viewed ? &t.view : nullptr);
  if (reply.status != CUDA_SUCCESS) return;
  s.objects.textures.insert({device, t.surface == 1, r.object});
  reply.put(r);
}

void destroy(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& t = d.fixed<wire::SluiceTextureDestroy>();
  if (!d.ok() || t.surface > 1 ||
      !s.objects.textures.erase({c.header.context - 1, t.surface == 1, t.object}))
    return s.reject("TextureDestroy names an object that the vGPU does not have");
  if (!s.use_context(c.header.context)) return;
  reply.status = t.surface ? call(s.driver.cuSurfObjectDestroy, t.object)
                           : call(s.driver.cuTexObjectDestroy, t.object);
}

}  // namespace

void add_texture_handlers(DispatchTable& t) {
  t[wire::kSluiceTextureCreate].run = create;
  t[wire::kSluiceTextureDestroy].run = destroy;
}

}  // namespace sluice::worker
