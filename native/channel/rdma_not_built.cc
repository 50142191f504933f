// SPDX-License-Identifier: Apache-2.0
// In the place of the RDMA channel where rdma-core's headers were missing at the build: says so.
#include <algorithm>
#include <cstring>

#include "channel/rdma_opening.h"
#include "wire/frame.h"

namespace sluice::channel {

namespace {
constexpr const char* kWhy =
    "this build has no RDMA: build it again where rdma-core's headers are (libibverbs-dev)";
constexpr uint32_t kNotSupported = 801;  // CUresult
}  // namespace

class RdmaConnection {};

bool read_rdma_choice(const std::string&, RdmaChoice*) { return true; }

bool RdmaDevice::any(std::string* why_not) {
  *why_not = kWhy;
  return false;
}

RdmaDevice::~RdmaDevice() = default;
bool RdmaDevice::is_there() const { return false; }

std::shared_ptr<RdmaDevice> RdmaDevice::open(const RdmaChoice&, std::string* error) {
  *error = kWhy;
  return nullptr;
}

wire::RdmaTerms no_rdma(const std::string& why) {
  wire::RdmaTerms terms{};
  terms.header = {sizeof terms, wire::kRdmaOffer, wire::kNoLane, 0, 0};
  terms.status = kNotSupported;
  std::memcpy(terms.message, why.data(), std::min(why.size(), sizeof terms.message - 1));
  return terms;
}

wire::RdmaTerms offer_rdma(const std::shared_ptr<RdmaDevice>&, const std::string&,
                           std::shared_ptr<RdmaConnection>* end) {
  end->reset();
  return no_rdma(kWhy);
}

bool say_rdma_offer(Stream*, const wire::RdmaTerms&) { return false; }
bool hear_rdma_offer(Stream*, int, wire::RdmaTerms*) { return false; }
void remove_rdma_offer(std::vector<std::byte>*) {}

bool settle_rdma_offer(Stream*, int, std::shared_ptr<RdmaConnection>*, std::string*) {
  return true;  // nothing was offered
}

bool find_rdma_offer(std::span<const std::byte>, wire::RdmaTerms*) { return false; }

bool answer_rdma_offer(Stream*, int, const wire::RdmaTerms&, const std::shared_ptr<RdmaDevice>&,
                       const std::string&, std::shared_ptr<RdmaConnection>* end, std::string* why) {
  end->reset();
  *why = kWhy;
  return true;
}

std::unique_ptr<Stream> rdma_stream(int, std::shared_ptr<RdmaConnection>, RdmaLook*) {
  return nullptr;
}
int rdma_descriptor(const RdmaConnection&) { return -1; }
void rdma_arm(RdmaConnection*) {}
void rdma_flush(RdmaConnection*) {}
bool rdma_grant(RdmaConnection*, std::byte*, size_t) { return false; }
std::string describe_bulk(const RdmaConnection&) { return ""; }
std::string describe_rdma(const RdmaConnection&) { return kWhy; }

}  // namespace sluice::channel
