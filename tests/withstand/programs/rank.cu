// SPDX-License-Identifier: Apache-2.0
// A CUDA program that works in steps without end, each with something that may meet the end of a
// turn: collectives with its peers, host functions, captures, code that is compiled. Told what to
// do line by line, as prompted.cu is; tests/withstand/ranks.py talks to it. NCCL is loaded where a
// line asks for it.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace {

// A millisecond each, as long as on a GPU, of which the host's processors have nothing to do.
__global__ void turn(uint32_t* state, uint64_t rounds) {
  uint32_t s = *state;
  for (uint64_t i = 0; i < rounds; ++i) {
    __nanosleep(1'000'000);
    s = s * 1664525u + 1013904223u;
  }
  *state = s;
}

struct UniqueId {
  char bytes[128];
};

struct Nccl {
  int (*unique_id)(UniqueId*) = nullptr;
  int (*init)(void**, int, UniqueId, int) = nullptr;
  int (*all_reduce)(const void*, void*, size_t, int, int, void*, cudaStream_t) = nullptr;

  bool load() {
    void* library = dlopen("libnccl.so.2", RTLD_NOW);
    if (!library) return false;
    const auto look = [&](const char* name, auto* f) {
      *f = reinterpret_cast<std::remove_pointer_t<decltype(f)>>(dlsym(library, name));
    };
    look("ncclGetUniqueId", &unique_id);
    look("ncclCommInitRank", &init);
    look("ncclAllReduce", &all_reduce);
    return unique_id && init && all_reduce;
  }
};

// PTX that nobody has compiled before.
std::string ptx(uint64_t number) {
  return ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry made_" +
         std::to_string(number) + "(.param .u64 at)\n{\n  ret;\n}\n";
}

struct Rank {
  Nccl nccl;
  void* comm = nullptr;
  uint32_t *state = nullptr, *data = nullptr;
  cudaStream_t stream = nullptr;
  uint64_t rounds = 0;
  std::atomic<uint64_t> done{0}, called{0}, compiled{0};
  std::atomic<int> error{0};
  std::thread thread, compiler;
  std::atomic<bool> over{false};

  bool open() {
    return !cudaMalloc(&state, 256) && !cudaMalloc(&data, 4096) &&
           !cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  bool join(int ranks, int rank, const char* text) {
    UniqueId id;
    for (size_t i = 0; i < sizeof id; ++i) {
      unsigned byte;
      if (std::sscanf(text + 2 * i, "%2x", &byte) != 1) return false;
      id.bytes[i] = static_cast<char>(byte);
    }
    return nccl.init && nccl.init(&comm, ranks, id, rank) == 0;
  }
  void unique() {
    UniqueId id;
    if (!nccl.load() || nccl.unique_id(&id) != 0) return void(std::printf("unique: error\n"));
    std::printf("unique: ");
    for (const char c : id.bytes) std::printf("%02x", static_cast<unsigned char>(c));
    std::printf("\n");
  }

  int collective() { return nccl.all_reduce(data, data, 64, 7, 0, comm, stream); }
  int kernels() {
    for (int i = 0; i < 4; ++i) turn<<<1, 1, 0, stream>>>(state, rounds);
    return cudaGetLastError();
  }
  // What a step does besides its kernels.
  int step(const std::string& how) {
    if (int e = kernels()) return e;
    if (how == "collectives") return collective();
    if (how == "host")
      return cudaLaunchHostFunc(
          stream, [](void* self) { ++static_cast<Rank*>(self)->called; }, this);
    return 0;
  }
  // The same as a graph that is captured anew each time.
  int captured(bool with_collective) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    int e = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    if (!e) e = kernels();
    if (!e && with_collective) e = collective();
    if (!e) e = cudaStreamEndCapture(stream, &graph);
    if (!e) e = cudaGraphInstantiate(&exec, graph, 0);
    for (int i = 0; i < 2 && !e; ++i) e = cudaGraphLaunch(exec, stream);
    if (!e) e = cudaStreamSynchronize(stream);
    if (exec) cudaGraphExecDestroy(exec);
    if (graph) cudaGraphDestroy(graph);
    return e;
  }
  void work(const std::string& how) {
    constexpr int kAhead = 8;
    cudaEvent_t ends[kAhead];
    for (cudaEvent_t& e : ends)
      if ((error = cudaEventCreateWithFlags(&e, cudaEventDisableTiming))) return;
    for (uint64_t at = 0; !over && !error; ++at) {
      if (how == "captures" || how == "captured-collectives") {
        if (!(error = captured(how != "captures"))) ++done;
        continue;
      }
      if (at >= kAhead && !(error = cudaEventSynchronize(ends[at % kAhead]))) ++done;
      if (!error) error = step(how);
      if (!error) error = cudaEventRecord(ends[at % kAhead], stream);
    }
  }
  void compile() {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    const auto load =
        reinterpret_cast<int (*)(void**, const void*)>(dlsym(driver, "cuModuleLoadData"));
    const auto unload = reinterpret_cast<int (*)(void*)>(dlsym(driver, "cuModuleUnload"));
    cudaSetDevice(0);
    cudaFree(nullptr);
    for (uint64_t i = 0; !over && !error; ++i) {
      void* module = nullptr;
      if ((error = load(&module, ptx(i).c_str()))) return;
      unload(module);
      ++compiled;
    }
  }
  void begin(const std::string& how) {
    thread = std::thread([this, how] { work(how); });
    if (how == "jit") compiler = std::thread([this] { compile(); });
  }
};

}  // namespace

int main() {
  static Rank rank;
  char line[512];
  while (std::fgets(line, sizeof line, stdin)) {
    char word[64] = "", text[300] = "";
    unsigned long long a = 0, b = 0;
    std::sscanf(line, "%63s", word);
    const auto is = [&](const char* name) { return std::strcmp(word, name) == 0; };
    if (is("quit")) break;
    if (is("open")) {
      std::printf("open: %s\n", rank.open() ? "ok" : "error");
    } else if (is("unique")) {
      rank.unique();
    } else if (is("join") && std::sscanf(line, "%*s %llu %llu %299s", &a, &b, text) == 3) {
      const bool good = (rank.nccl.init || rank.nccl.load()) &&
                        rank.join(static_cast<int>(a), static_cast<int>(b), text);
      std::printf("join: %s\n", good ? "ok" : "error");
    } else if (is("work") && std::sscanf(line, "%*s %299s %llu", text, &a) == 2) {
      rank.rounds = a;
      rank.begin(text);
      std::printf("work: ok\n");
    } else if (is("worked")) {
      if (rank.error)
        std::printf("worked: error %d\n", rank.error.load());
      else
        std::printf("worked: %llu\n", rank.done.load() + 0ull);
    } else if (is("called")) {
      std::printf("called: %llu\n", rank.called.load() + 0ull);
    } else if (is("compiled")) {
      std::printf("compiled: %llu\n", rank.compiled.load() + 0ull);
    } else {
      std::printf("%s: unknown\n", word);
    }
    std::fflush(stdout);
  }
  // Peers may be gone, so that what was issued never ends: nobody waits for it.
  std::_Exit(0);
}
