// SPDX-License-Identifier: Apache-2.0
// Where memory pools have their chunks from: a vGPU's memory, or pinned memory of the host.
#pragma once

#include <cstdint>

namespace sluice::client {

class PoolMemory {
 public:
  enum class Result { kDone, kOutOfMemory, kUnknown, kSessionLost };
  virtual ~PoolMemory() = default;

  // Whole slabs for somebody who divides them himself. give() once nothing on the device uses them.
  virtual Result take(uint64_t bytes, uint64_t* address) = 0;
  virtual Result give(uint64_t address) = 0;
};

}  // namespace sluice::client
