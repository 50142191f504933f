// SPDX-License-Identifier: Apache-2.0
// The completion page, as the GPU sees it: words (marks) that the client reads and the session's
// streams write. Where client and worker share no memory there is none, and no mark is valid.
#pragma once

#include <cstdint>
#include <string>

#include "worker/driver.h"
#include "worker/endpoint.h"

namespace sluice::worker {

class CompletionPage {
 public:
  // Makes the endpoint's page known to the driver; a context is current. False with `error`.
  bool share(const Driver& driver, Endpoint& endpoint, std::string* error);
  bool valid(uint32_t mark) const { return mark < count_; }
  CUdeviceptr address(uint32_t mark) const { return device_ + mark * sizeof(uint64_t); }

 private:
  CUdeviceptr device_ = 0;
  uint32_t count_ = 0;
};

}  // namespace sluice::worker
