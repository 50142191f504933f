// SPDX-License-Identifier: Apache-2.0
// Stands in for NVIDIA's libnccl.so.2 where ranks of different workers have to meet: its all-reduce
// adds what all ranks have. Its network is the file NCCL_MEETING, which each of their workers maps.
// A collective runs when it is called, and waits for its ranks as NCCL's kernel does: for ever.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { kComms = 64, kRanks = 8, kFloats = 1024 };

typedef struct {
  _Atomic uint64_t steps[kRanks];  // how many each rank has begun
  float from[kRanks][2][kFloats];
} Meeting;
typedef struct {
  _Atomic uint32_t comms;
  Meeting meetings[kComms];
} Network;
typedef struct {
  char bytes[128];
} Id;
typedef struct {
  int ranks, rank;
  atomic_int over;
  uint64_t step;
  Meeting* meeting;
} Comm;

static Network* network;
static int (*synchronize)(void*);
static int (*to_host)(void*, uint64_t, size_t);
static int (*to_device)(uint64_t, const void*, size_t);

__attribute__((constructor)) static void map(void) {
  const char* name = getenv("NCCL_MEETING");
  const int file = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return;
  void* at = mmap(NULL, sizeof *network, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at != MAP_FAILED) network = at;
}

static int load(void) {
  if (to_device) return 1;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver) return 0;
  int (*look)(const char*, void**, int, uint64_t, int*) =
      (int (*)(const char*, void**, int, uint64_t, int*))dlsym(driver, "cuGetProcAddress_v2");
  return look && look("cuStreamSynchronize", (void**)&synchronize, 13000, 0, NULL) == 0 &&
         look("cuMemcpyDtoH", (void**)&to_host, 13000, 0, NULL) == 0 &&
         look("cuMemcpyHtoD", (void**)&to_device, 13000, 0, NULL) == 0;
}

// 0 once every rank has begun as many steps.
static int meet(Comm* c) {
  const uint64_t step = atomic_fetch_add(&c->meeting->steps[c->rank], 1) + 1;
  for (int rank = 0; rank < c->ranks; ++rank)
    while (atomic_load(&c->meeting->steps[rank]) < step) {
      if (c->over) return 3;
      usleep(200);
    }
  return 0;
}

int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
int ncclGetUniqueId(Id* id) {
  if (!network) return 2;
  memset(id, 0, sizeof *id);
  id->bytes[0] = (char)(1 + atomic_fetch_add(&network->comms, 1) % (kComms - 1));
  return 0;
}
int ncclCommInitRank(Comm** comm, int ranks, Id id, int rank) {
  if (!network || !load()) return 2;
  if (ranks > kRanks || rank < 0 || rank >= ranks || id.bytes[0] <= 0) return 4;
  Comm* c = calloc(1, sizeof *c);
  c->ranks = ranks, c->rank = rank;
  c->meeting = &network->meetings[(int)id.bytes[0]];
  *comm = c;
  return meet(c);
}
int ncclAllReduce(const void* from, void* to, size_t n, int type, int op, Comm* c, void* stream) {
  if (type != 7 || op != 0 || n > kFloats) return 4;  // floats, added
  float sum[kFloats] = {0};
  const uint64_t half = c->step++ % 2;
  if (synchronize(stream) != 0 ||
      to_host(c->meeting->from[c->rank][half], (uint64_t)from, n * sizeof(float)) != 0)
    return 1;
  if (meet(c) != 0) return 3;
  for (int rank = 0; rank < c->ranks; ++rank)
    for (size_t i = 0; i < n; ++i) sum[i] += c->meeting->from[rank][half][i];
  return to_device((uint64_t)to, sum, n * sizeof(float)) == 0 ? 0 : 1;
}
int ncclCommAbort(Comm* c) {
  c->over = 1;
  return 0;
}
int ncclCommDestroy(Comm* c) { return ncclCommAbort(c); }
int ncclCommCount(Comm* c, int* n) { return *n = c->ranks, 0; }
int ncclCommUserRank(Comm* c, int* n) { return *n = c->rank, 0; }
int ncclCommGetAsyncError(Comm* c, int* e) { return (void)c, *e = 0, 0; }
int ncclGroupStart(void) { return 0; }
int ncclGroupEnd(void) { return 0; }
const char* ncclGetLastError(Comm* c) { return (void)c, "."; }
