// SPDX-License-Identifier: Apache-2.0
#include "client/library/curand.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "client/core/session.h"
#include "client/library/outgoing.h"
#include "library/objects.h"

using namespace sluice::client;
using namespace sluice::client::library;
namespace wire = sluice::wire;
namespace ids = sluice::library;

namespace {

constexpr int32_t kNotInitialized = 101, kAllocationFailed = 102, kTypeError = 103,
                  kOutOfRange = 104, kLaunchFailure = 201, kInternalError = 999;
constexpr wire::LibraryStatus kStatus{kNotInitialized, kNotInitialized, kOutOfRange, kLaunchFailure,
                                      kTypeError};
constexpr uint64_t kPiece = 2 << 20;

// The status of an answer that begins with one, or what stands for it.
template <class Request>
int32_t ask(Session* s, Device* device, uint16_t function, const char* name, const Request& request,
            std::span<std::byte> answer) {
  size_t got = 0;
  const CUresult e = s->exchange(function, request, {}, answer, &got, nullptr, device->context());
  if (e != CUDA_SUCCESS || got < 8) return kInternalError;
  int64_t status;
  std::memcpy(&status, answer.data(), 8);
  if (status == 0 && got < answer.size()) return kInternalError;
  if (status == kTypeError)
    say_lacking(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "libcurand.so.10", name);
  return static_cast<int32_t>(status);
}

}  // namespace

extern "C" {

int32_t sluice_library_curand_host(const wire::CurandHost* call, void* out) {
  Session* s;
  Device* device;
  if (const int32_t status = enter_library(kStatus, &s, &device); status != 0) return status;
  {
    State& state = State::get();
    std::lock_guard lock(state.mutex);
    const Object* o = state.objects.find(call->generator);
    if (!o || o->type != ids::k_curand || !is_near(s, *o, *device)) return kNotInitialized;
  }
  wire::CurandHost request = *call;
  const uint64_t each = wire::kCurandBytes[static_cast<uint32_t>(call->makes)];
  if (each != 0 && request.count > wire::kMaxCurandBytes / each) return kAllocationFailed;
  const uint64_t bytes = each * request.count;
  if (bytes != 0 && !out) return kOutOfRange;
  CUdeviceptr memory = 0;
  if (bytes != 0 && cuMemAlloc_v2(&memory, bytes) != CUDA_SUCCESS) return kAllocationFailed;
  request.address = memory;
  std::byte answer[8];
  int32_t status = ask(s, device, ids::id_sluiceCurandHost, "curandGenerate", request, answer);
  if (status == 0 && bytes != 0 && cuMemcpyDtoH_v2(out, memory, bytes) != CUDA_SUCCESS)
    status = kInternalError;
  if (memory) cuMemFree_v2(memory);
  return status;
}

int32_t sluice_library_curand_table(uint32_t which, uint32_t set, void** table) {
  static std::mutex mutex;
  static auto* tables = new std::map<uint64_t, std::unique_ptr<std::byte[]>>;
  if (which > 3 || !table) return kOutOfRange;
  Session* s;
  Device* device;
  if (const int32_t status = enter_library(kStatus, &s, &device); status != 0) return status;
  std::lock_guard lock(mutex);
  std::unique_ptr<std::byte[]>& known = (*tables)[uint64_t{which} << 32 | set];
  if (!known) {
    const uint64_t bytes = wire::kCurandTableBytes[which];
    auto made = std::make_unique<std::byte[]>(bytes);
    std::vector<std::byte> answer;
    for (uint64_t at = 0; at < bytes; at += kPiece) {
      const uint64_t n = std::min(kPiece, bytes - at);
      answer.resize(8 + n);
      const int32_t status = ask(s, device, ids::id_sluiceCurandTable, "curandGetDirectionVectors",
                                 wire::CurandTable{which, set, at, n}, answer);
      if (status != 0) return status;
      std::memcpy(made.get() + at, answer.data() + 8, n);
    }
    known = std::move(made);
  }
  *table = known.get();
  return 0;
}

int32_t sluice_library_curand_distribution(const wire::CurandDistribution* call,
                                           uint64_t* address) {
  Session* s;
  Device* device;
  if (const int32_t status = enter_library(kStatus, &s, &device); status != 0) return status;
  wire::CurandDistributionReply reply{};
  const int32_t status =
      ask(s, device, ids::id_sluiceCurandDistribution, "curandCreatePoissonDistribution", *call,
          {reinterpret_cast<std::byte*>(&reply), sizeof reply});
  if (status == 0 && address) *address = reply.address;
  return status;
}

}  // extern "C"
