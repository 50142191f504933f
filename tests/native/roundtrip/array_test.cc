// SPDX-License-Identifier: Apache-2.0
// Arrays, textures and surfaces from exported function to driver call: the bytes arrive in the
// array whichever way they take, the driver's own numbers reach the program, and the vGPU's memory
// is charged and given back.
#include "client/driver/array.h"

#include <optional>

#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {
namespace {

using Bytes = std::vector<std::byte>;

class Arrays : public RoundTrip {
 protected:
  static CUDA_ARRAY3D_DESCRIPTOR describe(size_t w, size_t h, size_t d,
                                          CUarray_format format = CU_AD_FORMAT_FLOAT,
                                          unsigned channels = 1, unsigned flags = 0) {
    CUDA_ARRAY3D_DESCRIPTOR p{};
    p.Width = w, p.Height = h, p.Depth = d;
    p.Format = format, p.NumChannels = channels, p.Flags = flags;
    return p;
  }
  CUarray create(const CUDA_ARRAY3D_DESCRIPTOR& p) {
    CUarray a = nullptr;
    EXPECT_EQ(cuArray3DCreate_v2(&a, &p), CUDA_SUCCESS);
    return a;
  }
  Recording::StoredArray& stored(CUarray a) {
    worker::ArrayObject o;
    if (!worker_session().objects.arrays.get(id(a), &o)) throw std::runtime_error("no such array");
    return recording().arrays.at(o.array);
  }
  Bytes random_bytes(size_t n) {
    Bytes all(n);
    for (auto& b : all) b = static_cast<std::byte>(next());
    return all;
  }
  size_t available() {
    size_t free_bytes = 0, total = 0;
    EXPECT_EQ(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    return free_bytes;
  }
};

TEST_F(Arrays, TheDriverGetsTheDescriptionAndIsAskedOnce) {
  const size_t before = available();
  const auto p = describe(100 + next() % 100, 50, 3, CU_AD_FORMAT_HALF, 4, CUDA_ARRAY3D_LAYERED);
  const CUarray first = create(p);
  CUDA_ARRAY3D_DESCRIPTOR said{};
  ASSERT_EQ(cuArray3DGetDescriptor_v2(&said, first), CUDA_SUCCESS);
  EXPECT_TRUE(same(said, p));
  EXPECT_TRUE(same(stored(first).descriptor, p));
  EXPECT_LT(available(), before);
  const auto trips = worker_session().figures.round_trips.load();
  const CUarray second = create(p);
  EXPECT_EQ(worker_session().figures.round_trips.load(), trips) << "a shape that was taken before";
  EXPECT_NE(first, second);
  ASSERT_EQ(cuArrayDestroy(first), CUDA_SUCCESS);
  EXPECT_EQ(cuArrayDestroy(first), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cuArrayDestroy(second), CUDA_SUCCESS);
  EXPECT_EQ(available(), before);
  EXPECT_TRUE(recording().arrays.empty());
}

TEST_F(Arrays, RefusedWithoutATrace) {
  const size_t before = available();
  CUarray a = nullptr;
  for (const auto& p : {describe(0, 1, 0), describe(10, 10, 0, CUarray_format(77)),
                        describe(10, 10, 0, CU_AD_FORMAT_FLOAT, 5),
                        describe(10, 10, 0, CU_AD_FORMAT_FLOAT, 1, 1u << 30)})
    EXPECT_NE(cuArray3DCreate_v2(&a, &p), CUDA_SUCCESS);
  const auto huge = describe(100000, 100000, 0, CU_AD_FORMAT_FLOAT, 4);
  EXPECT_EQ(cuArray3DCreate_v2(&a, &huge), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(recording().calls_of("cuArray3DCreate_v2").empty());
  recording().status = CUDA_ERROR_INVALID_VALUE;
  const auto odd = describe(777, 3, 0);
  EXPECT_EQ(cuArray3DCreate_v2(&a, &odd), CUDA_ERROR_INVALID_VALUE);
  recording().status = CUDA_SUCCESS;
  EXPECT_EQ(available(), before);
  EXPECT_EQ(worker_session().objects.arrays.count(), 0u);
  for (uint64_t wrong : wrong_handles()) {
    EXPECT_EQ(cuArrayDestroy(reinterpret_cast<CUarray>(wrong)), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuMipmappedArrayDestroy(reinterpret_cast<CUmipmappedArray>(wrong)),
              CUDA_ERROR_INVALID_HANDLE);
  }
}

TEST_F(Arrays, BothSidesChargeTheSame) {
  const size_t before = available();
  std::vector<CUarray> live;
  for (int i = 0; i < 300; ++i) {
    if (live.empty() || next() % 3) {
      const size_t edge = one_of<size_t>({1, 8, 100, 300, 700});
      live.push_back(create(describe(1 + next() % edge, next() % edge, next() % 5)));
    } else {
      const size_t at = next() % live.size();
      ASSERT_EQ(cuArrayDestroy(live[at]), CUDA_SUCCESS);
      live.erase(live.begin() + static_cast<long>(at));
    }
  }
  size_t total = 0;
  for (CUarray a : live) {
    CUDA_ARRAY3D_DESCRIPTOR p;
    cuArray3DGetDescriptor_v2(&p, a);
    total += p.Width * 4 * std::max<size_t>(1, p.Height) * std::max<size_t>(1, p.Depth);
  }
  EXPECT_GE(before - available(), total);
  auto& vgpu = *worker_session().vgpus[0];
  const size_t used_here = vgpu.memory.bytes() - vgpu.memory.taken(worker::MemoryUse::kClient);
  EXPECT_EQ(used_here, available());
  for (CUarray a : live) ASSERT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
  EXPECT_EQ(available(), before);
}

TEST_F(Arrays, CopiesArriveWhichever) {
  for (int i = 0; i < 120; ++i) {
    const unsigned channels = one_of<unsigned>({1, 2, 4});
    const CUarray_format format =
        one_of({CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_HALF, CU_AD_FORMAT_FLOAT});
    const size_t element = channels * (format == CU_AD_FORMAT_FLOAT  ? 4
                                       : format == CU_AD_FORMAT_HALF ? 2
                                                                     : 1);
    const size_t most = one_of<size_t>({5, 60, 900});
    const size_t w = 1 + next() % most, h = 1 + next() % most, d = 1 + next() % 3;
    const CUarray array = create(describe(w, h, d, format, channels));
    auto& in = stored(array);
    in.bytes = random_bytes(in.bytes.size());
    Bytes expected = in.bytes;
    CUDA_MEMCPY3D p{};
    p.WidthInBytes = (1 + next() % w) * element, p.Height = 1 + next() % h;
    p.Depth = 1 + next() % d;
    const size_t x = next() % (w - p.WidthInBytes / element + 1) * element;
    const size_t y = next() % (h - p.Height + 1), z = next() % (d - p.Depth + 1);
    // The memory's box, a little larger.
    const size_t pitch = p.WidthInBytes + next() % 20, height = p.Height + next() % 3;
    const size_t bytes = pitch * height * p.Depth + 64;
    const Bytes data = random_bytes(bytes);
    const bool to_array = next() % 2;
    const int place = static_cast<int>(next() % 3);  // pageable, pinned, device
    Bytes pageable = data;
    void* pinned = nullptr;
    ASSERT_EQ(cuMemHostAlloc(&pinned, bytes, 0), CUDA_SUCCESS);
    std::memcpy(pinned, data.data(), bytes);
    recording().memory.write(world().memory, data.data(), bytes);
    void* host = place == 0 ? pageable.data() : pinned;
    const auto memory_type = place == 2 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    const size_t off = next() % 64;
    if (to_array) {
      p.dstMemoryType = CU_MEMORYTYPE_ARRAY, p.dstArray = array;
      p.dstXInBytes = x, p.dstY = y, p.dstZ = z;
      p.srcMemoryType = memory_type, p.srcHost = host, p.srcDevice = world().memory;
      p.srcPitch = pitch, p.srcHeight = height, p.srcXInBytes = off;
    } else {
      p.srcMemoryType = CU_MEMORYTYPE_ARRAY, p.srcArray = array;
      p.srcXInBytes = x, p.srcY = y, p.srcZ = z;
      p.dstMemoryType = memory_type, p.dstHost = host, p.dstDevice = world().memory;
      p.dstPitch = pitch, p.dstHeight = height, p.dstXInBytes = off;
    }
    const size_t last = off + (p.Depth - 1) * height * pitch + (p.Height - 1) * pitch;
    if (last + p.WidthInBytes > bytes || (pitch < off + p.WidthInBytes && off > 0)) {
      // Beyond what was allocated; another round.
      cuMemFreeHost(pinned);
      cuArrayDestroy(array);
      continue;
    }
    Bytes expected_memory = data;
    for (size_t slice = 0; slice < p.Depth; ++slice)
      for (size_t row = 0; row < p.Height; ++row) {
        const size_t here = off + (slice * height + row) * pitch;
        const size_t there = ((z + slice) * in.rows + y + row) * in.row_bytes + x;
        if (to_array)
          std::memcpy(expected.data() + there, data.data() + here, p.WidthInBytes);
        else
          std::memcpy(expected_memory.data() + here, expected.data() + there, p.WidthInBytes);
      }
    const bool wait = next() % 2;
    const CUstream stream = wait ? nullptr : random_stream();
    ASSERT_EQ(wait ? cuMemcpy3D_v2(&p) : cuMemcpy3DAsync_v2(&p, stream), CUDA_SUCCESS);
    EXPECT_TRUE(in.bytes == expected) << "place " << place << " to_array " << to_array;
    const Bytes after =
        place == 2 ? recording().memory.read(world().memory, bytes)
                   : Bytes(static_cast<std::byte*>(host), static_cast<std::byte*>(host) + bytes);
    EXPECT_TRUE(after == expected_memory) << "place " << place << " to_array " << to_array;
    ASSERT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
    ASSERT_EQ(cuArrayDestroy(array), CUDA_SUCCESS);
  }
}

TEST_F(Arrays, OutsideIsRefusedAtOnce) {
  const CUarray array = create(describe(64, 16, 0));
  Bytes host(64 * 16 * 4);
  const auto copy = [&](size_t x, size_t y, size_t z, size_t width, size_t rows) {
    CUDA_MEMCPY3D p{};
    p.srcMemoryType = CU_MEMORYTYPE_HOST, p.srcHost = host.data();
    p.dstMemoryType = CU_MEMORYTYPE_ARRAY, p.dstArray = array;
    p.dstXInBytes = x, p.dstY = y, p.dstZ = z;
    p.WidthInBytes = width, p.Height = rows, p.Depth = 1;
    return cuMemcpy3D_v2(&p);
  };
  recording().clear();
  EXPECT_EQ(copy(0, 0, 0, 260, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(copy(4, 0, 0, 256, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(copy(2, 0, 0, 8, 1), CUDA_ERROR_INVALID_VALUE) << "half an element";
  EXPECT_EQ(copy(0, 1, 0, 256, 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(copy(0, 0, 1, 256, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(copy(~size_t{3}, 0, 0, 256, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(recording().calls.empty());
  EXPECT_EQ(copy(0, 0, 0, 256, 16), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyHtoA_v2(array, 8, host.data(), 16), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyAtoH_v2(host.data(), array, 8, 16), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyAtoA_v2(array, 0, array, 64, 16), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoA_v2(array, 0, world().memory, 16), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyAtoD_v2(world().memory, array, 0, 16), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoA_v2(array, 0, world().memory + kBytes - 8, 16), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuArrayDestroy(array), CUDA_SUCCESS);
}

TEST_F(Arrays, Levels) {
  const size_t before = available();
  CUmipmappedArray whole = nullptr;
  const auto p = describe(64, 40, 0);
  ASSERT_EQ(cuMipmappedArrayCreate(&whole, &p, 100), CUDA_SUCCESS);
  worker::ArrayObject o;
  ASSERT_TRUE(worker_session().objects.mipmapped_arrays.get(id(whole), &o));
  EXPECT_EQ(o.shape.levels, 7u) << "64, 32, ... 1";
  CUarray level = nullptr, again = nullptr;
  EXPECT_EQ(cuMipmappedArrayGetLevel(&level, whole, 7), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMipmappedArrayGetLevel(&level, whole, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuMipmappedArrayGetLevel(&again, whole, 2), CUDA_SUCCESS);
  EXPECT_EQ(level, again);
  CUDA_ARRAY_DESCRIPTOR flat{};
  ASSERT_EQ(cuArrayGetDescriptor_v2(&flat, level), CUDA_SUCCESS);
  EXPECT_EQ(flat.Width, 16u);
  EXPECT_EQ(flat.Height, 10u);
  EXPECT_EQ(cuArrayDestroy(level), CUDA_ERROR_INVALID_HANDLE) << "it is its array's";
  const Bytes data = random_bytes(64);
  ASSERT_EQ(cuMemcpyHtoA_v2(level, 0, data.data(), 64), CUDA_SUCCESS);
  EXPECT_EQ(std::memcmp(stored(level).bytes.data(), data.data(), 64), 0);
  ASSERT_EQ(cuMipmappedArrayDestroy(whole), CUDA_SUCCESS);
  EXPECT_EQ(cuArrayGetDescriptor_v2(&flat, level), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(worker_session().objects.arrays.count(), 0u);
  EXPECT_EQ(available(), before);
}

TEST_F(Arrays, TexturesAndSurfacesAreTheDriversNumbers) {
  const CUarray array =
      create(describe(64, 16, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SURFACE_LDST));
  CUDA_RESOURCE_DESC resource{}, said{};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array;
  CUDA_TEXTURE_DESC texture{}, said_texture{};
  texture.addressMode[0] = CU_TR_ADDRESS_MODE_CLAMP;
  texture.filterMode = CU_TR_FILTER_MODE_LINEAR;
  texture.flags = CU_TRSF_NORMALIZED_COORDINATES;
  texture.borderColor[2] = 0.5f;
  CUDA_RESOURCE_VIEW_DESC view{};
  view.format = CU_RES_VIEW_FORMAT_FLOAT_1X32;
  view.width = 64, view.height = 16;
  CUDA_TEXTURE_DESC given{};
  CUDA_RESOURCE_VIEW_DESC given_view{};
  CUDA_RESOURCE_DESC given_resource{};
  CUtexObject object = 0;
  {
    ScopedAnswer a(SLUICE_ON(cuTexObjectCreate),
                   [&](CUtexObject* o, const CUDA_RESOURCE_DESC* r, const CUDA_TEXTURE_DESC* t,
                       const CUDA_RESOURCE_VIEW_DESC* v) {
                     given_resource = *r, given = *t, given_view = *v;
                     recording().textures.insert(*o = 0x100023);
                     return CUDA_SUCCESS;
                   });
    ASSERT_EQ(cuTexObjectCreate(&object, &resource, &texture, &view), CUDA_SUCCESS);
  }
  EXPECT_EQ(object, 0x100023u);
  worker::ArrayObject o;
  ASSERT_TRUE(worker_session().objects.arrays.get(id(array), &o));
  EXPECT_EQ(given_resource.res.array.hArray, o.array);
  EXPECT_TRUE(same(given, texture));
  EXPECT_TRUE(same(given_view, view));
  ASSERT_EQ(cuTexObjectGetResourceDesc(&said, object), CUDA_SUCCESS);
  EXPECT_EQ(said.res.array.hArray, array);
  ASSERT_EQ(cuTexObjectGetTextureDesc(&said_texture, object), CUDA_SUCCESS);
  EXPECT_TRUE(same(said_texture, texture));
  CUsurfObject surface = 0;
  ASSERT_EQ(cuSurfObjectCreate(&surface, &resource), CUDA_SUCCESS);
  EXPECT_TRUE(recording().surfaces.contains(surface));
  ASSERT_EQ(cuTexObjectDestroy(object), CUDA_SUCCESS);
  EXPECT_EQ(cuTexObjectDestroy(object), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuSurfObjectDestroy(surface), CUDA_SUCCESS);
  EXPECT_TRUE(recording().textures.empty());
  EXPECT_TRUE(recording().surfaces.empty());
  // Memory, and what is no memory of the program's.
  resource = {};
  resource.resType = CU_RESOURCE_TYPE_PITCH2D;
  resource.res.pitch2D = {world().memory, CU_AD_FORMAT_FLOAT, 1, 100, 10, 512};
  ASSERT_EQ(cuTexObjectCreate(&object, &resource, &texture, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuTexObjectDestroy(object), CUDA_SUCCESS);
  resource.res.pitch2D.height = kBytes;
  EXPECT_EQ(cuTexObjectCreate(&object, &resource, &texture, nullptr), CUDA_ERROR_INVALID_VALUE);
  resource = {};
  resource.resType = CU_RESOURCE_TYPE_LINEAR;
  for (uint64_t wrong : wrong_addresses()) {
    resource.res.linear = {wrong, CU_AD_FORMAT_FLOAT, 1, 1024};
    EXPECT_EQ(cuTexObjectCreate(&object, &resource, &texture, nullptr), CUDA_ERROR_INVALID_VALUE);
  }
  ASSERT_EQ(cuArrayDestroy(array), CUDA_SUCCESS);
}

TEST_F(Arrays, AResetEndsThem) {
  const size_t before = available();
  const CUarray array = create(describe(64, 16, 0));
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array;
  CUDA_TEXTURE_DESC texture{};
  CUtexObject object = 0;
  ASSERT_EQ(cuTexObjectCreate(&object, &resource, &texture, nullptr), CUDA_SUCCESS);
  client::Session* s = client::Session::get();
  client::forget_textures_of(s, s->devices()[0].get());
  ASSERT_EQ(client::end_arrays_of(s, s->devices()[0].get()), CUDA_SUCCESS);
  EXPECT_TRUE(recording().arrays.empty());
  EXPECT_TRUE(recording().textures.empty());
  EXPECT_EQ(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(available(), before);
}

}  // namespace
}  // namespace sluice::test
