// SPDX-License-Identifier: Apache-2.0
// The session of a hostile case, and its commands.
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "client/library/object.h"
#include "client/library/outgoing.h"
#include "tests/gpu/hostile_libraries.h"

namespace tables {
namespace cublas {
#include "library/cublas_table.inc"
}
namespace cublaslt {
#include "library/cublaslt_table.inc"
}
namespace cudnn {
#include "library/cudnn_table.inc"
}
namespace cufft {
#include "library/cufft_table.inc"
}
namespace curand {
#include "library/curand_table.inc"
}
namespace cusolver {
#include "library/cusolver_table.inc"
}
namespace cusparse {
#include "library/cusparse_table.inc"
}
namespace nccl {
#include "library/nccl_table.inc"
}
}  // namespace tables

extern "C" {
int32_t cublasCreate_v2(void** handle);
}

namespace hostile {

using sluice::client::library::State;

namespace {
constexpr uint64_t kMemory = 64 << 20;
}  // namespace

const std::map<std::string, const LibrarySpec*>& libraries() {
  static const std::map<std::string, const LibrarySpec*> all{
      {"cublas", &tables::cublas::kLibrary},     {"cublaslt", &tables::cublaslt::kLibrary},
      {"cudnn", &tables::cudnn::kLibrary},       {"cufft", &tables::cufft::kLibrary},
      {"curand", &tables::curand::kLibrary},     {"cusolver", &tables::cusolver::kLibrary},
      {"cusparse", &tables::cusparse::kLibrary}, {"nccl", &tables::nccl::kLibrary}};
  return all;
}

const FunctionSpec& function(const std::string& name) {
  for (const auto& [library, spec] : libraries())
    for (uint16_t i = 0; i < spec->count; ++i)
      if (name == spec->functions[i].name) return spec->functions[i];
  std::fprintf(stderr, "%s is in no table\n", name.c_str());
  std::exit(2);
}

World::World() {
  constexpr wire::LibraryStatus kStatus{1, 1, 1, 1, 1};
  CUdeviceptr at = 0;
  if (sluice::client::library::enter_library(kStatus, &session, &device) != 0 ||
      cuMemAlloc_v2(&at, kMemory) != CUDA_SUCCESS || cuMemsetD8_v2(at, 0, kMemory) != 0) {
    std::fprintf(stderr, "there is no session\n");
    std::exit(2);
  }
  memory = at;
}

World& world() {
  static World w;
  return w;
}

uint64_t id(const void* handle) { return reinterpret_cast<uint64_t>(handle); }

uint64_t bits(float value) {
  uint32_t word;
  std::memcpy(&word, &value, 4);
  return word;
}

Outcome send(uint16_t function, const std::vector<uint64_t>& words, size_t room) {
  Outcome o;
  o.body.resize(room);
  size_t got = 0;
  World& w = world();
  const CUresult e = w.session->exchange(function, words.data(), words.size() * 8, {}, o.body, &got,
                                         nullptr, w.device->index + 1);
  o.ended = e != CUDA_SUCCESS || got < 8;
  if (!o.ended) std::memcpy(&o.status, o.body.data(), 8);
  return o;
}

int say(const Outcome& o) {
  if (o.ended)
    std::printf("session ended\n");
  else
    std::printf("status %lld\n", static_cast<long long>(o.status));
  return 0;
}

int ok(bool good, const char* what) {
  std::printf(good ? "ok\n" : "wrong: %s\n", what);
  return good ? 0 : 1;
}

void need(int64_t status, const char* what) {
  if (status == 0) return;
  std::printf("wrong: %s returned %lld\n", what, static_cast<long long>(status));
  std::exit(1);
}

uint64_t cublas() {
  void* handle;
  need(cublasCreate_v2(&handle), "cublasCreate");
  return id(handle);
}

uint64_t mint() {
  uint64_t made = 0;
  auto& state = State::get();
  std::lock_guard lock(state.mutex);
  state.objects.create(&made);
  return made;
}

}  // namespace hostile
