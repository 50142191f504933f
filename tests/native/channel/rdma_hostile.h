// SPDX-License-Identifier: Apache-2.0
// A hostile other side of an RDMA connection: an end whose queue pair does what it likes.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "channel/futex.h"
#include "channel/rdma_connection.h"
#include "channel/rdma_verbs.h"

namespace sluice::channel {

class HostileEnd {
 public:
  explicit HostileEnd(std::string* error) {
    device_ = RdmaDevice::open({}, error);
    if (!device_) return;
    const Verbs& v = device_->verbs();
    domain_ = v.ibv_alloc_pd(device_->context());
    memory_.resize((1 << 20) + (64 << 10));  // a ring, and the page before it
    region_ = (v.ibv_reg_mr)(domain_, memory_.data(), memory_.size(),
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    queue_ = v.ibv_create_cq(device_->context(), 1024, nullptr, nullptr, 0);
    ibv_qp_init_attr a{};
    heard_ = v.ibv_create_cq(device_->context(), 512, nullptr, nullptr, 0);
    a.send_cq = queue_;
    a.recv_cq = heard_;
    a.qp_type = IBV_QPT_RC;
    a.cap.max_send_wr = 512;
    a.cap.max_recv_wr = 512;
    a.cap.max_send_sge = a.cap.max_recv_sge = 1;
    pair_ = v.ibv_create_qp(domain_, &a);
    ibv_qp_attr q{};
    q.qp_state = IBV_QPS_INIT;
    q.port_num = device_->port();
    q.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    v.ibv_modify_qp(pair_, &q,
                    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  }
  ~HostileEnd() {
    if (!device_) return;
    const Verbs& v = device_->verbs();
    v.ibv_destroy_qp(pair_);
    v.ibv_destroy_cq(queue_);
    v.ibv_destroy_cq(heard_);
    v.ibv_dereg_mr(region_);
    v.ibv_dealloc_pd(domain_);
  }
  bool there() const { return device_ != nullptr; }
  // The victim is connected to it, and it to the victim, which may say so many words to it.
  void meet(RdmaConnection& victim, uint64_t abilities = 0, int words = 256) {
    wire::RdmaTerms mine{};
    mine.queue_pair = pair_->qp_num;
    mine.path_mtu = device_->mtu();
    std::memcpy(mine.gid, device_->gid(), sizeof mine.gid);
    mine.ring_bytes = 1 << 20;
    mine.receives = 256;
    mine.abilities = abilities;
    mine.area = reinterpret_cast<uint64_t>(memory_.data());
    mine.area_key = region_->rkey;
    std::string error;
    ASSERT_TRUE(victim.connect(mine, &error)) << error;
    other_ = victim.terms();
    const Verbs& v = device_->verbs();
    for (int i = 0; i < words; ++i) {
      ibv_recv_wr wr{}, *bad;
      ASSERT_EQ(0, ibv_post_recv(pair_, &wr, &bad));
    }
    ibv_qp_attr q{};
    q.qp_state = IBV_QPS_RTR;
    q.path_mtu = static_cast<ibv_mtu>(device_->mtu());
    q.dest_qp_num = other_.queue_pair;
    q.rq_psn = other_.first_packet;
    q.max_dest_rd_atomic = 1;
    q.min_rnr_timer = 12;
    q.ah_attr.is_global = 1;
    q.ah_attr.port_num = device_->port();
    std::memcpy(q.ah_attr.grh.dgid.raw, other_.gid, sizeof other_.gid);
    q.ah_attr.grh.sgid_index = device_->gid_index();
    q.ah_attr.grh.hop_limit = 64;
    ASSERT_EQ(
        0, v.ibv_modify_qp(pair_, &q,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                               IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    q = {};
    q.qp_state = IBV_QPS_RTS;
    q.timeout = 14;
    q.retry_cnt = 6;
    q.rnr_retry = 1;  // it does not wait for ever
    q.max_rd_atomic = 1;
    ASSERT_EQ(0, v.ibv_modify_qp(pair_, &q,
                                 IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                     IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
  }
  // What comes of it.
  ibv_wc_status attack(ibv_wr_opcode opcode, uint64_t to, uint32_t key, size_t n, uint32_t said,
                       bool solicited = true) {
    ibv_sge piece{reinterpret_cast<uintptr_t>(memory_.data()), static_cast<uint32_t>(n),
                  region_->lkey};
    ibv_send_wr wr{}, *bad;
    wr.sg_list = &piece;
    wr.num_sge = n > 0 ? 1 : 0;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED | (solicited ? IBV_SEND_SOLICITED : 0);
    wr.imm_data = htonl(said);
    wr.wr.rdma.remote_addr = to;
    wr.wr.rdma.rkey = key;
    if (ibv_post_send(pair_, &wr, &bad) != 0) return IBV_WC_GENERAL_ERR;
    ibv_wc completion{};
    const uint64_t until = now_ns() + 20'000'000'000;
    while (ibv_poll_cq(queue_, 1, &completion) == 0) {
      if (now_ns() > until) return IBV_WC_FATAL_ERR;
      sleep_ns(100'000);
    }
    return completion.status;
  }
  const wire::RdmaTerms& other() const { return other_; }
  // What it was granted: all that the victim has written, into the grants' first place.
  RdmaGrant granted() {
    const uint64_t until = now_ns() + 10'000'000'000;
    RdmaGrant grant{};
    do {
      sleep_ns(1'000'000);
      std::memcpy(&grant, memory_.data() + RdmaMemory::grant_offset(0), sizeof grant);
    } while (grant.bytes == 0 && now_ns() < until);
    return grant;
  }
  std::vector<char>& memory() { return memory_; }

 private:
  std::shared_ptr<RdmaDevice> device_;
  ibv_pd* domain_ = nullptr;
  ibv_mr* region_ = nullptr;
  ibv_cq *queue_ = nullptr, *heard_ = nullptr;
  ibv_qp* pair_ = nullptr;
  std::vector<char> memory_;
  wire::RdmaTerms other_{};
};

#define NEEDS_HOSTILE(hostile, victim)                                            \
  std::string error;                                                              \
  HostileEnd hostile(&error);                                                     \
  if (!(hostile).there()) GTEST_SKIP() << "no RDMA here: " << error;              \
  const auto victim = RdmaConnection::make(RdmaDevice::open({}, &error), &error); \
  ASSERT_TRUE(victim) << error;                                                   \
  (hostile).meet(*victim)

inline ssize_t read_some(RdmaConnection& end) {
  char to[256];
  const iovec part{to, sizeof to};
  return end.read(&part, 1);
}

}  // namespace sluice::channel
