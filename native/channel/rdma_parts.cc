// SPDX-License-Identifier: Apache-2.0
// Large parts of an RdmaConnection's stream that are written straight to where the other side wants
// them (rdma_placing.h).
#include <algorithm>

#include "channel/futex.h"
#include "channel/rdma_connection.h"
#include "channel/rdma_objects.h"

namespace sluice::channel {

namespace {

constexpr size_t kPiece = 1 << 20;
constexpr size_t kLeastOffer = 1 << 20;  // less takes no longer than asking
constexpr uint32_t kNotOffered = 8;      // parts, after one that had no place
constexpr uint32_t kLastPiece = 1u << 27;

using enum RdmaRegistrations::For;

}  // namespace

// ---- sending

bool RdmaConnection::post_placed(const Piece& piece, bool last) {
  std::lock_guard lock(post_mutex_);
  pieces_sent_.fetch_add(1);
  const uint32_t said = static_cast<uint32_t>(piece.bytes) | (last ? kLastPiece : 0);
  if (!post(Kind::kPlaced, said, piece, false, last)) return false;
  reap();
  return true;
}

// A place for the next part; where there is none ahead of time it may be asked for.
bool RdmaConnection::find_place(size_t bytes, RdmaGrant* grant) {
  if (placing_.has_grant()) return placing_.next_bytes() >= bytes && placing_.use_grant(grant);
  if (!offers_ || bytes < kLeastOffer) return false;
  if (unwanted_ > 0) return --unwanted_, false;
  {
    std::lock_guard lock(post_mutex_);
    const auto most = static_cast<uint32_t>(std::min<size_t>(bytes, RdmaPlacing::kMostBytes));
    if (!post(Kind::kOffer, most, {}, true, true)) return false;
  }
  unanswered_ = true;
  if (!await(For::kGrant) || !placing_.use_grant(grant)) return false;
  unanswered_ = false;
  if (grant->bytes == 0) unwanted_ = kNotOffered;
  return grant->bytes > 0;
}

bool RdmaConnection::place(const std::byte* from, size_t bytes, size_t* went) {
  *went = 0;
  if (!(other_.abilities & wire::kPlacesParts)) return true;
  while (bytes - *went >= RdmaPlacing::kLeast) {
    const size_t left = bytes - *went;
    // First of all: who was asked for a place for a part gets it there.
    RdmaRegistrations::Source source;
    if (!own_->find(from + *went, std::min(left, kPiece), kSending, &source)) break;
    RdmaGrant grant{};
    if (!find_place(left, &grant)) {
      own_->used(source, posted_.load());
      if (unanswered_) return false;
      break;
    }
    size_t filled = 0;
    const size_t most = std::min<size_t>(left, grant.bytes);
    if (!fill(grant, from + *went, most, source, &filled)) return false;
    *went += filled;
    if (filled < most) break;
  }
  return !broken_.load();
}

// `source`: what is registered of it at the beginning.
bool RdmaConnection::fill(const RdmaGrant& grant, const std::byte* from, size_t bytes,
                          RdmaRegistrations::Source source, size_t* went) {
  for (*went = 0; *went < bytes;) {
    if (!await(For::kPiece)) return false;
    const size_t n = std::min({source.bytes, bytes - *went, kPiece});
    if (!post_placed({from + *went, n, grant.address + *went, source.key, grant.key},
                     *went + n == bytes))
      return false;
    own_->used(source, posted_.load());
    *went += n;
    straight_bytes_.fetch_add(n);
    placed_bytes_.fetch_add(n);
    if (*went < bytes &&
        !own_->find(from + *went, std::min(bytes - *went, kPiece), kSending, &source))
      return await(For::kPiece) && post_placed({}, true);  // it ends here
  }
  return true;
}

// ---- receiving

// receive_mutex_ held. False: the other side breaks the rules.
bool RdmaConnection::take_grant(uint32_t said) {
  if (said != grants_taken_ % kRdmaGrants) return false;
  return placing_.was_granted(memory_->grant(grants_taken_++));
}

// post_mutex_ held.
bool RdmaConnection::post_grant(const RdmaGrant& grant) {
  const auto place = static_cast<uint32_t>(grants_given_ % kRdmaGrants);
  RdmaGrant& own = memory_->own_grant(place);
  own = grant;
  ++grants_given_;
  return post(
      Kind::kGrant, place,
      {&own, sizeof own, other_.area + RdmaMemory::grant_offset(place), memory_->stage_key()},
      false, true);
}

bool RdmaConnection::grant(std::byte* at, size_t bytes) {
  RdmaRegistrations::Source target;
  if (!(other_.abilities & wire::kPlacesParts) || broken_.load() ||
      !own_->find(at, bytes, kPlacing, &target))
    return false;
  std::lock_guard lock(post_mutex_);
  reap();
  return posted_.load() - retired_.load() < kSends - kOfCredits / 2 &&
         placing_.granted(at, target.bytes) &&
         post_grant(
             {reinterpret_cast<uint64_t>(at), target.key, static_cast<uint32_t>(target.bytes)});
}

// By whoever reads: with where it reads to, or nowhere. False: the connection is lost.
bool RdmaConnection::answer_offer(const iovec* parts, int count) {
  while (count > 1 && parts->iov_len == 0) ++parts, --count;
  auto* const at = static_cast<std::byte*>(parts->iov_base);
  const size_t most = std::min<size_t>(parts->iov_len, placing_.offer(consumed_.load()));
  RdmaRegistrations::Source target;
  RdmaGrant grant{};
  const bool has = most >= RdmaPlacing::kLeast && own_->find(at, most, kPlacing, &target) &&
                   target.bytes >= RdmaPlacing::kLeast;
  std::lock_guard lock(post_mutex_);
  if (has && placing_.granted(at, target.bytes))
    grant = {reinterpret_cast<uint64_t>(at), target.key, static_cast<uint32_t>(target.bytes)};
  placing_.answered();
  return post_grant(grant);
}

// Whoever reads may be about to grant a place, and reads on over another connection then.
void RdmaConnection::end_placing() {
  if (!placing_.end()) return;
  fail("its stream was ended");
  stop();
}

}  // namespace sluice::channel
