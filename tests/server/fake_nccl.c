// SPDX-License-Identifier: Apache-2.0
// Stands in for NVIDIA's libnccl.so.2 in tests: it moves no data. It behaves as NCCL does where
// forwarding can go wrong: a group belongs to a thread and does everything at its end, making a
// communicator waits for all its ranks, unique ids and configurations come as NCCL takes them.
// What happened is told by ncclGetLastError.
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  char bytes[128];
} Id;
typedef struct {
  size_t size;
  unsigned magic, version;
  int blocking, a, b, c;
  const char* net;
  int d, e;
  const char* name;
} Config;
typedef struct Comm {
  int magic, ranks, rank, dead, failed;  // failed: what its last call that was refused leaves
  Id id;
  char text[64];
} Comm;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t came = PTHREAD_COND_INITIALIZER;
static char trace[4000];
static int next_id = 1;
static struct {
  Id id;
  int arrived;
} meetings[64];
static __thread int depth;
static __thread int waiting;
static __thread struct {
  Id id;
  int ranks;
} inits[16];

static void note(const char* format, ...) {
  char line[200];
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof line, format, list);
  va_end(list);
  pthread_mutex_lock(&mutex);
  if (strlen(trace) + strlen(line) + 2 > sizeof trace) trace[0] = 0;
  if (depth) strcat(trace, "+");
  strcat(trace, line);
  strcat(trace, ";");
  pthread_mutex_unlock(&mutex);
}

static void meet(Id id, int ranks) {
  pthread_mutex_lock(&mutex);
  int i = 0;
  while (i < 63 && meetings[i].arrived && memcmp(&meetings[i].id, &id, sizeof id)) ++i;
  meetings[i].id = id;
  ++meetings[i].arrived;
  pthread_cond_broadcast(&came);
  while (meetings[i].arrived < ranks) pthread_cond_wait(&came, &mutex);
  pthread_mutex_unlock(&mutex);
}

static int begin(Comm** comm, int ranks, Id id, int rank) {
  if (rank < 0 || rank >= ranks) return 4;
  Comm* c = calloc(1, sizeof *c);
  *c = (Comm){42, ranks, rank, 0, 0, id, ""};
  *comm = c;
  if (depth == 0) {
    meet(id, ranks);
  } else {
    inits[waiting].id = id;
    inits[waiting++].ranks = ranks;
  }
  return 0;
}

static int good(Comm* c) { return c && c->magic == 42 && !c->dead; }

int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
int ncclGetUniqueId(Id* id) {
  memset(id, 0x5a, sizeof *id);
  pthread_mutex_lock(&mutex);
  id->bytes[0] = (char)next_id++;
  pthread_mutex_unlock(&mutex);
  return 0;
}
int ncclCommInitRank(Comm** comm, int ranks, Id id, int rank) {
  const char* files = getenv("NCCL_SHM_DISABLE");
  note("init %d/%d id %d files %s", rank, ranks, id.bytes[0],
       files && *files == '1' ? "no" : "yes");
  return begin(comm, ranks, id, rank);
}
int ncclCommInitRankConfig(Comm** comm, int ranks, Id id, int rank, Config* config) {
  note("config size %zu blocking %d net %s name %s", config->size, config->blocking,
       config->net ? config->net : "-", config->name ? config->name : "-");
  return begin(comm, ranks, id, rank);
}
int ncclCommInitRankScalable(Comm** comm, int ranks, int rank, int n, Id* ids, Config* config) {
  note("scalable %d ids last %d config %d", n, ids[n - 1].bytes[0], config != 0);
  return begin(comm, ranks, ids[0], rank);
}
int ncclCommSplit(Comm* parent, int color, int key, Comm** made, Config* config) {
  if (!good(parent)) return 4;
  note("split %d %d %d", color, key, config != 0);
  *made = 0;
  return color < 0 ? 0 : begin(made, 1, parent->id, 0);
}
int ncclCommShrink(Comm* parent, int* excluded, int n, Comm** made, Config* config, int flags) {
  if (!good(parent)) return 4;
  note("shrink %d first %d flags %d %d", n, excluded[0], flags, config != 0);
  return begin(made, 1, parent->id, 0);
}
static int end(Comm* c, const char* how) {
  if (!good(c)) return 4;
  note("%s %d", how, c->rank);
  c->dead = 1;
  return 0;
}
int ncclCommDestroy(Comm* c) { return end(c, "destroy"); }
int ncclCommAbort(Comm* c) { return end(c, "abort"); }
int ncclCommCount(Comm* c, int* n) { return good(c) ? (*n = c->ranks, 0) : 4; }
int ncclCommUserRank(Comm* c, int* n) { return good(c) ? (*n = c->rank, 0) : 4; }
int ncclCommGetAsyncError(Comm* c, int* e) { return good(c) ? (*e = c->failed, 0) : 4; }
int ncclGroupStart(void) {
  note("start");
  ++depth;
  return 0;
}
int ncclGroupEnd(void) {
  if (depth == 0) return 5;
  if (--depth == 0) {
    // All arrive before one waits: that is what a group is for.
    for (int i = 0; i < waiting; ++i) {
      int ranks = 0;
      for (int j = 0; j < waiting; ++j) ranks += !memcmp(&inits[j].id, &inits[i].id, sizeof(Id));
      if (ranks < inits[i].ranks) meet(inits[i].id, inits[i].ranks);
    }
    waiting = 0;
  }
  note("end");
  return 0;
}
int ncclAllReduce(const void* from, void* to, size_t n, int type, int op, Comm* c, void* stream) {
  (void)from, (void)to, (void)stream;
  if (!good(c)) return 4;
  if (n == 13) return c->failed = 6, 4;
  note("allreduce %zu %d %d", n, type, op);
  return 0;
}
int ncclSend(const void* from, size_t n, int type, int peer, Comm* c, void* stream) {
  (void)from, (void)n, (void)type, (void)stream;
  note("send %d>%d", c->rank, peer);
  return good(c) ? 0 : 4;
}
int ncclRecv(void* to, size_t n, int type, int peer, Comm* c, void* stream) {
  (void)to, (void)n, (void)type, (void)stream;
  note("recv %d<%d", c->rank, peer);
  return good(c) ? 0 : 4;
}
int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence, Comm* c) {
  if (!good(c)) return 4;
  *op = 7;
  if (residence == 1)
    note("premul %g", type == 7 ? (double)*(float*)scalar : *(double*)scalar);
  else
    note("premul device");
  return 0;
}
const char* ncclGetLastError(Comm* c) {
  static char copy[sizeof trace];
  (void)c;
  pthread_mutex_lock(&mutex);
  strcpy(copy, trace);
  trace[0] = 0;
  pthread_mutex_unlock(&mutex);
  return copy[0] ? copy : ".";
}
