// SPDX-License-Identifier: Apache-2.0
// The memory of one end of an RDMA connection: mapped and registered here, for this connection
// alone, and never a program's own. The area is what the other side may write into: a page of
// credit words, then the ring of what it sends. The stage is what this side sends from; nobody else
// reaches it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

struct ibv_mr;
struct ibv_pd;

namespace sluice::channel {

struct RdmaGrant;
struct Verbs;

// How far the other side has come with what was sent to it. Each stands in a place of its own, in
// turn, and is read when its announcement has come: nothing writes there at that time.
struct RdmaCredit {
  std::atomic<uint64_t> consumed;  // bytes
  std::atomic<uint64_t> pieces;
};
inline constexpr size_t kRdmaCredits = 64;
inline constexpr size_t kCreditPage = 4096;  // then the ring begins
// Behind the credits, in turn as well.
inline constexpr size_t kRdmaGrants = 64;

class RdmaMemory {
 public:
  // nullptr with `error`, which says what to do where too little memory may be locked. Takes less
  // than kMostRing where no more is to be had.
  static std::unique_ptr<RdmaMemory> make(const Verbs& verbs, ibv_pd* domain, std::string* error);
  ~RdmaMemory();
  RdmaMemory(const RdmaMemory&) = delete;

  static constexpr size_t kLeastRing = 64 << 10, kMostRing = 2 << 20;

  size_t ring_bytes() const { return ring_bytes_; }
  std::byte* area() const { return memory_; }
  uint32_t area_key() const;  // for the other side
  const RdmaCredit& credit(size_t place) const;
  // A copy: the other side may write there at any time.
  RdmaGrant grant(size_t place) const;
  static size_t grant_offset(size_t place);  // in the area
  const std::byte* ring() const;
  // As large as the ring; the credits that this side sends lie before it.
  std::byte* stage() const;
  RdmaCredit& own_credit(size_t place) const;
  RdmaGrant& own_grant(size_t place) const;
  uint32_t stage_key() const;  // for this side's adapter

 private:
  RdmaMemory(const Verbs& verbs, std::byte* memory, size_t ring_bytes)
      : verbs_(verbs), memory_(memory), ring_bytes_(ring_bytes) {}
  size_t half() const;

  const Verbs& verbs_;
  std::byte* const memory_;
  const size_t ring_bytes_;
  ibv_mr* area_ = nullptr;
  ibv_mr* stage_ = nullptr;
};

}  // namespace sluice::channel
