// SPDX-License-Identifier: Apache-2.0
// Which handler answers which command. Each file of handlers registers its own by one function; the
// generated ones come from the registry.
#pragma once

#include <array>

#include "worker/session.h"

namespace sluice::worker {

struct Command {
  wire::FrameHeader header;
  std::span<const std::byte> body;
  BulkFrame* bulk = nullptr;  // that the body lies in, if it does
  bool answered() const { return header.lane != wire::kNoLane; }
};

struct Handler {
  const char* name = nullptr;
  void (*run)(Session&, const Command&, Reply&) = nullptr;
  // kOnly: the client must wait for it; kNever: it must not; kEither: as the frame says.
  enum class Answered { kOnly, kNever, kEither } answered = Answered::kNever;
  // An answered call that may take as long as the GPU's work: others must be able to pass it.
  bool may_block = false;
  // Whether what it would wait for has happened already, as far as that can be told at once.
  bool (*done)(Session&, const Command&) = nullptr;
  // How much memory of which vGPU it takes, if all is well with it: it waits until it may.
  uint64_t (*takes)(Session&, const Command&, uint32_t* device) = nullptr;
};

using DispatchTable = std::array<Handler, 4096>;

void add_memory_handlers(DispatchTable&);
void add_virtual_memory_handlers(DispatchTable&);
void add_copy_handlers(DispatchTable&);
void add_array_handlers(DispatchTable&);
void add_array_copy_handlers(DispatchTable&);
void add_texture_handlers(DispatchTable&);
void add_code_handlers(DispatchTable&);
void add_launch_handlers(DispatchTable&);
void add_limit_handlers(DispatchTable&);
void add_link_handlers(DispatchTable&);
void add_stream_handlers(DispatchTable&);
void add_event_handlers(DispatchTable&);
void add_peer_handlers(DispatchTable&);
void add_shared_memory_handlers(DispatchTable&);
void add_shared_event_handlers(DispatchTable&);
void add_cluster_handlers(DispatchTable&);
void add_capture_handlers(DispatchTable&);
void add_graph_handlers(DispatchTable&);
void add_graph_node_handlers(DispatchTable&);
void add_attribute_handlers(DispatchTable&);
void add_graph_copy_handlers(DispatchTable&);
void add_signal_handlers(DispatchTable&);
void add_shadow_handlers(DispatchTable&);
void add_tensor_map_handlers(DispatchTable&);
void add_green_context_handlers(DispatchTable&);
void add_code_names_handlers(DispatchTable&);
void add_atomics_handlers(DispatchTable&);
void add_generated_handlers(DispatchTable&);
void add_library_handlers(DispatchTable&);
void add_merging_handlers(DispatchTable&);
void add_node_link_handlers(DispatchTable&);
void add_node_nvml_handlers(DispatchTable&);
void add_cudnn_backend_handlers(DispatchTable&);
void add_cudnn_ctc_handlers(DispatchTable&);
void add_curand_handlers(DispatchTable&);
void add_nccl_handlers(DispatchTable&);
void add_profile_handlers(DispatchTable&);

const DispatchTable& dispatch_table();

}  // namespace sluice::worker
