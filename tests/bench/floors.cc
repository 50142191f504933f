// SPDX-License-Identifier: Apache-2.0
// The machine's own floors, which no forwarding can beat: a bare ping-pong over shared memory (both
// sides spinning) and over TCP (both blocking), a bare memcpy, and an ideal two-stage copy pipeline
// (one thread into a staging ring, one out of it). One JSON object on standard output.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

double shm_ping_pong_us() {
  auto* words = static_cast<std::atomic<uint64_t>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  constexpr uint64_t kRounds = 200000;
  const pid_t child = fork();
  if (child == 0) {
    for (uint64_t i = 1; i <= kRounds; ++i) {
      while (words[0].load(std::memory_order_acquire) != i) __builtin_ia32_pause();
      words[16].store(i, std::memory_order_release);
    }
    _exit(0);
  }
  std::vector<double> all;
  for (uint64_t i = 1; i <= kRounds; ++i) {
    const double start = now_us();
    words[0].store(i, std::memory_order_release);
    while (words[16].load(std::memory_order_acquire) != i) __builtin_ia32_pause();
    all.push_back(now_us() - start);
  }
  waitpid(child, nullptr, 0);
  return median(all);
}

double tcp_ping_pong_us() {
  const int door = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(door, reinterpret_cast<sockaddr*>(&address), sizeof address) || listen(door, 1) ||
      getsockname(door, reinterpret_cast<sockaddr*>(&address), &length))
    std::exit(1);
  constexpr int kRounds = 20000;
  const int one = 1;
  char message[32] = "";
  const pid_t child = fork();
  if (child == 0) {
    const int s = accept(door, nullptr, nullptr);
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    while (recv(s, message, sizeof message, MSG_WAITALL) == sizeof message)
      if (send(s, message, sizeof message, 0) != sizeof message) break;
    _exit(0);
  }
  const int s = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(s, reinterpret_cast<sockaddr*>(&address), sizeof address)) std::exit(1);
  setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  std::vector<double> all;
  for (int i = 0; i < kRounds; ++i) {
    const double start = now_us();
    if (send(s, message, sizeof message, 0) != sizeof message ||
        recv(s, message, sizeof message, MSG_WAITALL) != sizeof message)
      std::exit(1);
    all.push_back(now_us() - start);
  }
  close(s);
  waitpid(child, nullptr, 0);
  return median(all);
}

constexpr size_t kBytes = 256 << 20, kPiece = 1 << 20, kPieces = 16;

double gib_s(double us) { return static_cast<double>(kBytes) / us * 1e6 / (1 << 30); }

char* pages(size_t n) {
  auto* p = static_cast<char*>(
      mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::memset(p, 1, n);
  return p;
}

double memcpy_gib_s(char* to, const char* from) {
  std::vector<double> all;
  for (int i = 0; i < 7; ++i) {
    const double start = now_us();
    std::memcpy(to, from, kBytes);
    all.push_back(now_us() - start);
  }
  return gib_s(median(all));
}

double pipeline_gib_s(char* to, const char* from) {
  char* staging = pages(kPiece * kPieces);
  std::vector<double> all;
  for (int i = 0; i < 7; ++i) {
    std::atomic<size_t> filled{0}, drained{0};
    const double start = now_us();
    std::thread second([&] {
      for (size_t at = 0; at < kBytes; at += kPiece) {
        while (filled.load(std::memory_order_acquire) <= at) __builtin_ia32_pause();
        std::memcpy(to + at, staging + at % (kPiece * kPieces), kPiece);
        drained.store(at + kPiece, std::memory_order_release);
      }
    });
    for (size_t at = 0; at < kBytes; at += kPiece) {
      while (at >= drained.load(std::memory_order_acquire) + kPiece * kPieces)
        __builtin_ia32_pause();
      std::memcpy(staging + at % (kPiece * kPieces), from + at, kPiece);
      filled.store(at + kPiece, std::memory_order_release);
    }
    second.join();
    all.push_back(now_us() - start);
  }
  return gib_s(median(all));
}

}  // namespace

int main() {
  const double shm = shm_ping_pong_us(), tcp = tcp_ping_pong_us();
  char *a = pages(kBytes), *b = pages(kBytes);
  const double plain = memcpy_gib_s(a, b), pipeline = pipeline_gib_s(a, b);
  std::printf(
      "{\"shm_ping_pong_us\": %.4f, \"tcp_ping_pong_us\": %.4f, \"memcpy_gib_s\": %.3f, "
      "\"pipeline_gib_s\": %.3f}\n",
      shm, tcp, plain, pipeline);
  return 0;
}
