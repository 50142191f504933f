// SPDX-License-Identifier: Apache-2.0
#include "wire/curand.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <set>

#include "library/objects.h"
#include "worker/dispatch.h"
#include "worker/library/library.h"

namespace sluice::worker {

namespace {

namespace ids = sluice::library;

constexpr int64_t kAllocationFailed = 102, kNotSupported = 103, kInternalError = 999;

void* function(const char* name) { return Libraries::get().symbol("curand", name); }

template <class... Parameters>
int64_t call(const char* name, Parameters... parameters) {
  using Function = int32_t (*)(Parameters...);
  void* f = function(name);
  return f ? reinterpret_cast<Function>(f)(parameters...) : kNotSupported;
}

int64_t generate(const wire::CurandHost& r, void* g, void* out) {
  const auto n = static_cast<size_t>(r.count);
  const auto af = static_cast<float>(r.a), bf = static_cast<float>(r.b);
  switch (r.makes) {
    case wire::CurandMakes::kBits:
      return call("curandGenerate", g, out, n);
    case wire::CurandMakes::kLongLongs:
      return call("curandGenerateLongLong", g, out, n);
    case wire::CurandMakes::kUniform:
      return call("curandGenerateUniform", g, out, n);
    case wire::CurandMakes::kUniformDouble:
      return call("curandGenerateUniformDouble", g, out, n);
    case wire::CurandMakes::kNormal:
      return call("curandGenerateNormal", g, out, n, af, bf);
    case wire::CurandMakes::kNormalDouble:
      return call("curandGenerateNormalDouble", g, out, n, r.a, r.b);
    case wire::CurandMakes::kLogNormal:
      return call("curandGenerateLogNormal", g, out, n, af, bf);
    case wire::CurandMakes::kLogNormalDouble:
      return call("curandGenerateLogNormalDouble", g, out, n, r.a, r.b);
    case wire::CurandMakes::kPoisson:
      return call("curandGeneratePoisson", g, out, n, r.a);
    case wire::CurandMakes::kPoissonMethod:
      return call("curandGeneratePoissonMethod", g, out, n, r.a, static_cast<int32_t>(r.method));
    case wire::CurandMakes::kSeeds:
      return call("curandGenerateSeeds", g);
  }
  return kNotSupported;
}

// A generator in host memory: its numbers go to the client by way of its device memory.
void host(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& r = d.fixed<wire::CurandHost>();
  if (!d.ok() || r.makes > wire::CurandMakes::kSeeds) return s.reject("CurandHost makes no sense");
  LibraryObject generator;
  if (!Libraries::get().objects.get(r.generator, &generator) || generator.type != ids::k_curand ||
      !generator.host_memory)
    return s.reject("CurandHost names no generator in host memory");
  const uint64_t each = wire::kCurandBytes[static_cast<uint32_t>(r.makes)];
  if (each != 0 && r.count > wire::kMaxCurandBytes / each)
    return s.reject("CurandHost asks for more than can be made at once");
  const uint64_t bytes = each * r.count;
  if (bytes != 0 && !s.device_range(r.address, bytes))
    return s.reject("CurandHost names memory that the session does not have");
  if (!s.use_context(c.header.context)) return;
  std::unique_ptr<std::byte[]> numbers(new (std::nothrow) std::byte[bytes + 8]);
  int64_t status = numbers ? generate(r, generator.pointer, numbers.get()) : kAllocationFailed;
  if (status == 0 && bytes != 0) {
    CUresult e = s.driver.cuMemcpyHtoDAsync_v2(r.address, numbers.get(), bytes, CU_STREAM_LEGACY);
    if (e == CUDA_SUCCESS) e = s.driver.cuStreamSynchronize(CU_STREAM_LEGACY);
    if (e != CUDA_SUCCESS) status = kInternalError;
  }
  reply.put(status);
}

void table(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& r = d.fixed<wire::CurandTable>();
  if (!d.ok() || r.which > 3 || r.bytes > wire::kMaxAnswer - 64 ||
      r.offset > wire::kCurandTableBytes[r.which] ||
      r.bytes > wire::kCurandTableBytes[r.which] - r.offset)
    return s.reject("CurandTable makes no sense");
  const std::byte* at = nullptr;
  int64_t status;
  if (r.which < 2)
    status = call(r.which ? "curandGetDirectionVectors64" : "curandGetDirectionVectors32",
                  static_cast<void*>(&at), static_cast<int32_t>(r.set));
  else
    status = call(r.which == 3 ? "curandGetScrambleConstants64" : "curandGetScrambleConstants32",
                  static_cast<void*>(&at));
  if (status == 0 && !at) status = kInternalError;
  reply.put(status);
  if (status == 0) reply.put_bytes(at + r.offset, r.bytes);
}

// Distributions that the session has made, as the library knows them.
struct Distributions {
  std::mutex mutex;
  std::set<uint64_t> all;
};
Distributions& distributions() {
  static Distributions* d = new Distributions;
  return *d;
}

void distribution(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& r = d.fixed<wire::CurandDistribution>();
  if (!d.ok()) return s.reject("CurandDistribution is cut short");
  Distributions& known = distributions();
  wire::CurandDistributionReply answer{};
  if (r.destroy) {
    std::lock_guard lock(known.mutex);
    if (!known.all.erase(r.destroy))
      return s.reject("CurandDistribution names none that the session has");
  }
  if (!s.use_context(c.header.context)) return;
  if (r.destroy) {
    answer.status = call("curandDestroyDistribution", reinterpret_cast<void*>(r.destroy));
  } else {
    answer.status =
        call("curandCreatePoissonDistribution", r.lambda, static_cast<void*>(&answer.address));
    std::lock_guard lock(known.mutex);
    if (answer.status == 0) known.all.insert(answer.address);
  }
  reply.put(answer);
}

}  // namespace

void add_curand_handlers(DispatchTable& t) {
  t[ids::id_sluiceCurandHost].run = host;
  t[ids::id_sluiceCurandTable].run = table;
  t[ids::id_sluiceCurandDistribution].run = distribution;
}

}  // namespace sluice::worker
