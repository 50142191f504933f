// SPDX-License-Identifier: Apache-2.0
// A memory pool that two processes share: its descriptor goes over a socket, its allocations as
// data. The child reads and changes them, frees them in a stream's order and imports again what was
// allocated later; then the parent sees what the child wrote. And what is refused. The program
// starts itself again, as a child of fork has no CUDA.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "check.h"

static __global__ void fill(int* data, int count, int first) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = first + i;
}

static __global__ void add(int* data, int count, int value) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] += value;
}

constexpr int kCounts[] = {1000, 70, 3 << 18};  // two in one slab, one with slabs of its own
constexpr int kAll = 3;
constexpr int kRounds = 4;
constexpr auto kType = cudaMemHandleTypePosixFileDescriptor;
using Data = cudaMemPoolPtrExportData;

static bool refused(cudaError_t error) {
  cudaGetLastError();
  return error != cudaSuccess;
}

static void run(void (*kernel)(int*, int, int), int* data, int count, int value, cudaStream_t s) {
  kernel<<<(count + 127) / 128, 128, 0, s>>>(data, count, value);
  REQUIRE(cudaGetLastError());
}

static int read_at(const int* data, int index) {
  int value = 0;
  REQUIRE(cudaMemcpy(&value, data + index, sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

// A word between the processes; they end together.
static void say(int socket, char word) {
  if (write(socket, &word, 1) != 1) std::exit(3);
}
static void hear(int socket, char word) {
  char got = 0;
  if (read(socket, &got, 1) != 1 || got != word) std::exit(3);
}
static void send_data(int socket, const Data& data) {
  if (write(socket, &data, sizeof data) != sizeof data) std::exit(3);
}
static Data receive_data(int socket) {
  Data data;
  if (recv(socket, &data, sizeof data, MSG_WAITALL) != sizeof data) std::exit(3);
  return data;
}

static void send_descriptor(int socket, int fd) {
  char byte = 'd';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr m{};
  m.msg_iov = &data, m.msg_iovlen = 1;
  m.msg_control = control, m.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  if (sendmsg(socket, &m, 0) != 1) std::exit(3);
}

static int receive_descriptor(int socket) {
  char byte;
  int fd = -1;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr m{};
  m.msg_iov = &data, m.msg_iovlen = 1;
  m.msg_control = control, m.msg_controllen = sizeof control;
  if (recvmsg(socket, &m, MSG_CMSG_CLOEXEC) != 1) std::exit(3);
  std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
  return fd;
}

static void* shareable(int fd) { return reinterpret_cast<void*>(static_cast<intptr_t>(fd)); }

static int* import(cudaMemPool_t pool, Data data) {
  void* pointer = nullptr;
  REQUIRE(cudaMemPoolImportPointer(&pointer, pool, &data));
  return static_cast<int*>(pointer);
}

static int child(int socket) {
  REQUIRE(cudaFree(nullptr));
  cudaStream_t stream;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const int fd = receive_descriptor(socket);
  cudaMemPool_t pool;
  REQUIRE(cudaMemPoolImportFromShareableHandle(&pool, shareable(fd), kType, 0));
  close(fd);
  int* data[kAll];
  for (int i = 0; i < kAll; ++i) {
    data[i] = import(pool, receive_data(socket));
    std::printf("child: allocation %d holds %d and %d\n", i, read_at(data[i], 0),
                read_at(data[i], kCounts[i] - 1));
    run(add, data[i], kCounts[i], 1000000, stream);
  }
  uint64_t used = 0;
  fact("child: it has no attributes",
       refused(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used)) &&
           refused(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &used)) &&
           refused(cudaMemPoolTrimTo(pool, 0)));
  void* none = nullptr;
  fact("child: nothing is allocated from it",
       refused(cudaMallocFromPoolAsync(&none, 64, pool, stream)));
  fact("child: it is not the device's pool", refused(cudaDeviceSetMemPool(0, pool)));
  for (int i = 0; i < 2; ++i) REQUIRE(cudaFreeAsync(data[i], stream));
  REQUIRE(cudaStreamSynchronize(stream));
  REQUIRE(cudaFree(data[2]));
  say(socket, 'f');
  // What is allocated as time goes by, one at a time.
  for (int round = 0; round < kRounds; ++round) {
    int* at = import(pool, receive_data(socket));
    std::printf("child: round %d brought %d\n", round, read_at(at, 500));
    run(add, at, kCounts[0], 7, stream);
    REQUIRE(cudaFreeAsync(at, stream));
    REQUIRE(cudaStreamSynchronize(stream));
    std::fflush(stdout);
    say(socket, 'r');
  }
  REQUIRE(cudaMemPoolDestroy(pool));
  REQUIRE(cudaStreamDestroy(stream));
  std::fflush(stdout);
  return 0;
}

static cudaMemPool_t make_pool(cudaMemAllocationHandleType type) {
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.handleTypes = type;
  props.location.type = cudaMemLocationTypeDevice;
  cudaMemPool_t pool;
  REQUIRE(cudaMemPoolCreate(&pool, &props));
  return pool;
}

static int* allocate(cudaMemPool_t pool, int count, int first, cudaStream_t stream) {
  void* pointer = nullptr;
  REQUIRE(cudaMallocFromPoolAsync(&pointer, count * sizeof(int), pool, stream));
  run(fill, static_cast<int*>(pointer), count, first, stream);
  return static_cast<int*>(pointer);
}

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "child") return child(std::atoi(argv[2]));
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 2;
  const pid_t pid = fork();
  if (pid == 0) {
    close(ends[0]);
    const std::string socket = std::to_string(ends[1]);
    execl("/proc/self/exe", argv[0], "child", socket.c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  const int socket = ends[0];
  int types = 0;
  REQUIRE(cudaDeviceGetAttribute(&types, cudaDevAttrMemoryPoolSupportedHandleTypes, 0));
  fact("pools can be shared by descriptors", types & kType);
  cudaStream_t stream;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaMemPool_t pool = make_pool(kType);
  int fd = -1;
  REQUIRE(cudaMemPoolExportToShareableHandle(&fd, pool, kType, 0));
  send_descriptor(socket, fd);
  close(fd);
  int* data[kAll];
  for (int i = 0; i < kAll; ++i) data[i] = allocate(pool, kCounts[i], 100 * (i + 1), stream);
  REQUIRE(cudaStreamSynchronize(stream));
  std::fflush(stdout);
  for (int* at : data) {
    Data exported;
    REQUIRE(cudaMemPoolExportPointer(&exported, at));
    send_data(socket, exported);
  }
  hear(socket, 'f');
  for (int round = 0; round < kRounds; ++round) {
    int* at = allocate(pool, kCounts[0], 1000 * round, stream);
    REQUIRE(cudaStreamSynchronize(stream));
    Data exported;
    REQUIRE(cudaMemPoolExportPointer(&exported, at));
    send_data(socket, exported);
    hear(socket, 'r');
    if (read_at(at, 0) != 1000 * round + 7) std::exit(4);
    REQUIRE(cudaFreeAsync(at, stream));
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (status != 0) {
    std::printf("the child ended with %d\n", status);
    return 1;
  }
  for (int i = 0; i < kAll; ++i) {
    std::printf("parent: allocation %d holds %d and %d\n", i, read_at(data[i], 0),
                read_at(data[i], kCounts[i] - 1));
    REQUIRE(cudaFreeAsync(data[i], stream));
  }
  REQUIRE(cudaStreamSynchronize(stream));
  REQUIRE(cudaMemPoolDestroy(pool));
  // Refused: what was not made for it, and what is no such descriptor.
  cudaMemPool_t plain = make_pool(cudaMemHandleTypeNone), none;
  int* at = allocate(plain, 100, 0, stream);
  Data exported;
  fact("a pool not made for it is not exported",
       refused(cudaMemPoolExportToShareableHandle(&fd, plain, kType, 0)));
  fact("nor are its allocations", refused(cudaMemPoolExportPointer(&exported, at)));
  const int file = open("/dev/null", O_RDONLY);
  fact("another file is not imported",
       refused(cudaMemPoolImportFromShareableHandle(&none, shareable(file), kType, 0)));
  REQUIRE(cudaFreeAsync(at, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  REQUIRE(cudaMemPoolDestroy(plain));
  REQUIRE(cudaStreamDestroy(stream));
  return 0;
}
