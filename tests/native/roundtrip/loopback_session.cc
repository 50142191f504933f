// SPDX-License-Identifier: Apache-2.0
#include "tests/native/roundtrip/loopback_session.h"

#include <cstdlib>
#include <stdexcept>

namespace sluice::test {

namespace {

void need(CUresult e, const char* what) {
  if (e != CUDA_SUCCESS) throw std::runtime_error(std::string(what) + ": " + std::to_string(e));
}

RoundTrip::World* make_world() {
  auto channel = std::make_unique<LoopbackChannel>();
  auto* w = new RoundTrip::World;
  w->channel = channel.get();
  std::string error;
  if (!client::Session::adopt_for_test(std::move(channel), &error)) throw std::runtime_error(error);
  for (int i = 0; i < 2; ++i) need(cuDevicePrimaryCtxRetain(&w->contexts[i], i), "context");
  need(cuCtxSetCurrent(w->contexts[0]), "current context");
  need(cuStreamCreate(&w->stream, CU_STREAM_NON_BLOCKING), "stream");
  need(cuEventCreate(&w->event, 0), "event");
  need(cuModuleLoadData(&w->module, ".version 8.0 // module"), "module");
  need(cuLibraryLoadData(&w->library, ".version 8.0 // library", nullptr, nullptr, 0, nullptr,
                         nullptr, 0),
       "library");
  need(cuModuleGetFunction(&w->function, w->module, "function"), "function");
  need(cuLibraryGetKernel(&w->kernel, w->library, "kernel"), "kernel");
  need(cuMemAlloc_v2(&w->memory, RoundTrip::kBytes), "memory");
  return w;
}

template <class T, class H>
T find(const worker::ObjectTable<T>& table, H handle) {
  T value{};
  if (!table.get(reinterpret_cast<uint64_t>(handle), &value))
    throw std::runtime_error("the worker does not know a handle of the test");
  return value;
}

}  // namespace

RoundTrip::World& RoundTrip::world() {
  static World* w = make_world();
  return *w;
}

void RoundTrip::SetUp() {
  const char* given = std::getenv("SLUICE_TEST_SEED");
  seed_ = given ? std::strtoull(given, nullptr, 0) : std::random_device{}();
  engine_.seed(seed_);
  world();
  ASSERT_EQ(cuCtxSetCurrent(world().contexts[0]), CUDA_SUCCESS);
  recording().clear();
  seen().clear();
}

void RoundTrip::TearDown() {
  EXPECT_TRUE(recording().violations.empty()) << recording().violations[0];
  EXPECT_FALSE(worker_session().rejected()) << worker_session().reason();
  if (HasFailure())
    std::fprintf(stderr, "again with: SLUICE_TEST_SEED=%llu\n",
                 static_cast<unsigned long long>(seed_));
}

CUstream RoundTrip::driver_of(CUstream h) {
  if (h == nullptr || h == CU_STREAM_LEGACY) return CU_STREAM_LEGACY;
  return find(worker_session().objects.streams, h).handle;
}
CUevent RoundTrip::driver_of(CUevent h) { return find(worker_session().objects.events, h); }
CUmodule RoundTrip::driver_of(CUmodule h) {
  return find(worker_session().objects.modules, h).module;
}
CUlibrary RoundTrip::driver_of(CUlibrary h) {
  return find(worker_session().objects.libraries, h).library;
}
CUfunction RoundTrip::driver_of(CUfunction h) {
  worker::FunctionObject f;
  if (worker_session().objects.functions.get(id(h), &f)) return f.function;
  return find(worker_session().objects.kernels, h).function;
}
CUkernel RoundTrip::driver_of(CUkernel h) {
  return find(worker_session().objects.kernels, h).kernel;
}

}  // namespace sluice::test
