// SPDX-License-Identifier: Apache-2.0
// Launches: parameters and configuration arrive bit for bit.
#include <algorithm>

#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {
namespace {

class Launches : public RoundTrip {
 protected:
  struct Got {
    std::vector<std::byte> params;
    CUlaunchConfig config{};
    std::vector<CUlaunchAttribute> attributes;
    CUfunction function = nullptr;
  };
  static std::vector<std::byte> params_of(void** extra) {
    std::vector<std::byte> bytes;
    const void* at = nullptr;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
      if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) at = extra[1];
      if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes.resize(*static_cast<size_t*>(extra[1]));
    }
    if (!bytes.empty()) std::memcpy(bytes.data(), at, bytes.size());
    return bytes;
  }
};

TEST_F(Launches, Parameters) {
  for (int i = 0; i < 50; ++i) {
    // A layout with gaps, and values for it.
    recording().params.clear();
    std::vector<std::vector<std::byte>> values;
    std::vector<void*> pointers;
    size_t total = 0;
    for (size_t n = next() % 40; n > 0; --n) {
      const size_t size = size_t{1} << next() % 7;
      total = (total + size - 1) / size * size;
      recording().params.emplace_back(total, size);
      total += size;
      values.emplace_back(size);
      for (std::byte& b : values.back()) b = static_cast<std::byte>(next());
    }
    for (auto& v : values) pointers.push_back(v.data());
    pointers.push_back(nullptr);
    CUfunction function = nullptr;
    ASSERT_EQ(cuModuleGetFunction(&function, world().module, random_text(16).c_str()),
              CUDA_SUCCESS);
    const std::vector<std::pair<size_t, size_t>> layout = recording().params;
    recording().params = {{0, 8}, {8, 8}, {16, 4}};
    recording().clear();

    Got got;
    ScopedAnswer a(
        SLUICE_ON(cuLaunchKernel),
        [&](CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
            unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
          EXPECT_EQ(params, nullptr);
          got.function = f;
          got.config.gridDimX = gx, got.config.gridDimY = gy, got.config.gridDimZ = gz;
          got.config.blockDimX = bx, got.config.blockDimY = by, got.config.blockDimZ = bz;
          got.config.sharedMemBytes = shared;
          got.config.hStream = stream;
          got.params = params_of(extra);
          return CUDA_SUCCESS;
        });
    const auto grid = [&] { return 1 + static_cast<unsigned>(next() % 65535); };
    const auto block = [&] { return 1 + static_cast<unsigned>(next() % 10); };
    const unsigned gx = grid(), gy = grid(), gz = grid(), bx = block(), by = block(), bz = block();
    const unsigned shared = static_cast<unsigned>(next() % 65536);
    const CUstream stream = random_stream();
    ASSERT_EQ(
        cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, pointers.data(), nullptr),
        CUDA_SUCCESS);
    EXPECT_EQ(got.function, driver_of(function));
    EXPECT_EQ(got.config.gridDimX, gx);
    EXPECT_EQ(got.config.gridDimY, gy);
    EXPECT_EQ(got.config.gridDimZ, gz);
    EXPECT_EQ(got.config.blockDimX, bx);
    EXPECT_EQ(got.config.blockDimY, by);
    EXPECT_EQ(got.config.blockDimZ, bz);
    EXPECT_EQ(got.config.sharedMemBytes, shared);
    EXPECT_EQ(got.config.hStream, driver_of(stream));
    ASSERT_EQ(got.params.size(), total);
    for (size_t p = 0; p < values.size(); ++p)
      EXPECT_EQ(
          std::memcmp(got.params.data() + layout[p].first, values[p].data(), layout[p].second), 0)
          << "parameter " << p;
  }
}

TEST_F(Launches, PackedParameters) {
  std::vector<std::byte> buffer(20);
  for (std::byte& b : buffer) b = static_cast<std::byte>(next());
  size_t size = buffer.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer.data(), CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &size, CU_LAUNCH_PARAM_END};
  std::vector<std::byte> arrived;
  ScopedAnswer a(
      SLUICE_ON(cuLaunchKernel),
      [&](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
          CUstream, void**, void** e) { return arrived = params_of(e), CUDA_SUCCESS; });
  ASSERT_EQ(cuLaunchKernel(random_function(), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra),
            CUDA_SUCCESS);
  EXPECT_EQ(arrived, buffer);
}

