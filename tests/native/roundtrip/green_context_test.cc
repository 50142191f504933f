// SPDX-License-Identifier: Apache-2.0
// Green contexts, events of whole contexts, names in code, atomics over links and new addresses in
// tensor maps, from the exported functions to the driver and back.
#include <algorithm>

#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {
namespace {

class Green : public RoundTrip {
 protected:
  // A context of a part of the first vGPU.
  CUgreenCtx make() {
    CUdevResource whole{};
    EXPECT_EQ(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
    CUdevResourceDesc description = nullptr;
    EXPECT_EQ(cuDevResourceGenerateDesc(&description, &whole, 1), CUDA_SUCCESS);
    CUgreenCtx green = nullptr;
    EXPECT_EQ(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_SUCCESS);
    return green;
  }
  CUgreenCtx driver_green(CUgreenCtx h) {
    worker::GreenObject o;
    EXPECT_TRUE(worker_session().objects.green_contexts.get(id(h), &o));
    return o.handle;
  }
};

TEST_F(Green, ResourcesAreSplitAndDescribed) {
  CUdevResource whole{}, groups[4] = {}, rest{};
  ASSERT_EQ(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
  EXPECT_EQ(whole.sm.smCount, 132u);
  EXPECT_EQ(whole.sm.minSmPartitionSize, 8u);
  EXPECT_EQ(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_INVALID),
            CUDA_ERROR_INVALID_RESOURCE_TYPE);
  int queries = 0;
  ScopedAnswer a(SLUICE_ON(cuDevSmResourceSplitByCount),
                 [&](CUdevResource* result, unsigned* n, const CUdevResource* input,
                     CUdevResource* remaining, unsigned flags, unsigned least) {
                   EXPECT_EQ(input->_internal_padding[50], 77) << "the driver's own bytes";
                   EXPECT_EQ(flags, 1u);
                   EXPECT_EQ(least, 16u);
                   if (!result) return ++queries, *n = 8, CUDA_SUCCESS;
                   EXPECT_EQ(*n, 4u);
                   *n = 3;
                   for (unsigned i = 0; i < 3; ++i) {
                     result[i] = *input;
                     result[i].sm.smCount = 16 + i;
                   }
                   *remaining = *input;
                   remaining->sm.smCount = 84;
                   return CUDA_SUCCESS;
                 });
  unsigned n = 0;
  ASSERT_EQ(cuDevSmResourceSplitByCount(nullptr, &n, &whole, nullptr, 1, 16), CUDA_SUCCESS);
  EXPECT_EQ(n, 8u);
  EXPECT_EQ(queries, 1);
  n = 4;
  // The program's copy of the private part reaches nobody.
  whole._internal_padding[80] = 1;
  ASSERT_EQ(cuDevSmResourceSplitByCount(groups, &n, &whole, &rest, 1, 16), CUDA_SUCCESS);
  EXPECT_EQ(n, 3u);
  for (unsigned i = 0; i < 3; ++i) EXPECT_EQ(groups[i].sm.smCount, 16 + i);
  EXPECT_EQ(groups[3].type, CU_DEV_RESOURCE_TYPE_INVALID);
  EXPECT_EQ(rest.sm.smCount, 84u);

  std::vector<unsigned> described;
  ScopedAnswer d(SLUICE_ON(cuDevResourceGenerateDesc),
                 [&](CUdevResourceDesc* desc, CUdevResource* r, unsigned count) {
                   for (unsigned i = 0; i < count; ++i) described.push_back(r[i].sm.smCount);
                   return *desc = reinterpret_cast<CUdevResourceDesc>(0x1230), CUDA_SUCCESS;
                 });
  CUdevResource chosen[] = {groups[0], groups[2], rest};
  CUdevResourceDesc description = nullptr;
  ASSERT_EQ(cuDevResourceGenerateDesc(&description, chosen, 3), CUDA_SUCCESS);
  EXPECT_EQ(described, (std::vector<unsigned>{16, 18, 84}));
  CUdevResource made_up{};
  made_up.type = CU_DEV_RESOURCE_TYPE_SM;
  EXPECT_EQ(cuDevResourceGenerateDesc(&description, &made_up, 1), CUDA_ERROR_INVALID_RESOURCE_TYPE);
  recording().clear();
  CUgreenCtx green = nullptr;
  ASSERT_EQ(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_SUCCESS);
  EXPECT_EQ(id(recording().only("cuGreenCtxCreate").at<CUdevResourceDesc>(1)), 0x1230u);
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
  EXPECT_EQ(cuGreenCtxCreate(&green, description, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGreenCtxCreate(&green, reinterpret_cast<CUdevResourceDesc>(world().stream), 0,
                             CU_GREEN_CTX_DEFAULT_STREAM),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Green, StreamsRunThere) {
  const CUgreenCtx green = make();
  recording().clear();
  CUstream stream = nullptr;
  ASSERT_EQ(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, -50), CUDA_SUCCESS);
  const Call& made = recording().only("cuGreenCtxStreamCreate");
  EXPECT_EQ(made.at<CUgreenCtx>(1), driver_green(green));
  EXPECT_EQ(made.at<int>(3), -5) << "the nearest priority that there is";
  EXPECT_EQ(cuGreenCtxStreamCreate(&stream, green, 0, 0), CUDA_ERROR_INVALID_VALUE);
  // Work reaches the driver's stream.
  ASSERT_EQ(cuMemsetD8Async(world().memory, 1, 8, stream), CUDA_SUCCESS);
  EXPECT_EQ(recording().only("cuMemsetD8Async").at<CUstream>(3), driver_of(stream));
  CUcontext context = nullptr, of_stream = nullptr;
  CUgreenCtx got = nullptr;
  ASSERT_EQ(cuCtxFromGreenCtx(&context, green), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamGetCtx(stream, &of_stream), CUDA_SUCCESS);
  EXPECT_EQ(of_stream, context);
  ASSERT_EQ(cuStreamGetCtx_v2(stream, &of_stream, &got), CUDA_SUCCESS);
  EXPECT_EQ(of_stream, world().contexts[0]);
  EXPECT_EQ(got, green);
  ASSERT_EQ(cuStreamGetGreenCtx(world().stream, &got), CUDA_SUCCESS);
  EXPECT_EQ(got, nullptr);
  unsigned long long one = 0, two = 0;
  ASSERT_EQ(cuGreenCtxGetId(green, &one), CUDA_SUCCESS);
  EXPECT_EQ(cuGreenCtxGetId(nullptr, &two), CUDA_ERROR_INVALID_CONTEXT);

  // Once it is current, the null stream and new streams are there too.
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(cuGreenCtxGetId(nullptr, &two), CUDA_SUCCESS);
  EXPECT_EQ(one, two);
  recording().clear();
  ASSERT_EQ(cuMemsetD8Async(world().memory, 1, 8, nullptr), CUDA_SUCCESS);
  const CUstream null_stream = recording().only("cuMemsetD8Async").at<CUstream>(3);
  EXPECT_NE(null_stream, CU_STREAM_LEGACY);
  ASSERT_EQ(cuStreamGetGreenCtx(nullptr, &got), CUDA_SUCCESS);
  EXPECT_EQ(got, green);
  CUstream blocking = nullptr;
  ASSERT_EQ(cuStreamCreate(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  EXPECT_EQ(recording().calls_of("cuCtxPushCurrent_v2").size(), 1u);
  EXPECT_EQ(recording().calls_of("cuCtxPopCurrent_v2").size(), 1u);
  ASSERT_EQ(cuStreamDestroy_v2(blocking), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxDestroy_v2(context), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(cuCtxSetCurrent(world().contexts[0]), CUDA_SUCCESS);
  recording().clear();
  ASSERT_EQ(cuMemsetD8Async(world().memory, 1, 8, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(recording().only("cuMemsetD8Async").at<CUstream>(3), CU_STREAM_LEGACY);

  // Its end is the end of what it has.
  const CUstream theirs = driver_of(stream);
  recording().clear();
  ASSERT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
  const auto destroyed = recording().calls_of("cuStreamDestroy_v2");
  EXPECT_EQ(destroyed.size(), 2u);
  EXPECT_TRUE(std::any_of(destroyed.begin(), destroyed.end(),
                          [&](const Call* c) { return c->at<CUstream>(0) == theirs; }));
  EXPECT_EQ(cuMemsetD8Async(world().memory, 1, 8, stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuStreamDestroy_v2(stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxSetCurrent(context), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(Green, ARefusedCreationLeavesNothing) {
  const size_t before = worker_session().objects.streams.count();
  ScopedAnswer a(SLUICE_ON(cuGreenCtxStreamCreate),
                 [](CUstream*, CUgreenCtx, unsigned, int) { return CUDA_ERROR_OUT_OF_MEMORY; });
  CUdevResource whole{};
  CUdevResourceDesc description = nullptr;
  ASSERT_EQ(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
  ASSERT_EQ(cuDevResourceGenerateDesc(&description, &whole, 1), CUDA_SUCCESS);
  recording().clear();
  CUgreenCtx green = nullptr;
  EXPECT_EQ(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(recording().calls_of("cuGreenCtxDestroy").size(), 1u);
  EXPECT_EQ(worker_session().objects.streams.count(), before);
}

TEST_F(Green, EventsOfWholeContexts) {
  const CUgreenCtx green = make();
  CUevent event = nullptr;
  ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  recording().clear();
  EXPECT_EQ(cuCtxWaitEvent(world().contexts[0], event), CUDA_SUCCESS);
  EXPECT_TRUE(recording().calls.empty()) << "nothing was recorded yet";
  ASSERT_EQ(cuCtxRecordEvent(world().contexts[0], event), CUDA_SUCCESS);
  EXPECT_EQ(recording().only("cuCtxRecordEvent").at<CUevent>(1), driver_of(event));
  ASSERT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(recording().calls_of("cuEventQuery").size(), 1u) << "only the driver knows";
  ASSERT_EQ(cuCtxWaitEvent(world().contexts[0], event), CUDA_SUCCESS);
  EXPECT_EQ(recording().only("cuCtxWaitEvent").at<CUevent>(1), driver_of(event));
  ASSERT_EQ(cuGreenCtxRecordEvent(green, event), CUDA_SUCCESS);
  EXPECT_EQ(recording().only("cuGreenCtxRecordEvent").at<CUgreenCtx>(0), driver_green(green));
  ASSERT_EQ(cuGreenCtxWaitEvent(green, event), CUDA_SUCCESS);
  EXPECT_EQ(recording().only("cuGreenCtxWaitEvent").at<CUgreenCtx>(0), driver_green(green));
  EXPECT_EQ(cuCtxRecordEvent(world().contexts[1], event), CUDA_ERROR_INVALID_HANDLE)
      << "another device's";
  EXPECT_EQ(cuCtxRecordEvent(nullptr, event), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuEventDestroy_v2(event), CUDA_SUCCESS);
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
}

class Questions : public RoundTrip {};

TEST_F(Questions, AllKernelsOfALibrary) {
  // More names than one answer holds.
  std::vector<std::string> names;
  for (int i = 0; i < 300; ++i)
    names.push_back("kernel_" + std::to_string(i) + std::string(50, 'x'));
  ScopedAnswer a(SLUICE_ON(cuLibraryGetKernelCount), [&](unsigned* n, CUlibrary) {
    return *n = static_cast<unsigned>(names.size()), CUDA_SUCCESS;
  });
  ScopedAnswer b(SLUICE_ON(cuLibraryEnumerateKernels),
                 [&](CUkernel* kernels, unsigned n, CUlibrary library) {
                   EXPECT_EQ(library, driver_of(world().library));
                   for (unsigned i = 0; i < n; ++i)
                     kernels[i] = recording().mint<CUkernel>(recording().functions);
                   return CUDA_SUCCESS;
                 });
  CUkernel first = nullptr;
  size_t asked = 0;
  ScopedAnswer c(SLUICE_ON(cuKernelGetName), [&](const char** name, CUkernel) {
    return *name = names[asked++ % names.size()].c_str(), CUDA_SUCCESS;
  });
  std::vector<CUkernel> one(1);
  ASSERT_EQ(cuLibraryEnumerateKernels(one.data(), 1, world().library), CUDA_SUCCESS);
  first = one[0];
  const char* name = nullptr;
  ASSERT_EQ(cuKernelGetName(&name, first), CUDA_SUCCESS);
  EXPECT_EQ(name, names[0]);
  EXPECT_EQ(cuKernelGetName(&name, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncGetName(&name, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLibraryEnumerateKernels(nullptr, 1, world().library), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLibraryEnumerateKernels(one.data(), 1, reinterpret_cast<CUlibrary>(world().module)),
            CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(Questions, AllFunctionsOfAModule) {
  std::map<CUfunction, std::string> names;
  ScopedAnswer a(SLUICE_ON(cuModuleGetFunctionCount),
                 [&](unsigned* n, CUmodule) { return *n = 300, CUDA_SUCCESS; });
  ScopedAnswer b(SLUICE_ON(cuModuleEnumerateFunctions),
                 [&](CUfunction* functions, unsigned n, CUmodule) {
                   for (unsigned i = 0; i < n; ++i) {
                     functions[i] = recording().mint<CUfunction>(recording().functions);
                     names[functions[i]] = "f" + std::to_string(i) + std::string(60, 'y');
                   }
                   return CUDA_SUCCESS;
                 });
  ScopedAnswer c(SLUICE_ON(cuFuncGetName), [&](const char** name, CUfunction f) {
    return *name = names[f].c_str(), CUDA_SUCCESS;
  });
  std::vector<CUfunction> all(400);
  ASSERT_EQ(cuModuleEnumerateFunctions(all.data(), 400, world().module), CUDA_SUCCESS);
  for (unsigned i : {0u, 150u, 299u}) {
    const char* name = nullptr;
    ASSERT_EQ(cuFuncGetName(&name, all[i]), CUDA_SUCCESS);
    EXPECT_EQ(std::string(name), "f" + std::to_string(i) + std::string(60, 'y'));
  }
  EXPECT_EQ(all[300], nullptr);
}

TEST_F(Questions, AtomicsAreAskedForOnce) {
  int asked = 0;
  ScopedAnswer a(SLUICE_ON(cuDeviceGetHostAtomicCapabilities),
                 [&](unsigned* c, const CUatomicOperation* o, unsigned n, CUdevice) {
                   EXPECT_EQ(n, 1u);
                   return ++asked, *c = 40u + *o, CUDA_SUCCESS;
                 });
  ScopedAnswer b(
      SLUICE_ON(cuDeviceGetP2PAtomicCapabilities),
      [&](unsigned* c, const CUatomicOperation* o, unsigned, CUdevice from, CUdevice to) {
        EXPECT_NE(from, to);
        return *c = 80u + *o, CUDA_SUCCESS;
      });
  const CUatomicOperation operations[] = {CU_ATOMIC_OPERATION_CAS, CU_ATOMIC_OPERATION_AND};
  for (int i = 0; i < 2; ++i) {
    unsigned capabilities[2] = {};
    ASSERT_EQ(cuDeviceGetHostAtomicCapabilities(capabilities, operations, 2, 0), CUDA_SUCCESS);
    EXPECT_EQ(capabilities[0], 40u + CU_ATOMIC_OPERATION_CAS);
    EXPECT_EQ(capabilities[1], 40u + CU_ATOMIC_OPERATION_AND);
  }
  EXPECT_EQ(asked, 2);
  unsigned link = 0;
  ASSERT_EQ(cuDeviceGetP2PAtomicCapabilities(&link, operations, 1, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(link, 80u + CU_ATOMIC_OPERATION_CAS);
  EXPECT_EQ(cuDeviceGetP2PAtomicCapabilities(&link, operations, 1, 0, 0),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceGetHostAtomicCapabilities(&link, operations, 0, 0), CUDA_ERROR_INVALID_VALUE);
  const auto wrong = static_cast<CUatomicOperation>(CU_ATOMIC_OPERATION_MAX);
  EXPECT_EQ(cuDeviceGetHostAtomicCapabilities(&link, &wrong, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetHostAtomicCapabilities(&link, operations, 1, 9), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(Questions, ATensorMapGetsAnotherAddress) {
  CUtensorMap map;
  std::memset(&map, 3, sizeof map);
  void* const address = reinterpret_cast<void*>(world().memory);
  ScopedAnswer a(SLUICE_ON(cuTensorMapReplaceAddress), [&](CUtensorMap* m, void* to) {
    EXPECT_EQ(to, address);
    EXPECT_EQ(std::memcmp(m, &map, sizeof map), 0);
    std::memset(m, 4, 8);
    return CUDA_SUCCESS;
  });
  const CUtensorMap before = map;
  ASSERT_EQ(cuTensorMapReplaceAddress(&map, address), CUDA_SUCCESS);
  const auto* bytes = reinterpret_cast<const char*>(&map);
  EXPECT_EQ(bytes[0], 4);
  EXPECT_EQ(bytes[8], 3);
  ScopedAnswer b(SLUICE_ON(cuTensorMapReplaceAddress),
                 [](CUtensorMap*, void*) { return CUDA_ERROR_INVALID_VALUE; });
  map = before;
  EXPECT_EQ(cuTensorMapReplaceAddress(&map, address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(same(map, before));
  EXPECT_EQ(cuTensorMapReplaceAddress(nullptr, address), CUDA_ERROR_INVALID_VALUE);
}

// As in an object of Python's.
TEST_F(Questions, ATensorMapMayLieAnywhere) {
  alignas(CUtensorMap) std::byte room[2 * sizeof(CUtensorMap)]{};
  std::byte* const at = room + 16;
  ScopedAnswer a(SLUICE_ON(cuTensorMapReplaceAddress), [&](CUtensorMap* m, void*) {
    std::memset(m, 4, sizeof *m);
    return CUDA_SUCCESS;
  });
  ASSERT_EQ(cuTensorMapReplaceAddress(reinterpret_cast<CUtensorMap*>(at),
                                      reinterpret_cast<void*>(world().memory)),
            CUDA_SUCCESS);
  EXPECT_EQ(at[0], std::byte{4});
  EXPECT_EQ(at[sizeof(CUtensorMap) - 1], std::byte{4});
  EXPECT_EQ(at[sizeof(CUtensorMap)], std::byte{0});
}

}  // namespace
}  // namespace sluice::test
