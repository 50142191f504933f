// SPDX-License-Identifier: Apache-2.0
// A random program of products by cuBLAS and cuBLASLt between kernels, as PyTorch makes them: a
// descriptor is told what it is, or another bias, before each product; handles change streams and
// modes; descriptors are made anew. Arguments: a seed, of which all of it is made, how many threads
// do so at once (1), each with objects and streams of its own, and how many turns (12). Prints the
// sum of all memory of each thread turn by turn; two runs of one seed print the same, whoever
// executes them. The products are those of fake_products.c.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../programs/check.h"

namespace {

constexpr int kWords = 256, kBuffers = 7, kStreams = 2, kHandles = 2, kKept = 2;
constexpr int kEpilogue = 7, kBias = 8;

using Status = int;
struct Functions {
  Status (*create)(void**);
  Status (*set_stream)(void*, cudaStream_t);
  Status (*set_math)(void*, int);
  Status (*set_workspace)(void*, void*, size_t);
  Status (*sgemm)(void*, int, int, int, int, int, const float*, const float*, int, const float*,
                  int, const float*, float*, int);
  Status (*lt_create)(void**);
  Status (*make)(void**, int, int);
  Status (*end)(void*);
  Status (*set)(void*, int, const void*, size_t);
  Status (*make_layout)(void**, int, uint64_t, uint64_t, int64_t);
  Status (*matmul)(void*, void*, const float*, const void*, void*, const void*, void*, const float*,
                   const void*, void*, void*, void*, const void*, void*, size_t, cudaStream_t);
} f;

template <class F>
void find(void* library, const char* name, F* to) {
  *to = reinterpret_cast<F>(dlsym(library, name));
  if (*to) return;
  std::fprintf(stderr, "there is no %s\n", name);
  std::exit(1);
}

void good(Status status, const char* what) {
  if (status == 0) return;
  std::fprintf(stderr, "%s returned %d\n", what, status);
  std::exit(1);
}

void find_all() {
  void* blas = dlopen("libcublas.so.13", RTLD_NOW);
  void* lt = dlopen("libcublasLt.so.13", RTLD_NOW);
  if (!blas || !lt) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(1);
  }
  find(blas, "cublasCreate_v2", &f.create);
  find(blas, "cublasSetStream_v2", &f.set_stream);
  find(blas, "cublasSetMathMode", &f.set_math);
  find(blas, "cublasSetWorkspace_v2", &f.set_workspace);
  find(blas, "cublasSgemm_v2", &f.sgemm);
  find(lt, "cublasLtCreate", &f.lt_create);
  find(lt, "cublasLtMatmulDescCreate", &f.make);
  find(lt, "cublasLtMatmulDescDestroy", &f.end);
  find(lt, "cublasLtMatmulDescSetAttribute", &f.set);
  find(lt, "cublasLtMatrixLayoutCreate", &f.make_layout);
  find(lt, "cublasLtMatmul", &f.matmul);
}

__global__ void mix(uint32_t* to, const uint32_t* from, uint32_t salt) {
  to[threadIdx.x] = (to[threadIdx.x] ^ from[kWords - 1 - threadIdx.x]) * 2654435761u + salt;
}

enum Kind { kKernel, kFill, kProduct, kKeptProduct, kSgemm, kMath, kStream, kWorkspace, kRemake };
struct Operation {
  Kind kind;
  int object, to, from, bias, epilogue, n;
  float alpha;
  bool tells, changes;  // it says all of it before; its numbers are others in each turn
};

class Program {
 public:
  Program(uint32_t seed, bool own_streams) : random_(seed) {
    for (cudaStream_t& stream : streams_)
      if (own_streams || &stream != streams_)
        REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (uint32_t*& buffer : buffers_) {
      REQUIRE(cudaMalloc(&buffer, kWords * 4));
      REQUIRE(cudaMemset(buffer, static_cast<int>(seed % 100) + 1, kWords * 4));
    }
    REQUIRE(cudaMalloc(&workspace_, 1 << 20));
    REQUIRE(cudaDeviceSynchronize());
    good(f.lt_create(&lt_), "cublasLtCreate");
    for (void*& handle : handles_) {
      good(f.create(&handle), "cublasCreate_v2");
      good(f.set_stream(handle, streams_[0]), "cublasSetStream_v2");
    }
    for (void*& d : kept_) good(f.make(&d, 68, 0), "cublasLtMatmulDescCreate");
    for (int i = 0; i < 2; ++i)
      good(f.make_layout(&layouts_[i], 0, 16 + static_cast<unsigned>(i), 16, 16), "a layout");
    while (program_.size() < 160) program_.push_back(make());
  }

  void turn(int turn) {
    if (turn % 5 == 4) program_[random_() % program_.size()] = make();
    for (const Operation& o : program_) run(o, turn);
    REQUIRE(cudaStreamSynchronize(streams_[1]));
    sum_ = sum_of_all();
    // And once more the products alone, as nothing is in between.
    for (const Operation& o : program_)
      if (o.kind == kProduct) run(o, 0);
    sum_ = sum_ * 31 + sum_of_all();
  }
  uint64_t sum() const { return sum_; }