TEST_F(Launches, Attributes) {
  for (int i = 0; i < 20; ++i) {
    recording().clear();
    Got got;
    ScopedAnswer a(SLUICE_ON(cuLaunchKernelEx),
                   [&](const CUlaunchConfig* c, CUfunction f, void** params, void** extra) {
                     EXPECT_EQ(params, nullptr);
                     got.config = *c;
                     got.attributes.assign(c->attrs, c->attrs + c->numAttrs);
                     got.function = f;
                     got.params = params_of(extra);
                     return CUDA_SUCCESS;
                   });
    CUlaunchAttribute attributes[3]{};
    attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[0].value.clusterDim.x = random<unsigned>();
    attributes[0].value.clusterDim.y = random<unsigned>();
    attributes[0].value.clusterDim.z = random<unsigned>();
    attributes[1].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[1].value.programmaticStreamSerializationAllowed = 1;
    attributes[2].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    attributes[2].value.priority = random<int>();
    CUlaunchConfig config{};
    config.gridDimX = 3, config.gridDimY = 2, config.gridDimZ = 1;
    config.blockDimX = 4, config.blockDimY = 5, config.blockDimZ = 6;
    config.sharedMemBytes = 128;
    config.hStream = random_stream();
    config.attrs = attributes;
    config.numAttrs = 1 + static_cast<unsigned>(next() % 3);
    uint64_t first = next(), second = next();
    uint32_t third = random<uint32_t>();
    void* params[] = {&first, &second, &third};
    const CUfunction function = random_function();
    ASSERT_EQ(cuLaunchKernelEx(&config, function, params, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(got.function, driver_of(function));
    EXPECT_EQ(got.config.gridDimX, 3u);
    EXPECT_EQ(got.config.gridDimY, 2u);
    EXPECT_EQ(got.config.gridDimZ, 1u);
    EXPECT_EQ(got.config.blockDimX, 4u);
    EXPECT_EQ(got.config.blockDimY, 5u);
    EXPECT_EQ(got.config.blockDimZ, 6u);
    EXPECT_EQ(got.config.sharedMemBytes, 128u);
    EXPECT_EQ(got.config.hStream, driver_of(config.hStream));
    ASSERT_EQ(got.attributes.size(), config.numAttrs);
    for (unsigned n = 0; n < config.numAttrs; ++n) {
      EXPECT_EQ(got.attributes[n].id, attributes[n].id);
      EXPECT_TRUE(same(got.attributes[n].value, attributes[n].value));
    }
    ASSERT_EQ(got.params.size(), 20u);
    EXPECT_EQ(std::memcmp(got.params.data(), &first, 8), 0);
    EXPECT_EQ(std::memcmp(got.params.data() + 8, &second, 8), 0);
    EXPECT_EQ(std::memcmp(got.params.data() + 16, &third, 4), 0);
  }
}

TEST_F(Launches, Cooperative) {
  std::vector<CUlaunchAttribute> attributes;
  ScopedAnswer a(SLUICE_ON(cuLaunchKernelEx),
                 [&](const CUlaunchConfig* c, CUfunction, void**, void**) {
                   return attributes.assign(c->attrs, c->attrs + c->numAttrs), CUDA_SUCCESS;
                 });
  uint64_t value = 0;
  void* params[] = {&value, &value, &value};
  ASSERT_EQ(
      cuLaunchCooperativeKernel(world().function, 1, 1, 1, 1, 1, 1, 0, world().stream, params),
      CUDA_SUCCESS);
  ASSERT_EQ(attributes.size(), 1u);
  EXPECT_EQ(attributes[0].id, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  EXPECT_EQ(attributes[0].value.cooperative, 1);
}

TEST_F(Launches, TensorMaps) {
  forget_answers();
  recording().clear();
  struct Got {
    unsigned rank;
    void* address;
    std::vector<cuuint64_t> dims, pitches;
    std::vector<cuuint32_t> box, steps;
    int swizzle;
  } got{};
  ScopedAnswer a(SLUICE_ON(cuTensorMapEncodeTiled),
                 [&](CUtensorMap* map, auto, cuuint32_t rank, void* address, const cuuint64_t* dims,
                     const cuuint64_t* pitches, const cuuint32_t* box, const cuuint32_t* steps,
                     auto, auto swizzle, auto, auto) {
                   got = {rank,
                          address,
                          {dims, dims + rank},
                          {pitches, pitches + rank - 1},
                          {box, box + rank},
                          {steps, steps + rank},
                          swizzle};
                   std::memset(map, 0x5a, sizeof *map);
                   return CUDA_SUCCESS;
                 });
  const cuuint64_t dims[] = {64, 32, 7}, pitches[] = {128, 4096};
  const cuuint32_t box[] = {16, 8, 1}, steps[] = {1, 1, 2};
  alignas(128) CUtensorMap map{};
  auto* address = reinterpret_cast<void*>(world().memory);
  const auto encode = [&](cuuint32_t rank) {
    return cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank, address, dims,
                                  pitches, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  for (int twice = 0; twice < 2; ++twice) ASSERT_EQ(encode(3), CUDA_SUCCESS);
  recording().only("cuTensorMapEncodeTiled");  // the second answer was kept
  EXPECT_EQ(map.opaque[15], 0x5a5a5a5a5a5a5a5aull);
  EXPECT_EQ(got.rank, 3u);
  EXPECT_EQ(got.address, address);
  EXPECT_EQ(got.dims, std::vector<cuuint64_t>(dims, dims + 3));
  EXPECT_EQ(got.pitches, std::vector<cuuint64_t>(pitches, pitches + 2));
  EXPECT_EQ(got.box, std::vector<cuuint32_t>(box, box + 3));
  EXPECT_EQ(got.steps, std::vector<cuuint32_t>(steps, steps + 3));
  EXPECT_EQ(got.swizzle, CU_TENSOR_MAP_SWIZZLE_64B);
  for (const cuuint32_t rank : {0u, 6u, ~0u}) EXPECT_EQ(encode(rank), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Launches, OccupancyOfClusters) {
  for (int i = 0; i < 50; ++i) {
    forget_answers();
    recording().clear();
    const int made_up = random<int>();
    CUlaunchConfig got{};
    CUlaunchAttribute cluster{};
    const auto answer = [&](int* count, CUfunction, const CUlaunchConfig* c) {
      got = *c;
      if (c->numAttrs == 1) cluster = c->attrs[0];
      return *count = made_up, CUDA_SUCCESS;
    };
    ScopedAnswer a(SLUICE_ON(cuOccupancyMaxActiveClusters), answer);
    ScopedAnswer b(SLUICE_ON(cuOccupancyMaxPotentialClusterSize), answer);
    CUlaunchAttribute attributes[2]{};
    attributes[0].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    attributes[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[1].value.clusterDim = {1 + random<unsigned>() / 2, random<unsigned>(),
                                      random<unsigned>()};
    CUlaunchConfig config{};
    config.gridDimX = random<unsigned>(), config.gridDimY = random<unsigned>(),
    config.gridDimZ = random<unsigned>();
    config.blockDimX = random<unsigned>(), config.blockDimY = random<unsigned>(),
    config.blockDimZ = random<unsigned>();
    config.sharedMemBytes = random<unsigned>();
    config.hStream = random_stream();
    config.attrs = attributes;
    config.numAttrs = 1 + static_cast<unsigned>(next() % 2);
    const CUfunction function = random_function();
    const bool potential = next() % 2;
    const char* name =
        potential ? "cuOccupancyMaxPotentialClusterSize" : "cuOccupancyMaxActiveClusters";
    int count = 0;
    for (int twice = 0; twice < 2; ++twice)
      ASSERT_EQ(potential ? cuOccupancyMaxPotentialClusterSize(&count, function, &config)
                          : cuOccupancyMaxActiveClusters(&count, function, &config),
                CUDA_SUCCESS);
    EXPECT_EQ(count, made_up);
    EXPECT_EQ(recording().only(name).at<CUfunction>(1),
              driver_of(function));  // the second answer was kept
    EXPECT_EQ(got.gridDimX, config.gridDimX);
    EXPECT_EQ(got.gridDimY, config.gridDimY);
    EXPECT_EQ(got.gridDimZ, config.gridDimZ);
    EXPECT_EQ(got.blockDimX, config.blockDimX);
    EXPECT_EQ(got.blockDimY, config.blockDimY);
    EXPECT_EQ(got.blockDimZ, config.blockDimZ);
    EXPECT_EQ(got.sharedMemBytes, config.sharedMemBytes);
    EXPECT_EQ(got.hStream, driver_of(config.hStream));
    EXPECT_EQ(got.numAttrs, config.numAttrs - 1);
    if (got.numAttrs == 1) {
      EXPECT_EQ(cluster.id, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
      EXPECT_TRUE(same(cluster.value.clusterDim, attributes[1].value.clusterDim));
    }
  }
}

TEST_F(Launches, RefusedByTheDriver) {
  uint64_t value = 0;
  void* params[] = {&value, &value, &value};
  ScopedAnswer a(SLUICE_ON(cuLaunchKernel),
                 [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                    unsigned, CUstream, void**, void**) { return CUDA_ERROR_LAUNCH_FAILED; });
  EXPECT_EQ(cuLaunchKernel(world().function, 1, 1, 1, 1, 1, 1, 0, world().stream, params, nullptr),
            CUDA_SUCCESS);
  expect_poisoned(CUDA_ERROR_LAUNCH_FAILED);
}

}  // namespace
}  // namespace sluice::test
