// SPDX-License-Identifier: Apache-2.0
// Timings of CUDA calls as an application sees them: one mode a run, one JSON object on standard
// output. Run by bench.py over a channel, over another, and natively. Every figure is a median of
// its own repetitions. Beside the figures: how many of the measured calls have to wait for an
// answer, and how many have to be sent (counted.py holds that against what the client counted).
#include <cuda_runtime.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#define CHECK(call)                                                    \
  do {                                                                 \
    const cudaError_t e_ = (call);                                     \
    if (e_ != cudaSuccess) {                                           \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e_)); \
      std::exit(1);                                                    \
    }                                                                  \
  } while (0)

__global__ void five(float* a, float* b, int n, float x, int y) {
  if (threadIdx.x == 0 && blockIdx.x == 0 && n < 0) a[0] = b[0] * x + y;
}

namespace {

double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

float *g_a, *g_b;
long g_waits, g_commands;

void launch(unsigned blocks = 1) {
  int n = 100, y = 3;
  float x = 2;
  void* args[] = {&g_a, &g_b, &n, &x, &y};
  CHECK(cudaLaunchKernel(reinterpret_cast<const void*>(five), dim3(blocks), dim3(32), args, 0,
                         nullptr));
  ++g_commands;
}

// Bursts of 1,000 launches with five arguments through the exported symbol.
double async_call_us(int bursts) {
  std::vector<double> each;
  for (int b = 0; b < bursts; ++b) {
    const double start = now_us();
    for (int i = 0; i < 1000; ++i) launch();
    each.push_back((now_us() - start) / 1000);
    CHECK(cudaDeviceSynchronize());
  }
  return median(each);
}

double async_calls_per_s(int count) {
  const double start = now_us();
  for (int i = 0; i < count; ++i) launch();
  CHECK(cudaDeviceSynchronize());
  return count / (now_us() - start) * 1e6;
}

// No two launches in a row that came before: each has a grid of its own.
double never_repeating_us(unsigned count) {
  const double start = now_us();
  for (unsigned i = 0; i < count; ++i) launch(1 + (i * 2654435761u >> 10));
  CHECK(cudaDeviceSynchronize());
  return (now_us() - start) / count;
}

template <class F>
double each_us(int repetitions, F&& f) {
  for (int i = 0; i < repetitions / 10 + 1; ++i) f();
  std::vector<double> all;
  for (int i = 0; i < repetitions; ++i) {
    const double start = now_us();
    f();
    all.push_back(now_us() - start);
  }
  return median(all);
}

// A call that only its worker can answer.
template <class F>
double each_wait_us(int repetitions, F&& f) {
  return each_us(repetitions, [&] {
    f();
    ++g_waits;
  });
}

// Bytes of pageable memory to the device and back, a direction's median each. They are other ones
// each time and are looked at when they have arrived, so that a copy that was not made fails.
struct Copied {
  double to_device_us, to_host_us;
};
Copied pageable_copies(char* device, size_t bytes, int repetitions) {
  std::vector<char> host(bytes), back(bytes);
  std::vector<double> there, here;
  constexpr size_t kStep = 4093;
  for (int i = 0; i <= repetitions; ++i) {
    for (size_t at = 0; at < bytes; at += kStep) host[at] = static_cast<char>(i * 31 + at / kStep);
    double start = now_us();
    CHECK(cudaMemcpy(device, host.data(), bytes, cudaMemcpyHostToDevice));
    CHECK(cudaDeviceSynchronize());
    there.push_back(now_us() - start);
    std::fill(back.begin(), back.end(), 0);
    start = now_us();
    CHECK(cudaMemcpy(back.data(), device, bytes, cudaMemcpyDeviceToHost));
    here.push_back(now_us() - start);
    for (size_t at = 0; at < bytes; at += kStep) {
      if (back[at] == host[at]) continue;
      std::fprintf(stderr, "byte %zu of copy %d is not what was sent\n", at, i);
      std::exit(1);
    }
  }
  there.erase(there.begin());  // the first touches fresh memory
  here.erase(here.begin());
  return {median(there), median(here)};
}

double gib_s(size_t bytes, double us) { return bytes / us * 1e6 / (1 << 30); }

// What nobody but the GPU's side can answer: it may have been written by what ran there.
double round_trip_us() {
  static int word;
  return each_wait_us(20000, [] { CHECK(cudaMemcpy(&word, g_a, 4, cudaMemcpyDeviceToHost)); });
}

void put(const char* name, double value, bool last = false) {
  std::printf("\"%s\": %.4f%s", name, value, last ? "}\n" : ", ");
}

void put_claims() { std::printf("\"waits\": %ld, \"commands\": %ld}\n", g_waits, g_commands); }

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const size_t mib = argc > 2 ? std::atoi(argv[2]) : 256;
  const double start = now_us();
  CHECK(cudaFree(nullptr));
  const double started = now_us() - start;
  std::printf("{");
  if (mode == "start") {
    put("client_start_ms", started / 1000, true);
    return 0;
  }
  CHECK(cudaMalloc(&g_a, 1 << 20));
  CHECK(cudaMalloc(&g_b, 1 << 20));
  launch();
  CHECK(cudaDeviceSynchronize());
  if (mode == "calls") {
    put("async_call_us", async_call_us(200));
    put("async_calls_per_s", async_calls_per_s(1000000));
    put("round_trip_us", round_trip_us());
    put_claims();
  } else if (mode == "round_trip") {
    put("async_calls_per_s", async_calls_per_s(1000000));
    put("round_trip_us", round_trip_us());
    put_claims();
  } else if (mode == "never") {
    put("launch_drained_us", never_repeating_us(1000000));
    put_claims();
  } else if (mode == "idle") {
    std::fflush(stdout);
    std::printf("\"pid\": %d}\n", getpid());
    std::fflush(stdout);
    sleep(static_cast<unsigned>(mib));
  } else if (mode == "copy") {
    const size_t bytes = mib << 20;
    char* device;
    CHECK(cudaMalloc(&device, bytes));
    const Copied copied = pageable_copies(device, bytes, 7);
    put("pageable_to_device_gib_s", gib_s(bytes, copied.to_device_us));
    put("pageable_to_host_gib_s", gib_s(bytes, copied.to_host_us), true);
  } else if (mode == "gpu") {
    const size_t bytes = mib << 20;
    put("launch_us", async_call_us(50));
    put("launch_drained_us", 1e6 / async_calls_per_s(100000));
    put("launch_synchronize_us", each_us(2000, [] {
          launch();
          CHECK(cudaStreamSynchronize(nullptr));
        }));
    int word = 0;
    put("copy_4_bytes_to_host_us",
        each_us(2000, [&] { CHECK(cudaMemcpy(&word, g_a, 4, cudaMemcpyDeviceToHost)); }));
    put("copy_4_bytes_to_device_us",
        each_us(2000, [&] { CHECK(cudaMemcpy(g_a, &word, 4, cudaMemcpyHostToDevice)); }));
    put("malloc_free_2_mib_us", each_us(300, [] {
          void* p;
          CHECK(cudaMalloc(&p, 2 << 20));
          CHECK(cudaFree(p));
        }));
    std::vector<void*> kept(100);
    const double before = now_us();
    for (void*& p : kept) CHECK(cudaMalloc(&p, 2 << 20));
    put("malloc_2_mib_us", (now_us() - before) / kept.size());
    for (void* p : kept) CHECK(cudaFree(p));
    cudaEvent_t event;
    CHECK(cudaEventCreate(&event));
    put("event_record_us", each_us(2000, [&] { CHECK(cudaEventRecord(event, nullptr)); }));
    put("event_record_synchronize_us", each_us(2000, [&] {
          CHECK(cudaEventRecord(event, nullptr));
          CHECK(cudaEventSynchronize(event));
        }));
    char *device, *pinned;
    CHECK(cudaMalloc(&device, bytes));
    CHECK(cudaMallocHost(&pinned, bytes));
    std::memset(pinned, 1, bytes);
    put("pinned_to_device_gib_s",
        gib_s(bytes, each_us(10, [&] {
                CHECK(cudaMemcpy(device, pinned, bytes, cudaMemcpyHostToDevice));
              })));
    put("pinned_to_host_gib_s",
        gib_s(bytes, each_us(10, [&] {
                CHECK(cudaMemcpy(pinned, device, bytes, cudaMemcpyDeviceToHost));
              })));
    const Copied copied = pageable_copies(device, bytes, 7);
    put("pageable_to_device_gib_s", gib_s(bytes, copied.to_device_us));
    put("pageable_to_host_gib_s", gib_s(bytes, copied.to_host_us));
    put("start_ms", started / 1000, true);
  } else {
    std::fprintf(
        stderr,
        "usage: calls start | calls | round_trip | never | idle SECONDS | copy MIB | gpu MIB\n");
    return 2;
  }
  return 0;
}
