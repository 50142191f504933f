// SPDX-License-Identifier: Apache-2.0
// Good frames of arrays, textures and surfaces.
#include "tests/native/roundtrip/valid_frames.h"
#include "wire/generated.h"

namespace sluice::test {

namespace {

using Rig = FurnishedRig;
using Frames = std::vector<ValidFrame>;

void add_objects(Frames* all) {
  using C = wire::SluiceArrayCreate;
  for (uint32_t levels : {0u, 3u}) {
    C c{};
    c.id = handle_id(levels ? HandleKind::kMipmappedArray : HandleKind::kArray, 9);
    c.width = 100, c.height = 20, c.format = CU_AD_FORMAT_UNSIGNED_INT8, c.channels = 4;
    c.flags = CUDA_ARRAY3D_SURFACE_LDST;
    c.levels = levels;
    auto f = make(levels ? "ArrayCreate, levels" : "ArrayCreate", wire::kSluiceArrayCreate, true,
                  levels ? "cuMipmappedArrayCreate" : "cuArray3DCreate_v2", c);
    f.minted = {offsetof(C, id)};
    f.choices = {offsetof(C, format), offsetof(C, channels), offsetof(C, flags),
                 offsetof(C, levels)};
    all->push_back(f);
    f = make(levels ? "ArrayDestroy, levels" : "ArrayDestroy", wire::kSluiceArrayDestroy, false,
             levels ? "cuMipmappedArrayDestroy" : "cuArrayDestroy",
             wire::SluiceArrayDestroy{levels ? Rig::kMipmappedId : Rig::kArrayId});
    f.handles = {0};
    all->push_back(f);
  }
  using L = wire::SluiceArrayLevel;
  auto f = make("ArrayLevel", wire::kSluiceArrayLevel, false, "cuMipmappedArrayGetLevel",
                L{handle_id(HandleKind::kArray, 9), Rig::kMipmappedId, 2, {}});
  f.minted = {offsetof(L, id)};
  f.handles = {offsetof(L, mipmapped)};
  f.choices = {offsetof(L, level)};
  all->push_back(f);
}

template <class C>
void add_host_copies(Rig& rig, Frames* all, const char* name, uint16_t function, bool to_array) {
  for (const auto place : {wire::HostPlace::kInline, wire::HostPlace::kArena}) {
    const bool in_arena = place == wire::HostPlace::kArena;
    C c{};
    c.stream = Rig::kStreamId;
    c.array = in_arena ? Rig::kLevelId : Rig::kArrayId;
    c.x = 8, c.y = 2, c.width = 100, c.rows = 4;
    c.hostPitch = 128;
    c.hostAddress = in_arena ? rig.arena() + 4096 : 0;
    c.mark = wire::kNoMark;
    c.place = static_cast<unsigned>(place);
    auto f = make(name, function, !in_arena && !to_array, "cuMemcpy3DAsync_v2", c,
                  std::string(!in_arena && to_array ? 400 : 0, 'd'));
    f.name += in_arena ? ", arena" : ", inline";
    f.handles = {offsetof(C, stream), offsetof(C, array)};
    f.choices = {offsetof(C, place)};
    if (in_arena) f.arena = {{offsetof(C, hostAddress), 3 * 128 + 100}};
    all->push_back(f);
  }
}

void add_copies(Rig& rig, Frames* all) {
  add_host_copies<wire::SluiceCopyToArray>(rig, all, "CopyToArray", wire::kSluiceCopyToArray, true);
  add_host_copies<wire::SluiceCopyFromArray>(rig, all, "CopyFromArray", wire::kSluiceCopyFromArray,
                                             false);
  using C = wire::SluiceCopyArrays;
  C c{};
  c.stream = Rig::kStreamId;
  c.toArray = Rig::kArrayId;
  c.fromAddress = rig.address() + 512, c.fromPitch = 256, c.fromHeight = 4;
  c.width = 64, c.rows = 4, c.slices = 1;
  auto f = make("CopyArrays, to", wire::kSluiceCopyArrays, false, "cuMemcpy3DAsync_v2", c);
  f.handles = {offsetof(C, stream), offsetof(C, toArray)};
  f.addresses = {{offsetof(C, fromAddress), 3 * 256 + 64}};
  all->push_back(f);
  std::swap(c.toArray, c.fromArray);
  std::swap(c.toAddress, c.fromAddress);
  std::swap(c.toPitch, c.fromPitch);
  std::swap(c.toHeight, c.fromHeight);
  f = make("CopyArrays, from", wire::kSluiceCopyArrays, false, "cuMemcpy3DAsync_v2", c);
  f.handles = {offsetof(C, stream), offsetof(C, fromArray)};
  f.addresses = {{offsetof(C, toAddress), 3 * 256 + 64}};
  all->push_back(f);
}

void add_textures(Rig& rig, Frames* all) {
  using C = wire::SluiceTextureCreate;
  const auto add = [&](const char* name, CUresourcetype resource, bool surface) {
    C c{};
    c.resource = static_cast<unsigned>(resource);
    c.surface = surface;
    c.texture.filterMode = CU_TR_FILTER_MODE_LINEAR;
    const bool memory = resource == CU_RESOURCE_TYPE_LINEAR || resource == CU_RESOURCE_TYPE_PITCH2D;
    if (memory) {
      c.format = CU_AD_FORMAT_FLOAT, c.channels = 2;
      c.address = rig.address() + 1024;
      if (resource == CU_RESOURCE_TYPE_LINEAR)
        c.bytes = 4096;
      else
        c.width = 100, c.height = 4, c.pitch = 1024;
    } else {
      c.array = resource == CU_RESOURCE_TYPE_ARRAY ? Rig::kArrayId : Rig::kMipmappedId;
    }
    auto f = make(name, wire::kSluiceTextureCreate, true,
                  surface ? "cuSurfObjectCreate" : "cuTexObjectCreate", c);
    f.choices = {offsetof(C, resource), offsetof(C, surface), offsetof(C, viewed)};
    if (memory) {
      f.choices.push_back(offsetof(C, format));
      f.choices.push_back(offsetof(C, channels));
      f.addresses = {{offsetof(C, address), c.bytes ? c.bytes : 3 * 1024 + 800}};
    } else {
      f.handles = {offsetof(C, array)};
    }
    all->push_back(f);
  };
  add("TextureCreate, array", CU_RESOURCE_TYPE_ARRAY, false);
  add("TextureCreate, levels", CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, false);
  add("TextureCreate, linear", CU_RESOURCE_TYPE_LINEAR, false);
  add("TextureCreate, pitched", CU_RESOURCE_TYPE_PITCH2D, false);
  add("SurfaceCreate", CU_RESOURCE_TYPE_ARRAY, true);
  using D = wire::SluiceTextureDestroy;
  auto f =
      make("TextureDestroy", wire::kSluiceTextureDestroy, false, "cuTexObjectDestroy", D{1, 0, {}});
  f.choices = {offsetof(D, surface), offsetof(D, object)};
  all->push_back(f);
}

}  // namespace

void add_array_frames(FurnishedRig& rig, std::vector<ValidFrame>* all) {
  add_objects(all);
  add_copies(rig, all);
  add_textures(rig, all);
}

}  // namespace sluice::test