 private:
  Operation make() {
    Operation o{};
    const uint32_t kind = random_() % 32;
    o.kind = kind < 7    ? kKernel
             : kind < 9  ? kFill
             : kind < 19 ? kProduct
             : kind < 24 ? kKeptProduct
             : kind < 28 ? kSgemm
             : kind < 30 ? kMath
             : kind < 31 ? (random_() % 2 ? kStream : kWorkspace)
                         : kRemake;
    o.object = static_cast<int>(random_() % 2);
    o.to = static_cast<int>(random_() % kBuffers);
    o.from = static_cast<int>((o.to + 1 + random_() % (kBuffers - 1)) % kBuffers);
    o.bias = static_cast<int>(random_() % kBuffers);
    o.epilogue = random_() % 3 ? 4 : 1;
    o.n = static_cast<int>(1 + random_() % 16);
    o.alpha = static_cast<float>(random_() % 5);
    o.tells = random_() % 2;
    o.changes = random_() % 8 == 0;
    return o;
  }

  void tell(void* d, const Operation& o) {
    good(f.set(d, kEpilogue, &o.epilogue, sizeof o.epilogue), "an epilogue");
    if (o.epilogue == 4) good(f.set(d, kBias, &buffers_[o.bias], 8), "a bias");
  }

  void multiply(void* d, const Operation& o, float alpha) {
    const float beta = 0;
    good(f.matmul(lt_, d, &alpha, buffers_[o.from], layouts_[0], buffers_[o.bias],
                  layouts_[o.object], &beta, buffers_[o.to], layouts_[0], buffers_[o.to],
                  layouts_[0], nullptr, nullptr, 0, streams_[0]),
         "cublasLtMatmul");
  }

  void run(const Operation& o, int turn) {
    const auto more = o.changes ? static_cast<uint32_t>(turn) : 0u;
    const float alpha = o.alpha + static_cast<float>(more), beta = 1;
    void* handle = handles_[o.object];
    switch (o.kind) {
      case kKernel:
        mix<<<1, kWords, 0, streams_[0]>>>(buffers_[o.to], buffers_[o.from],
                                           static_cast<uint32_t>(o.n) + more);
        break;
      case kFill:
        REQUIRE(cudaMemsetAsync(buffers_[o.to], o.n, static_cast<size_t>(o.n) * 4, streams_[0]));
        break;
      case kProduct: {
        void* d = nullptr;
        good(f.make(&d, 68, 0), "cublasLtMatmulDescCreate");
        tell(d, o);
        multiply(d, o, alpha);
        good(f.end(d), "cublasLtMatmulDescDestroy");
        break;
      }
      case kKeptProduct:
        if (o.tells) tell(kept_[o.object], o);
        multiply(kept_[o.object], o, alpha);
        break;
      case kSgemm:
        good(f.sgemm(handle, 0, 1, o.n, 16, 16, &alpha,
                     reinterpret_cast<const float*>(buffers_[o.from]), 16,
                     reinterpret_cast<const float*>(buffers_[o.bias]), 16, &beta,
                     reinterpret_cast<float*>(buffers_[o.to]), 16),
             "cublasSgemm_v2");
        break;
      case kMath:
        good(f.set_math(handle, o.n % 3), "cublasSetMathMode");
        break;
      case kStream: {
        // What it did in the one is there before the other goes on.
        const int to = o.n % 2;
        for (const cudaStream_t stream : streams_) REQUIRE(cudaStreamSynchronize(stream));
        good(f.set_stream(handle, streams_[to]), "cublasSetStream_v2");
        if (to == 0) break;
        good(f.sgemm(handle, 1, 1, o.n, 16, 16, &alpha,
                     reinterpret_cast<const float*>(buffers_[o.from]), 16,
                     reinterpret_cast<const float*>(buffers_[o.bias]), 16, &beta,
                     reinterpret_cast<float*>(buffers_[o.to]), 16),
             "cublasSgemm_v2");
        REQUIRE(cudaStreamSynchronize(streams_[1]));
        good(f.set_stream(handle, streams_[0]), "cublasSetStream_v2");
        break;
      }
      case kWorkspace:
        good(f.set_workspace(handle, workspace_, 1 << 20), "cublasSetWorkspace_v2");
        break;
      case kRemake:
        good(f.end(kept_[o.object]), "cublasLtMatmulDescDestroy");
        good(f.make(&kept_[o.object], 68, 0), "cublasLtMatmulDescCreate");
        break;
    }
  }

  uint64_t sum_of_all() {
    std::vector<uint32_t> host(kWords);
    uint64_t sum = 0;
    for (const uint32_t* buffer : buffers_) {
      REQUIRE(
          cudaMemcpyAsync(host.data(), buffer, kWords * 4, cudaMemcpyDeviceToHost, streams_[0]));
      REQUIRE(cudaStreamSynchronize(streams_[0]));
      for (const uint32_t word : host) sum = sum * 31 + word;
    }
    return sum;
  }

  std::mt19937 random_;
  cudaStream_t streams_[kStreams] = {};
  uint32_t* buffers_[kBuffers] = {};
  void *lt_ = nullptr, *handles_[kHandles] = {}, *kept_[kKept] = {}, *layouts_[2] = {};
  void* workspace_ = nullptr;
  std::vector<Operation> program_;
  uint64_t sum_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const auto seed = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 1u;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 1, turns = argc > 3 ? std::atoi(argv[3]) : 12;
  find_all();
  std::vector<Program> programs;
  for (int i = 0; i < threads; ++i)
    programs.emplace_back(seed * 100 + static_cast<uint32_t>(i), threads > 1);
  for (int turn = 0; turn < turns; ++turn) {
    std::vector<std::thread> all;
    for (Program& program : programs) all.emplace_back([&] { program.turn(turn); });
    for (std::thread& one : all) one.join();
    std::printf("turn %d:", turn);
    for (const Program& program : programs)
      std::printf(" %016llx", static_cast<unsigned long long>(program.sum()));
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}
