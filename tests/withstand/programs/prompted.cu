// SPDX-License-Identifier: Apache-2.0
// A CUDA program that does one thing for each word on its standard input and says how it went, one
// line each, so that a test decides when a session is idle, in mid-kernel, in a blocking call or
// polling. Started by tests/withstand, on the host and in guests. A line of output is "WORD: ok",
// "WORD: error NUMBER NAME", or what the word promises; it ends at the word quit or at the end of
// input.
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

__global__ void scale(const uint32_t* in, uint32_t* out, uint32_t factor, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i] * factor + i;
}

__global__ void add_one(uint32_t* counter) { *counter += 1; }

// As long as the caller likes: `rounds` steps of a generator, whose end is known only by taking
// them. So many that nobody waits for them take naps instead, of which the host's processors have
// nothing to do.
__global__ void turn(uint32_t* state, uint64_t rounds) {
  constexpr uint64_t kEndless = 1ull << 40;
  uint32_t s = *state;
  for (uint64_t i = 0; i < rounds; ++i) {
    s = s * 1664525u + 1013904223u;
    if (rounds >= kEndless) __nanosleep(1'000'000);
  }
  *state = s;
}

__device__ uint64_t now() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

// As long as on a GPU: how fast the host's processors are at a time does not matter to it.
__global__ void last(uint64_t nanoseconds) {
  const uint64_t end = now() + nanoseconds;
  for (uint64_t at; (at = now()) < end;)
    __nanosleep(static_cast<uint32_t>(end - at < 1'000'000 ? end - at : 1'000'000));
}

__global__ void write_to(uint32_t* where) { *where = 1; }

bool failed(const char* word, cudaError_t e) {
  if (e == cudaSuccess) return false;
  std::printf("%s: error %d %s\n", word, static_cast<int>(e), cudaGetErrorName(e));
  return true;
}

struct Device {
  uint32_t *counter = nullptr, *state = nullptr;
  cudaEvent_t turned = nullptr;

  cudaError_t open() {
    if (counter) return cudaSuccess;
    if (const cudaError_t e = cudaMalloc(&state, 256)) return e;
    if (const cudaError_t e = cudaEventCreateWithFlags(&turned, cudaEventDisableTiming)) return e;
    if (const cudaError_t e = cudaMalloc(&counter, 256)) return e;
    return cudaMemset(counter, 0, 256);
  }
};
Device device;

// n numbers there, through a kernel, and back; every one is looked at.
void compute(const char* word, int n) {
  std::vector<uint32_t> in(n), out(n);
  static uint32_t seed = 1;
  const uint32_t factor = seed * 2 + 1;
  for (int i = 0; i < n; ++i) in[i] = seed = seed * 1664525u + 1013904223u;
  uint32_t *a = nullptr, *b = nullptr;
  const size_t bytes = sizeof(uint32_t) * static_cast<size_t>(n);
  if (failed(word, cudaMalloc(&a, bytes)) || failed(word, cudaMalloc(&b, bytes)) ||
      failed(word, cudaMemcpy(a, in.data(), bytes, cudaMemcpyHostToDevice)))
    return;
  scale<<<(n + 127) / 128, 128>>>(a, b, factor, n);
  if (failed(word, cudaGetLastError()) ||
      failed(word, cudaMemcpy(out.data(), b, bytes, cudaMemcpyDeviceToHost)) ||
      failed(word, cudaFree(a)) || failed(word, cudaFree(b)))
    return;
  int wrong = 0;
  for (int i = 0; i < n; ++i) wrong += out[i] != in[i] * factor + static_cast<uint32_t>(i);
  std::printf("%s: wrong %d of %d\n", word, wrong, n);
}

void launch(const char* word, uint64_t rounds) {
  const uint32_t start = 1;
  if (failed(word, cudaMemcpy(device.state, &start, sizeof start, cudaMemcpyHostToDevice))) return;
  turn<<<1, 1>>>(device.state, rounds);
  if (failed(word, cudaGetLastError()) || failed(word, cudaEventRecord(device.turned))) return;
  std::printf("%s: ok\n", word);
}

// Never waits in a call: asks, and asks again.
template <class Ask>
void poll(const char* word, Ask ask) {
  cudaError_t e;
  while ((e = ask()) == cudaErrorNotReady) usleep(1000);
  if (!failed(word, e)) std::printf("%s: ok\n", word);
}

void turned(const char* word, uint64_t rounds) {
  uint32_t got = 0, expected = 1;
  if (failed(word, cudaMemcpy(&got, device.state, sizeof got, cudaMemcpyDeviceToHost))) return;
  for (uint64_t i = 0; i < rounds; ++i) expected = expected * 1664525u + 1013904223u;
  std::printf("%s: %s\n", word, got == expected ? "right" : "wrong");
}

