// SPDX-License-Identifier: Apache-2.0
// Images, functions and globals: an image arrives whole however it is cut.
#include <algorithm>

#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {
namespace {

class Code : public RoundTrip {};

TEST_F(Code, ModuleLoadAndUnload) {
  for (size_t bytes :
       {size_t{1}, size_t{100}, size_t{65535}, size_t{65536}, size_t{65537}, size_t{1} << 20}) {
    recording().clear();
    const std::string image = random_text(bytes);
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
  const std::string image = random_text(70000);
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

TEST_F(Code, AKernelsParametersAreKnownOnlyInAContext) {
  CUkernel kernel = nullptr;
  recording().params = {{0, 8}, {8, 4}};
  ASSERT_EQ(cuLibraryGetKernel(&kernel, world().library, "of_a_context"), CUDA_SUCCESS);
  size_t offset = 0, size = 0;
  ASSERT_EQ(cuKernelGetParamInfo(kernel, 1, &offset, &size), CUDA_SUCCESS);
  EXPECT_EQ(std::pair(offset, size), std::pair(size_t{8}, size_t{4}));
  CUcontext current = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuKernelGetParamInfo(kernel, 1, &offset, &size), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(cuCtxSetCurrent(current), CUDA_SUCCESS);
}

TEST_F(Code, FunctionGet) {
  for (bool kernel : {false, true}) {
    recording().clear();
    const std::string name = random_text(1 + next() % 200);
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
    const std::string name = random_text(12);
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

TEST_F(Code, TheModuleOfALibrary) {
  CUlibrary library = nullptr;
  ASSERT_EQ(cuLibraryLoadData(&library, ".version 8.0 // library", nullptr, nullptr, 0, nullptr,
                              nullptr, 0),
            CUDA_SUCCESS);
  CUmodule module = nullptr, again = nullptr;
  ASSERT_EQ(cuLibraryGetModule(&module, library), CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryGetModule(&again, library), CUDA_SUCCESS);
  EXPECT_EQ(module, again);
  EXPECT_EQ(recording().only("cuLibraryGetModule").at<CUlibrary>(1), driver_of(library));
  CUfunction function = nullptr;
  ASSERT_EQ(cuModuleGetFunction(&function, module, "f"), CUDA_SUCCESS);
  EXPECT_EQ(recording().only("cuModuleGetFunction").at<CUmodule>(1), driver_of(module));
  EXPECT_EQ(cuModuleUnload(module), CUDA_ERROR_NOT_PERMITTED);
  ASSERT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
  EXPECT_TRUE(recording().calls_of("cuModuleUnload").empty()) << "it goes with its library";
  EXPECT_EQ(cuModuleGetFunction(&function, module, "g"), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuLibraryGetModule(&module, library), CUDA_ERROR_INVALID_HANDLE);
  const unsigned one = 1;
  EXPECT_EQ(cuLaunchKernel(function, one, one, one, one, one, one, 0, nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(Code, GlobalGet) {
  for (bool library : {false, true}) {
    recording().clear();
    recording().symbol = {0x7fab00000000 + next() % 1024 * 4096, 1 + next() % 4096};
    const std::string name = random_text(20);
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

}  // namespace
}  // namespace sluice::test
