// SPDX-License-Identifier: Apache-2.0
// Managed memory where no instruction of the program's touches it, or where somebody else wants the
// signal: files, pipes, sockets and streams that read and write it; handlers of the program's own
// for SIGSEGV, before and after; threads that touch one page at once; a child of fork.
#include <cuda_runtime.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"

namespace {

constexpr int kCount = 100000;
constexpr size_t kBytes = kCount * sizeof(int);

__global__ void fill(int* data, int n, int first) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    data[i] = first + i;
}

void launch(int* data, int first) {
  fill<<<16, 128>>>(data, kCount, first);
  REQUIRE(cudaDeviceSynchronize());
}

bool is(const int* data, int n, int first) {
  for (int i = 0; i < n; ++i)
    if (data[i] != first + i) return false;
  return true;
}

bool all_written(int to, const void* from, size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t n = write(to, at, bytes);
    if (n <= 0) return false;
    at += n, bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool all_received(int from, void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = recv(from, at, bytes, 0);
    if (n <= 0) return false;
    at += n, bytes -= static_cast<size_t>(n);
  }
  return true;
}

void files(int* data, int* other) {
  std::FILE* file = std::tmpfile();
  const int fd = fileno(file);
  launch(data, 5);
  fact("write", write(fd, data, kBytes) == static_cast<ssize_t>(kBytes));
  launch(other, 0);
  fact("pread",
       pread(fd, other, kBytes, 0) == static_cast<ssize_t>(kBytes) && is(other, kCount, 5));
  launch(other, 0);
  iovec parts[2] = {{other, 1000}, {other + 250, kBytes - 1000}};
  fact("preadv", preadv(fd, parts, 2, 0) == static_cast<ssize_t>(kBytes) && is(other, kCount, 5));
  launch(data, 70);
  fact("fwrite", std::fseek(file, 0, SEEK_SET) == 0 && std::fwrite(data, kBytes, 1, file) == 1 &&
                     std::fflush(file) == 0);
  launch(other, 0);
  fact("fread", std::fseek(file, 0, SEEK_SET) == 0 && std::fread(other, kBytes, 1, file) == 1 &&
                    is(other, kCount, 70));
  std::fclose(file);
}

void sockets(int* data, int* other) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) std::exit(1);
  launch(data, 9);
  launch(other, 0);
  bool sent = false;
  std::thread sender([&] { sent = all_written(ends[0], data, kBytes); });
  const bool received = all_received(ends[1], other, kBytes);
  sender.join();
  fact("recv", sent && received && is(other, kCount, 9));
  launch(data, 11);
  launch(other, 0);
  msghdr out{}, in{};
  iovec from{data, 4000}, to{other, 4000};
  out.msg_iov = &from, out.msg_iovlen = 1;
  in.msg_iov = &to, in.msg_iovlen = 1;
  fact("sendmsg", sendmsg(ends[0], &out, 0) == 4000);
  fact("recvmsg", recvmsg(ends[1], &in, 0) == 4000 && is(other, 1000, 11));
  close(ends[0]);
  close(ends[1]);
}

sigjmp_buf g_back;
std::atomic<int> g_seen{0};
int* g_managed = nullptr;

void jump(int) {
  ++g_seen;
  siglongjmp(g_back, 1);
}

void with_info(int, siginfo_t* info, void*) {
  // The handler itself uses managed memory, which the device has.
  g_seen += g_managed[10];
  mprotect(info->si_addr, 4096, PROT_READ | PROT_WRITE);
}

void store_and_come_back(void* page) {
  if (sigsetjmp(g_back, 1) == 0) *static_cast<volatile int*>(page) = 1;
}

void handlers(int* data, void* page) {
  // The one that was set before there was any managed memory.
  store_and_come_back(page);
  store_and_come_back(page);
  launch(data, 2);
  fact("the first handler", g_seen == 2 && is(data, kCount, 2));
  struct sigaction action {
  }, before{};
  action.sa_sigaction = with_info;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  fact("set later", sigaction(SIGSEGV, &action, &before) == 0 && before.sa_handler == jump);
  fact("and read back",
       sigaction(SIGSEGV, nullptr, &before) == 0 && before.sa_sigaction == with_info);
  g_managed = data;
  g_seen = 0;
  launch(data, 30);
  *static_cast<volatile int*>(page) = 1;
  fact("the second handler", g_seen == 40);
  // On a small stack of its own.
  static char small[16384];
  stack_t stack{};
  stack.ss_sp = small, stack.ss_size = sizeof small;
  sigaltstack(&stack, nullptr);
  launch(data, 50);
  fact("on an alternate stack", is(data, kCount, 50));
  signal(SIGSEGV, SIG_DFL);
}

void blocked(int* data) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  launch(data, 4);
  fact("with all signals blocked", is(data, kCount, 4));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void threads(int* data) {
  std::atomic<int> right{0};
  for (int round = 0; round < 5; ++round) {
    launch(data, round);
    std::vector<std::thread> all;
    for (int t = 0; t < 8; ++t)
      all.emplace_back([&, t] {
        if (is(data, kCount - 8, round)) ++right;
        data[kCount - 1 - t] = -1;
      });
    for (std::thread& each : all) each.join();
  }
  int last = 0;
  launch(data, 0);
  for (int t = 0; t < 8; ++t) last += data[kCount - 1 - t] == kCount - 1 - t;
  std::printf("threads: %d right, %d of the last\n", right.load(), last);
}

// What a child's touch ends in; it must not hang, and the parent's pages stay.
void child(int* data) {
  launch(data, 6);
  if (data[0] != 6) std::exit(1);
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    signal(SIGSEGV, [](int) { _exit(77); });
    _exit(*static_cast<volatile int*>(data) == 6 ? 1 : 2);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  fact("a child has none of it", WIFEXITED(status) && WEXITSTATUS(status) == 77);
  fact("the parent has", is(data, kCount, 6));
}

}  // namespace

int main() {
  void* page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  signal(SIGSEGV, jump);
  int *data = nullptr, *other = nullptr;
  REQUIRE(cudaMallocManaged(&data, kBytes));
  REQUIRE(cudaMallocManaged(&other, kBytes));
  handlers(data, page);
  files(data, other);
  sockets(data, other);
  blocked(data);
  threads(data);
  child(data);
  REQUIRE(cudaFree(data));
  REQUIRE(cudaFree(other));
  return 0;
}