void flood(const char* word, uint64_t launches) {
  for (uint64_t i = 0; i < launches && cudaPeekAtLastError() == cudaSuccess; ++i)
    add_one<<<1, 1>>>(device.counter);
  if (!failed(word, cudaGetLastError())) std::printf("%s: ok\n", word);
}

void count(const char* word) {
  uint32_t got = 0;
  if (failed(word, cudaMemcpy(&got, device.counter, sizeof got, cudaMemcpyDeviceToHost))) return;
  std::printf("%s: %u\n", word, got);
}

// Kernels without end, counted as they are done.
struct Work {
  std::thread thread;
  std::atomic<uint64_t> done{0};
  std::atomic<cudaError_t> error{cudaSuccess};
  std::atomic<bool> over{false};

  // So many are always under way that the GPU never waits for this program.
  static constexpr int kBatch = 8, kBatches = 16;
  cudaEvent_t ends[kBatches];

  void run(uint64_t nanoseconds) {
    for (cudaEvent_t& e : ends)
      if ((error = cudaEventCreateWithFlags(&e, cudaEventDisableTiming))) return;
    for (uint64_t at = 0; !over && error == cudaSuccess; ++at) {
      const cudaEvent_t end = ends[at % kBatches];
      if (at >= kBatches) {
        error = cudaEventSynchronize(end);
        done += kBatch;
      }
      for (int i = 0; i < kBatch; ++i) last<<<1, 1>>>(nanoseconds);
      cudaEventRecord(end);
    }
  }
  // One at a time with pauses, so that the GPU has little to do.
  void drip(uint64_t nanoseconds) {
    for (; !over && error == cudaSuccess; ++done) {
      last<<<1, 1>>>(nanoseconds);
      error = cudaDeviceSynchronize();
      usleep(1000);
    }
  }
  template <class Do>
  void begin(Do how) {
    thread = std::thread(how);
  }
  ~Work() {
    over = true;
    if (thread.joinable()) thread.join();
  }
};

void fork_child(const char* word) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    void* p = nullptr;
    const cudaError_t allocated = cudaMalloc(&p, 4096);
    const cudaError_t waited = cudaDeviceSynchronize();
    std::printf("child: %s %s\n", cudaGetErrorName(allocated), cudaGetErrorName(waited));
    std::fflush(stdout);
    // The usual way out, with every destructor: the parent's session must not notice.
    std::exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  std::printf("%s: child ended with %d\n", word, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

}  // namespace

int main() {
  Work work;
  char line[256];
  while (std::fgets(line, sizeof line, stdin)) {
    char word[64] = "";
    unsigned long long number = 0;
    if (std::sscanf(line, "%63s %llu", word, &number) < 1) continue;
    const auto is = [&](const char* name) { return std::strcmp(word, name) == 0; };
    if (is("quit")) break;
    if (is("pid")) {
      std::printf("pid: %d\n", getpid());
    } else if (failed(word, device.open())) {
      // said
    } else if (is("open")) {
      std::printf("open: ok\n");
    } else if (is("compute")) {
      compute(word, static_cast<int>(number ? number : 1000));
    } else if (is("launch")) {
      launch(word, number);
    } else if (is("wait")) {
      if (!failed(word, cudaDeviceSynchronize())) std::printf("wait: ok\n");
    } else if (is("poll-event")) {
      poll(word, [] { return cudaEventQuery(device.turned); });
    } else if (is("poll-stream")) {
      poll(word, [] { return cudaStreamQuery(nullptr); });
    } else if (is("wait-event")) {
      if (!failed(word, cudaEventSynchronize(device.turned))) std::printf("wait-event: ok\n");
    } else if (is("turned")) {
      turned(word, number);
    } else if (is("flood")) {
      flood(word, number);
    } else if (is("count")) {
      count(word);
    } else if (is("work")) {
      work.begin([&work, number] { work.run(number); });
      std::printf("work: ok\n");
    } else if (is("drip")) {
      work.begin([&work, number] { work.drip(number); });
      std::printf("drip: ok\n");
    } else if (is("worked")) {
      if (!failed(word, work.error)) std::printf("worked: %llu\n", work.done.load() + 0ull);
    } else if (is("illegal")) {
      write_to<<<1, 1>>>(reinterpret_cast<uint32_t*>(0x10));
      if (!failed(word, cudaDeviceSynchronize())) std::printf("illegal: ok\n");
    } else if (is("fork")) {
      fork_child(word);
    } else {
      std::printf("%s: unknown\n", word);
    }
    std::fflush(stdout);
  }
  return 0;
}
