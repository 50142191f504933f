// SPDX-License-Identifier: Apache-2.0
// What the RDMA device itself does, with nothing of Sluice's but its loading of libibverbs: round
// trips of 64-byte writes between two processes, each of which looks at its own memory for the
// other's, and pipelined writes of one size. The floors of tests/rdma/figures.py.
//
//     rdma_floor ROUND_TRIPS MEBIBYTES     prints the median in microseconds, then GiB/s
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "channel/futex.h"
#include "channel/rdma_device.h"
#include "channel/rdma_verbs.h"

namespace {

using namespace sluice::channel;

constexpr size_t kBytes = 4 << 20, kPiece = 128 << 10, kSmall = 64;
constexpr int kUnderWay = 8;

struct Place {
  std::atomic<uint32_t> ready, queue_pair, key;
  std::atomic<uint64_t> address;
};
struct Meeting {
  Place places[2];
  std::atomic<uint32_t> done;
};

void stop(const char* what) {
  std::fprintf(stderr, "rdma_floor: %s failed\n", what);
  std::exit(1);
}

struct End {
  const Verbs& v;
  ibv_mr* mr;
  ibv_cq* cq;
  ibv_qp* qp;
  std::byte* memory;
  uint64_t to = 0;
  uint32_t to_key = 0;

  explicit End(const RdmaDevice& d) : v(d.verbs()) {
    memory = static_cast<std::byte*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ibv_pd* pd = v.ibv_alloc_pd(d.context());
    mr = (v.ibv_reg_mr)(pd, memory, kBytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    cq = v.ibv_create_cq(d.context(), 64, nullptr, nullptr, 0);
    ibv_qp_init_attr a{};
    a.send_cq = a.recv_cq = cq;
    a.qp_type = IBV_QPT_RC;
    a.cap = {32, 1, 1, 1, kSmall};
    qp = v.ibv_create_qp(pd, &a);
    if (!mr || !qp) stop("making an end");
  }
  void connect(const RdmaDevice& d, Place& mine, Place& other) {
    mine.address = reinterpret_cast<uintptr_t>(memory);
    mine.key = mr->rkey;
    mine.queue_pair = qp->qp_num;
    mine.ready = 1;
    while (!other.ready) sched_yield();
    to = other.address;
    to_key = other.key;
    ibv_qp_attr q{};
    q.qp_state = IBV_QPS_INIT;
    q.port_num = d.port();
    q.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    v.ibv_modify_qp(qp, &q, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    q = {};
    q.qp_state = IBV_QPS_RTR;
    q.path_mtu = static_cast<ibv_mtu>(d.mtu());
    q.dest_qp_num = other.queue_pair;
    q.min_rnr_timer = 12;
    q.ah_attr.is_global = 1;
    q.ah_attr.port_num = d.port();
    std::memcpy(q.ah_attr.grh.dgid.raw, d.gid(), 16);
    q.ah_attr.grh.sgid_index = d.gid_index();
    q.ah_attr.grh.hop_limit = 64;
    v.ibv_modify_qp(qp, &q,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    q = {};
    q.qp_state = IBV_QPS_RTS;
    q.timeout = 16;
    q.retry_cnt = q.rnr_retry = 7;
    if (v.ibv_modify_qp(qp, &q,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) != 0)
      stop("connecting");
    mine.ready = 2;
    while (other.ready != 2) sched_yield();
  }
  void write(size_t at, size_t n, unsigned flags) {
    ibv_sge s{reinterpret_cast<uintptr_t>(memory) + at, static_cast<uint32_t>(n), mr->lkey};
    ibv_send_wr w{}, *bad;
    w.sg_list = &s;
    w.num_sge = 1;
    w.opcode = IBV_WR_RDMA_WRITE;
    w.send_flags = flags | IBV_SEND_SIGNALED;
    w.wr.rdma = {to + at, to_key};
    if (ibv_post_send(qp, &w, &bad) != 0) stop("posting");
  }
  bool reap() {
    ibv_wc c;
    const int n = ibv_poll_cq(cq, 1, &c);
    if (n > 0 && c.status != IBV_WC_SUCCESS) stop("a write");
    return n > 0;
  }
};

void ping_pong(End& e, bool first, int rounds, std::vector<double>* took) {
  auto* word = reinterpret_cast<std::atomic<uint32_t>*>(e.memory + 4096);  // the other writes here
  uint32_t sent = 0;
  const auto say = [&](uint32_t n) {
    std::memcpy(e.memory, &n, sizeof n);
    e.to += 4096;
    e.write(0, kSmall, IBV_SEND_INLINE);
    e.to -= 4096;
    ++sent;
    while (e.reap()) --sent;
  };
  for (int i = 1; i <= rounds; ++i) {
    const uint64_t begin = now_ns();
    if (first) say(static_cast<uint32_t>(i));
    while (word->load(std::memory_order_acquire) != static_cast<uint32_t>(i)) spin_round();
    if (!first) say(static_cast<uint32_t>(i));
    if (first) took->push_back(static_cast<double>(now_ns() - begin) / 1000);
  }
  while (sent > 0)
    if (e.reap()) --sent;
}

double pipelined(End& e, size_t all) {
  const uint64_t begin = now_ns();
  size_t at = 0, left = all;
  int under_way = 0;
  while (left > 0 || under_way > 0) {
    while (left > 0 && under_way < kUnderWay) {
      e.write(at, kPiece, 0);
      at = (at + kPiece) % kBytes;
      left -= kPiece;
      ++under_way;
    }
    if (e.reap())
      --under_way;
    else
      spin_round();
  }
  return static_cast<double>(all) / (1 << 30) / (static_cast<double>(now_ns() - begin) / 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 1000;
  const size_t all = (argc > 2 ? static_cast<size_t>(std::atoi(argv[2])) : 32) << 20;
  auto* m = static_cast<Meeting*>(
      mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const pid_t child = fork();
  const bool first = child != 0;
  std::string error;
  const auto device = RdmaDevice::open({}, &error);
  if (!device) {
    std::fprintf(stderr, "rdma_floor: %s\n", error.c_str());
    return 1;
  }
  End e(*device);
  e.connect(*device, m->places[first ? 0 : 1], m->places[first ? 1 : 0]);
  std::vector<double> took;
  ping_pong(e, first, rounds, &took);
  if (!first) {
    while (!m->done) usleep(1000);
    _exit(0);
  }
  const double speed = pipelined(e, all);
  m->done = 1;
  waitpid(child, nullptr, 0);
  std::sort(took.begin(), took.end());
  std::printf("%.2f %.5f\n", took[took.size() / 2], speed);
  return 0;
}
