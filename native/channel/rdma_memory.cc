// SPDX-License-Identifier: Apache-2.0
#include "channel/rdma_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "channel/rdma_placing.h"
#include "channel/rdma_verbs.h"

namespace sluice::channel {

namespace {

static_assert(sizeof(RdmaCredit) == 16 && sizeof(RdmaGrant) == 16 &&
              kRdmaCredits * sizeof(RdmaCredit) + kRdmaGrants * sizeof(RdmaGrant) <= kCreditPage);

std::string why_not_registered(int reason) {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  std::string text = std::string("memory cannot be registered with the RDMA device (") +
                     std::strerror(reason) + ")";
  if (reason == ENOMEM || reason == EAGAIN)
    text += ": " + std::to_string(limit.rlim_cur >> 10) +
            " KiB may be locked here; raise that to 8 MiB or more (ulimit -l, memlock in "
            "/etc/security/limits.conf, LimitMEMLOCK= of a unit, --ulimit memlock of a container)";
  return text;
}

}  // namespace

size_t RdmaMemory::half() const { return kCreditPage + ring_bytes_; }

std::unique_ptr<RdmaMemory> RdmaMemory::make(const Verbs& verbs, ibv_pd* domain,
                                             std::string* error) {
  for (size_t ring = kMostRing;; ring /= 2) {
    const size_t all = 2 * (kCreditPage + ring);
    void* at = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
      *error = std::string("no memory for an RDMA connection: ") + std::strerror(errno);
      return nullptr;
    }
    // A child of fork() does without: it would share pages that the adapter writes into.
    madvise(at, all, MADV_DONTFORK);
    std::unique_ptr<RdmaMemory> made(new RdmaMemory(verbs, static_cast<std::byte*>(at), ring));
    made->area_ = (verbs.ibv_reg_mr)(domain, made->memory_, made->half(),
                                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (made->area_)
      made->stage_ = (verbs.ibv_reg_mr)(domain, made->memory_ + made->half(), made->half(), 0);
    if (made->stage_) return made;
    const int reason = errno;
    if (ring > kLeastRing && (reason == ENOMEM || reason == EAGAIN)) continue;
    *error = why_not_registered(reason);
    return nullptr;
  }
}

RdmaMemory::~RdmaMemory() {
  if (stage_) verbs_.ibv_dereg_mr(stage_);
  if (area_) verbs_.ibv_dereg_mr(area_);
  munmap(memory_, 2 * half());
}

uint32_t RdmaMemory::area_key() const { return area_->rkey; }
uint32_t RdmaMemory::stage_key() const { return stage_->lkey; }
const RdmaCredit& RdmaMemory::credit(size_t place) const {
  return reinterpret_cast<const RdmaCredit*>(memory_)[place % kRdmaCredits];
}
size_t RdmaMemory::grant_offset(size_t place) {
  return kRdmaCredits * sizeof(RdmaCredit) + place % kRdmaGrants * sizeof(RdmaGrant);
}
RdmaGrant RdmaMemory::grant(size_t place) const {
  RdmaGrant copy;
  std::memcpy(&copy, memory_ + grant_offset(place), sizeof copy);
  return copy;
}
RdmaGrant& RdmaMemory::own_grant(size_t place) const {
  return *reinterpret_cast<RdmaGrant*>(memory_ + half() + grant_offset(place));
}
const std::byte* RdmaMemory::ring() const { return memory_ + kCreditPage; }
std::byte* RdmaMemory::stage() const { return memory_ + half() + kCreditPage; }
RdmaCredit& RdmaMemory::own_credit(size_t place) const {
  return reinterpret_cast<RdmaCredit*>(memory_ + half())[place % kRdmaCredits];
}

}  // namespace sluice::channel
