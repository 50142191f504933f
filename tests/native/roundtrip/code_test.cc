// SPDX-License-Identifier: Apache-2.0
// Images, functions and launches: an image arrives whole however it is cut, and a launch's
// parameters and configuration arrive bit for bit.
#include <algorithm>

#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {
namespace {

class Code : public RoundTrip {
 protected:
  std::string random_image(size_t n) {
    std::string image(n, 'x');
    for (char& c : image) c = static_cast<char>('!' + next() % 90);
    return image;
  }
};

TEST_F(Code, ModuleLoadAndUnload) {
  for (size_t bytes :
       {size_t{1}, size_t{100}, size_t{65535}, size_t{65536}, size_t{65537}, size_t{1} << 20}) {
    recording().clear();
    const std::string image = random_image(bytes);
    std::string arrived;
    std::vector<std::pair<CUjit_option, uint64_t>> options;
    auto& load = SLUICE_ON(cuModuleLoadDataEx);
    const auto make = load;
    ScopedAnswer a(load, [&](CUmodule* m, const void* data, unsigned n, CUjit_option* o, void** v) {
      arrived = static_cast<const char*>(data);
      for (unsigned i = 0; i < n; ++i) {
        options.emplace_back(o[i], reinterpret_cast<uint64_t>(v[i]));
        if (o[i] == CU_JIT_INFO_LOG_BUFFER) std::strcpy(static_cast<char*>(v[i]), "all is well");
        if (o[i] == CU_JIT_ERROR_LOG_BUFFER) std::strcpy(static_cast<char*>(v[i]), "nothing");
      }
      return make(m, data, n, o, v);
    });
    char info[64] = "", error[4] = "";
    const auto size = [](uint64_t n) { return reinterpret_cast<void*>(n); };
    CUjit_option names[] = {CU_JIT_MAX_REGISTERS,
                            CU_JIT_INFO_LOG_BUFFER,
                            CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_ERROR_LOG_BUFFER,
                            CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_OPTIMIZATION_LEVEL};
    void* values[] = {size(40), info, size(sizeof info), error, size(sizeof error), size(3)};
    CUmodule module = nullptr;
    ASSERT_EQ(cuModuleLoadDataEx(&module, image.c_str(), 6, names, values), CUDA_SUCCESS);
    EXPECT_EQ(arrived, image);
    const auto has = [&](CUjit_option o, uint64_t v) {
      return std::count(options.begin(), options.end(), std::make_pair(o, v)) == 1;
    };
    EXPECT_TRUE(has(CU_JIT_MAX_REGISTERS, 40));
    EXPECT_TRUE(has(CU_JIT_OPTIMIZATION_LEVEL, 3));
    EXPECT_STREQ(info, "all is well");
    EXPECT_STREQ(error, "not");  // cut to the room that there is
    const CUmodule theirs = driver_of(module);
    ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
    EXPECT_EQ(recording().only("cuModuleUnload").at<CUmodule>(0), theirs);
    EXPECT_EQ(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
  }
}

TEST_F(Code, LibraryLoadAndUnload) {
  const std::string image = random_image(70000);
  std::string arrived;
  auto& load = SLUICE_ON(cuLibraryLoadData);
  const auto make = load;
  ScopedAnswer a(load, [&](CUlibrary* l, const void* data, CUjit_option* o, void** v, unsigned n,
                           CUlibraryOption* lo, void** lv, unsigned ln) {
    arrived = static_cast<const char*>(data);
    return make(l, data, o, v, n, lo, lv, ln);
  });
  CUlibrary library = nullptr;
  ASSERT_EQ(cuLibraryLoadData(&library, image.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(arrived, image);
  const CUlibrary theirs = driver_of(library);
  ASSERT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
  EXPECT_EQ(recording().only("cuLibraryUnload").at<CUlibrary>(0), theirs);
}

TEST_F(Code, RefusedImage) {
  ScopedAnswer a(SLUICE_ON(cuModuleLoadDataEx),
                 [](CUmodule*, const void*, unsigned n, CUjit_option* o, void** v) {
                   for (unsigned i = 0; i < n; ++i)
                     if (o[i] == CU_JIT_ERROR_LOG_BUFFER)
                       std::strcpy(static_cast<char*>(v[i]), "line 1: no");
                   return CUDA_ERROR_INVALID_PTX;
                 });
  char error[64] = "";
  CUjit_option names[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {error, reinterpret_cast<void*>(sizeof error)};
  CUmodule module = nullptr;
  EXPECT_EQ(cuModuleLoadDataEx(&module, "bad", 2, names, values), CUDA_ERROR_INVALID_PTX);
  EXPECT_STREQ(error, "line 1: no");
  EXPECT_EQ(module, nullptr);
}

TEST_F(Code, FunctionGet) {
  for (bool kernel : {false, true}) {
    recording().clear();
    const std::string name = random_image(1 + next() % 200);
    std::string arrived;
    std::vector<int> attributes(wire::kFunctionAttributes);
    for (int& v : attributes) v = random<int>();
    recording().params.clear();
    for (size_t at = 0, n = next() % 100; n > 0; --n) {
      const size_t size = 1 + next() % 64;
      recording().params.emplace_back(at, size);
      at += size + next() % 3;
    }
    ScopedAnswer f(SLUICE_ON(cuFuncGetAttribute), [&](int* v, CUfunction_attribute a, CUfunction) {
      return *v = attributes[static_cast<size_t>(a)], CUDA_SUCCESS;
    });
    ScopedAnswer k(SLUICE_ON(cuKernelGetAttribute),
                   [&](int* v, CUfunction_attribute a, CUkernel, CUdevice) {
                     return *v = attributes[static_cast<size_t>(a)], CUDA_SUCCESS;
                   });
    auto& get_function = SLUICE_ON(cuModuleGetFunction);
    auto& get_kernel = SLUICE_ON(cuLibraryGetKernel);
    const auto make_function = get_function;
    const auto make_kernel = get_kernel;
    ScopedAnswer g(get_function, [&](CUfunction* to, CUmodule m, const char* text) {
      EXPECT_EQ(m, driver_of(world().module));
      return arrived = text, make_function(to, m, text);
    });
    ScopedAnswer h(get_kernel, [&](CUkernel* to, CUlibrary l, const char* text) {
      EXPECT_EQ(l, driver_of(world().library));
      return arrived = text, make_kernel(to, l, text);
    });
    CUfunction function = nullptr;
    if (kernel)
      ASSERT_EQ(
          cuLibraryGetKernel(reinterpret_cast<CUkernel*>(&function), world().library, name.c_str()),
          CUDA_SUCCESS);
    else
      ASSERT_EQ(cuModuleGetFunction(&function, world().module, name.c_str()), CUDA_SUCCESS);
    EXPECT_EQ(arrived, name);
    for (int i = 0; i < CU_FUNC_ATTRIBUTE_MAX; ++i) {
      int value = 0;
      ASSERT_EQ(cuFuncGetAttribute(&value, static_cast<CUfunction_attribute>(i), function),
                CUDA_SUCCESS);
      EXPECT_EQ(value, attributes[static_cast<size_t>(i)]);
    }
    size_t offset = 0, size = 0;
    for (size_t i = 0; i < recording().params.size(); ++i) {
      ASSERT_EQ(cuFuncGetParamInfo(function, i, &offset, &size), CUDA_SUCCESS);
      EXPECT_EQ(std::make_pair(offset, size), recording().params[i]);
    }
    EXPECT_EQ(cuFuncGetParamInfo(function, recording().params.size(), &offset, &size),
              CUDA_ERROR_INVALID_VALUE);
    recording().params = {{0, 8}, {8, 8}, {16, 4}};
  }
  ScopedAnswer none(SLUICE_ON(cuModuleGetFunction),
                    [](CUfunction*, CUmodule, const char*) { return CUDA_ERROR_NOT_FOUND; });
  CUfunction function = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&function, world().module, "no such"), CUDA_ERROR_NOT_FOUND);
}

TEST_F(Code, FunctionSet) {
  for (int a : {CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED}) {
    const auto attribute = static_cast<CUfunction_attribute>(a);
    ScopedAnswer room(SLUICE_ON(cuFuncGetAttribute), [](int* v, CUfunction_attribute, CUfunction) {
      return *v = 0, CUDA_SUCCESS;
    });
    ScopedAnswer more(
        SLUICE_ON(cuKernelGetAttribute),
        [](int* v, CUfunction_attribute, CUkernel, CUdevice) { return *v = 0, CUDA_SUCCESS; });
    CUfunction function = nullptr;
    CUkernel kernel = nullptr;
    const std::string name = random_image(12);
    ASSERT_EQ(cuModuleGetFunction(&function, world().module, name.c_str()), CUDA_SUCCESS);
    ASSERT_EQ(cuLibraryGetKernel(&kernel, world().library, name.c_str()), CUDA_SUCCESS);
    const int value = static_cast<int>(next() % 100);
    int blocks = 0, before = 0;
    ASSERT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&before, function, 32, 0), CUDA_SUCCESS);
    recording().clear();
    ASSERT_EQ(cuFuncSetAttribute(function, attribute, value), CUDA_SUCCESS);
    const Call& got = recording().only("cuFuncSetAttribute");
    EXPECT_EQ(got.at<CUfunction>(0), driver_of(function));
    EXPECT_EQ(got.at<CUfunction_attribute>(1), attribute);
    EXPECT_EQ(got.at<int>(2), value);
    int now = -1;
    ASSERT_EQ(cuFuncGetAttribute(&now, attribute, function), CUDA_SUCCESS);
    EXPECT_EQ(now, value);
    // The kept occupancy went with the attribute.
    ASSERT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 32, 0), CUDA_SUCCESS);
    EXPECT_EQ(recording().calls_of("cuOccupancyMaxActiveBlocksPerMultiprocessor").size(), 1u);
    recording().clear();
    ASSERT_EQ(cuKernelSetAttribute(attribute, value, kernel, 0), CUDA_SUCCESS);
    const Call& same_of_kernel = recording().only("cuKernelSetAttribute");
    EXPECT_EQ(same_of_kernel.at<CUfunction_attribute>(0), attribute);
    EXPECT_EQ(same_of_kernel.at<int>(1), value);
    EXPECT_EQ(same_of_kernel.at<CUkernel>(2), driver_of(kernel));
    EXPECT_EQ(same_of_kernel.at<CUdevice>(3), 10);
  }
}

