// SPDX-License-Identifier: Apache-2.0
// NCCL's groups. What a thread calls between ncclGroupStart and ncclGroupEnd is collected here and
// sent as one command, because in NCCL a group belongs to a thread: one thread of the worker runs
// it. A call that makes a communicator is a group of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/library/key.h"

namespace sluice::client {
struct Stream;
}

namespace sluice::client::library {

struct GroupedCall {
  uint16_t function = 0;  // 0: `body` is a wire::NcclMake
  uint32_t context = 0;
  std::vector<std::byte> body;
  Stream* work = nullptr;
  uint64_t ended = 0;       // the object that it destroys, retired already
  uint64_t made = 0;        // the object that it makes
  void** target = nullptr;  // where the application wants that
};

// Whether the calling thread has a group open.
bool group_is_open();
// `learnable`: once it has succeeded, the same call need not be waited for.
void group_add(GroupedCall call, const Key& key, bool learnable);
// The group as a whole will answer `status`.
void group_fail(int32_t status);

}  // namespace sluice::client::library
