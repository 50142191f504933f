// SPDX-License-Identifier: Apache-2.0
// Textures and surfaces. Kernels take them as plain numbers that only the driver can give, so their
// creation is a round trip; what each was made of is kept here, and asked for here.
#include <cstring>
#include <mutex>

#include "client/core/addresses.h"
#include "client/core/enter.h"
#include "client/core/session.h"
#include "client/driver/array.h"
#include "client/objects/array.h"
#include "client/objects/device.h"
#include "wire/generated.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

bool plain_element(CUarray_format format, unsigned channels) {
  return wire::element_bytes(static_cast<uint32_t>(format), channels) != 0;
}

// What the command says of the resource, or CUDA's error for one that there is not.
CUresult describe(Session* s, const Device* d, const CUDA_RESOURCE_DESC& r,
                  wire::SluiceTextureCreate* c) {
  c->resource = static_cast<unsigned>(r.resType);
  if (r.flags != 0) return CUDA_ERROR_INVALID_VALUE;
  switch (r.resType) {
    case CU_RESOURCE_TYPE_ARRAY: {
      const Array* a = s->arrays.find(r.res.array.hArray);
      if (!a || a->device != d) return CUDA_ERROR_INVALID_HANDLE;
      c->array = reinterpret_cast<uint64_t>(r.res.array.hArray);
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
      const MipmappedArray* a = s->mipmapped_arrays.find(r.res.mipmap.hMipmappedArray);
      if (!a || a->device != d) return CUDA_ERROR_INVALID_HANDLE;
      c->array = reinterpret_cast<uint64_t>(r.res.mipmap.hMipmappedArray);
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_LINEAR: {
      const auto& l = r.res.linear;
      if (!plain_element(l.format, l.numChannels) || !is_backed(s, l.devPtr, l.sizeInBytes, d))
        return CUDA_ERROR_INVALID_VALUE;
      c->address = l.devPtr, c->bytes = l.sizeInBytes;
      c->format = static_cast<unsigned>(l.format), c->channels = l.numChannels;
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& p = r.res.pitch2D;
      const uint64_t element = wire::element_bytes(static_cast<uint32_t>(p.format), p.numChannels);
      uint64_t before = 0;
      if (element == 0 || p.width == 0 || p.height == 0 || p.width > wire::kMaxArrayWidth ||
          p.pitchInBytes < p.width * element ||
          __builtin_mul_overflow(p.pitchInBytes, p.height - 1, &before) ||
          !is_backed(s, p.devPtr, before + p.width * element, d))
        return CUDA_ERROR_INVALID_VALUE;
      c->address = p.devPtr, c->width = p.width, c->height = p.height, c->pitch = p.pitchInBytes;
      c->format = static_cast<unsigned>(p.format), c->channels = p.numChannels;
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult create(uint64_t* object, const CUDA_RESOURCE_DESC* resource,
                const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view,
                bool surface) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!resource || (!texture && !surface)) return CUDA_ERROR_INVALID_VALUE;
  wire::SluiceTextureCreate c{};
  if (const CUresult e = describe(s, d, *resource, &c); e != CUDA_SUCCESS) return e;
  if (surface && resource->resType != CU_RESOURCE_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
  c.surface = surface;
  c.viewed = view != nullptr;
  if (texture) c.texture = *texture;
  if (view) c.view = *view;
  wire::SluiceTextureCreateReply reply{};
  size_t got = 0;
  std::lock_guard lock(d->arrays_mutex);
  const CUresult e = s->exchange(wire::kSluiceTextureCreate, c, {},
                                 {reinterpret_cast<std::byte*>(&reply), sizeof reply}, &got,
                                 nullptr, d->context());
  if (e != CUDA_SUCCESS) return e;
  if (got < sizeof reply) return CUDA_ERROR_UNKNOWN;
  d->textures[{surface, reply.object}] = {*resource, c.texture, c.view};
  *object = reply.object;
  return CUDA_SUCCESS;
}

CUresult destroy(uint64_t object, bool surface) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  std::lock_guard lock(d->arrays_mutex);
  if (!d->textures.erase({surface, object})) return CUDA_ERROR_INVALID_VALUE;
  return s->post(wire::kSluiceTextureDestroy,
                 wire::SluiceTextureDestroy{object, surface ? 1u : 0u, {}}, {}, nullptr,
                 d->context());
}

template <class T>
CUresult look(uint64_t object, bool surface, T Texture::*part, T* to) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!to) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(d->arrays_mutex);
  const auto it = d->textures.find({surface, object});
  if (it == d->textures.end()) return CUDA_ERROR_INVALID_VALUE;
  *to = it->second.*part;
  return CUDA_SUCCESS;
}

}  // namespace

namespace sluice::client {

void forget_textures_of(Session* s, Device* d) {
  std::lock_guard lock(d->arrays_mutex);
  for (const auto& [key, texture] : d->textures)
    s->post(wire::kSluiceTextureDestroy,
            wire::SluiceTextureDestroy{key.second, key.first ? 1u : 0u, {}}, {}, nullptr,
            d->context());
  d->textures.clear();
}

}  // namespace sluice::client

extern "C" {

CUresult cuTexObjectCreate(CUtexObject* object, const CUDA_RESOURCE_DESC* resource,
                           const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view) {
  uint64_t made = 0;
  if (!object) return CUDA_ERROR_INVALID_VALUE;
  const CUresult e = create(&made, resource, texture, view, false);
  if (e == CUDA_SUCCESS) *object = made;
  return e;
}
CUresult cuTexObjectDestroy(CUtexObject object) { return destroy(object, false); }

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUtexObject object) {
  return look(object, false, &Texture::resource, resource);
}
CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* texture, CUtexObject object) {
  return look(object, false, &Texture::texture, texture);
}
CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* view, CUtexObject object) {
  return look(object, false, &Texture::view, view);
}

CUresult cuSurfObjectCreate(CUsurfObject* object, const CUDA_RESOURCE_DESC* resource) {
  uint64_t made = 0;
  if (!object) return CUDA_ERROR_INVALID_VALUE;
  const CUresult e = create(&made, resource, nullptr, nullptr, true);
  if (e == CUDA_SUCCESS) *object = made;
  return e;
}
CUresult cuSurfObjectDestroy(CUsurfObject object) { return destroy(object, true); }

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUsurfObject object) {
  return look(object, true, &Texture::resource, resource);
}

}  // extern "C"