TEST_F(Code, GlobalGet) {
  for (bool library : {false, true}) {
    recording().clear();
    recording().symbol = {0x7fab00000000 + next() % 1024 * 4096, 1 + next() % 4096};
    const std::string name = random_image(20);
    CUdeviceptr address = 0;
    size_t bytes = 0;
    if (library)
      ASSERT_EQ(cuLibraryGetGlobal(&address, &bytes, world().library, name.c_str()), CUDA_SUCCESS);
    else
      ASSERT_EQ(cuModuleGetGlobal_v2(&address, &bytes, world().module, name.c_str()), CUDA_SUCCESS);
    EXPECT_EQ(address, recording().symbol.address + (library ? Recording::kLibrarySymbols : 0));
    EXPECT_EQ(bytes, recording().symbol.bytes);
    // From now on its memory may be named.
    EXPECT_EQ(cuMemsetD8Async(address, 1, bytes, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(recording().only("cuMemsetD8Async").at<CUdeviceptr>(0), address);
    int ordinal = -1;
    EXPECT_EQ(
        cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address + bytes - 1),
        CUDA_SUCCESS);
    EXPECT_EQ(ordinal, 0);
    CUdeviceptr start = 0;
    EXPECT_EQ(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address + 1),
              CUDA_SUCCESS);
    EXPECT_EQ(start, address);
  }
}

TEST_F(Code, GlobalsGoWithTheirModule) {
  CUmodule module;
  ASSERT_EQ(cuModuleLoadData(&module, ".version 8.0 // module"), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  ASSERT_EQ(cuModuleGetGlobal_v2(&address, nullptr, module, "counter"), CUDA_SUCCESS);
  unsigned type = 0;
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), CUDA_SUCCESS);
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
  ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address),
            CUDA_ERROR_INVALID_VALUE);
}

class Launches : public Code {
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
    ASSERT_EQ(cuModuleGetFunction(&function, world().module, random_image(16).c_str()),
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
