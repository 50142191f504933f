// SPDX-License-Identifier: Apache-2.0
// A vGPU of the session: what the node said of it, its memory, and what is current on it. Made when
// the session opens (core/open_device.cc), and there until the process ends.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "client/core/channel.h"
#include "client/core/device_memory.h"
#include "client/core/graph_memory.h"
#include "client/core/memory_pools.h"
#include "client/core/work_account.h"
#include "client/objects/array.h"
#include "client/objects/stream.h"
#include "wire/array_shape.h"
#include "wire/bodies/commands.h"

namespace sluice::client {

struct Device {
  uint32_t index = 0;
  Channel::Place place;  // its node, and what the worker there calls it
  wire::DeviceRecord record{};
  // FrameHeader::context of commands about it.
  uint32_t context() const { return index + 1; }
  DeviceMemory memory;
  MemoryPools pools;
  GraphMemory graph_memory;
  uint64_t standard_pool = 0;             // its handle, minted at open
  std::atomic<uint64_t> current_pool{0};  // what cuMemAllocAsync takes from
  uint64_t primary = 0;                   // CUcontext of the primary context, minted at open
  std::atomic<uint32_t> primary_uses{0};
  std::atomic<unsigned> primary_flags{0};
  Stream legacy;
  Stream gone;  // stands for streams that were destroyed
  // Its streams for other nodes' work (driver/across_nodes.cc), and how often one was taken.
  std::array<uint64_t, 4> crossing{};
  uint32_t crossings = 0;
  std::atomic<uint64_t> peers_enabled{0};  // bit i: cuCtxEnablePeerAccess of the device i
  std::atomic<uint64_t> pool_users{0};     // bit i: a pool here was opened to the device i
  // Bit i: work of the device i may touch memory of this window. Bits are never cleared: all that
  // one costs is a look at whether that device is idle.
  std::atomic<uint64_t> users{0};
  // Arrays and textures: what changes under this mutex reaches the worker in the same order.
  std::mutex arrays_mutex;
  wire::ArrayCharges array_charges;
  std::map<std::pair<bool, uint64_t>, Texture> textures;  // by surface, number
  std::atomic<uint32_t> host_functions{0};                // on any of its streams, not yet run
  // Local memory of each thread for which the node has been asked, or ~0 where nobody counts it.
  std::atomic<uint64_t> thread_bytes{0};

  // For who runs out of memory: gives back what is only kept. Whether there was anything.
  bool make_room(bool wait) {
    const bool some = pools.make_room(wait);
    return graph_memory.trim() || some;
  }

  DeviceWork work;
};

// Whether two vGPUs are slices of one GPU.
inline bool same_gpu(const Device& a, const Device& b) {
  return std::memcmp(a.record.physical_uuid, b.record.physical_uuid,
                     sizeof a.record.physical_uuid) == 0;
}

}  // namespace sluice::client
