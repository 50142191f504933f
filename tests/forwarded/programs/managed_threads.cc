// SPDX-License-Identifier: Apache-2.0
// Eight threads with streams and managed memory of their own, and one that forks: each allocates,
// attaches, has the device fill, touches without having waited, sends, and frees. Ends otherwise
// than with 0 where one sees what it should not.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

extern "C" {
int cudaMallocManaged(void** memory, size_t bytes, unsigned flags);
int cudaFree(void* memory);
int cudaMemsetAsync(void* memory, int value, size_t bytes, void* stream);
int cudaStreamCreateWithFlags(void** stream, unsigned flags);
int cudaStreamSynchronize(void* stream);
int cudaStreamAttachMemAsync(void* stream, void* memory, size_t bytes, unsigned flags);
}

namespace {

constexpr int kThreads = 8, kRounds = 40;
constexpr size_t kSent = 50'000;

void require(bool holds, const char* what, int line) {
  if (holds) return;
  std::fprintf(stderr, "line %d: %s\n", line, what);
  std::_Exit(1);
}
#define REQUIRE(what) require(what, #what, __LINE__)
#define DONE(call) require((call) == 0, #call, __LINE__)

// What it has is written to a socket and read again.
void send_and_receive(const unsigned char* memory, size_t bytes) {
  int ends[2];
  DONE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
  std::vector<unsigned char> got(std::min(bytes, kSent));
  REQUIRE(send(ends[0], memory, got.size(), 0) == static_cast<ssize_t>(got.size()));
  REQUIRE(recv(ends[1], got.data(), got.size(), 0) == static_cast<ssize_t>(got.size()));
  REQUIRE(std::memcmp(got.data(), memory, got.size()) == 0);
  close(ends[0]);
  close(ends[1]);
}

void work(unsigned seed) {
  std::mt19937 chance(seed);
  void* stream = nullptr;
  DONE(cudaStreamCreateWithFlags(&stream, 1));
  for (int round = 0; round < kRounds; ++round) {
    const size_t bytes = 1000 + chance() % (chance() % 3 ? 200'000 : 3'000'000);
    void* made = nullptr;
    DONE(cudaMallocManaged(&made, bytes, 1));
    auto* memory = static_cast<unsigned char*>(made);
    const unsigned kind = chance() % 3;
    if (kind) DONE(cudaStreamAttachMemAsync(stream, memory, 0, kind == 1 ? 4 : 2));
    for (int again = 0; again < 2; ++again) {
      const auto value = static_cast<unsigned char>(chance());
      DONE(cudaMemsetAsync(memory, value, bytes, stream));
      if (chance() % 2) DONE(cudaStreamSynchronize(stream));
      const size_t at = chance() % bytes;
      REQUIRE(memory[at] == value);
      REQUIRE(memory[bytes - 1] == value && memory[bytes / 2] == value);
      memory[at] = 7;
      send_and_receive(memory, bytes);
    }
    DONE(cudaFree(memory));
  }
}

}  // namespace

int main() {
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= kThreads; ++seed) threads.emplace_back(work, seed);
  std::thread forks([&] {
    while (!over) {
      const pid_t child = fork();
      if (child == 0) _exit(0);
      int status = 1;
      waitpid(child, &status, 0);
      REQUIRE(status == 0);
    }
  });
  for (std::thread& thread : threads) thread.join();
  over = true;
  forks.join();
  std::puts("right");
  return 0;
}
