// SPDX-License-Identifier: Apache-2.0
// What crosses nodes in a session whose vGPUs are of several (core/nodes_channel.h): waits of one
// node's streams for another's events, copies between their memory, and what cannot be had there.
// Commands of two nodes have no order of their own. Where the nodes are connected to each other
// (core/node_links.h) their streams wait for one another, and copies go straight; where not, the
// client makes the order: it waits where native CUDA would have a GPU wait, and copies go by way of
// it. Called where a session spans nodes only.
#pragma once

#include <cstdint>
#include <optional>

#include "abi/cuda_driver.h"
#include "client/driver/transfer.h"

namespace sluice::client {

class Session;
struct Event;
struct Stream;

// As cuStreamWaitEvent, for an event of another node's device. Without a link it returns when the
// event is done, so that whatever the stream is given from now on comes after it.
CUresult wait_for_other_node(Session* s, Stream* stream, CUevent handle, Event* event);

// A copy whose ends are not all on the node of its stream, in stream order. Straight between the
// two nodes, or, where they have no link, neither is the stream's or one end is the host's, by way
// of this process: then it is done (or in order on that stream) when it returns. `*_device`:
// whether the end is a device address. Nothing: it is no such copy.
std::optional<CUresult> copy_across_nodes(Session* s, Stream* stream, uint64_t to,
                                          uint64_t to_pitch, bool to_device, uint64_t from,
                                          uint64_t from_pitch, bool from_device, Rect r);
// The stream that is to do work of `stream` on memory at `address`: itself, or one of that memory's
// node, once all before it is done. Whoever gives work to another calls synchronize_stream() on it.
CUresult stream_for_memory(Session* s, Stream* stream, uint64_t address, uint64_t bytes,
                           Stream** where);

// Whether memory and events of the session can be opened by other processes; says once why not.
bool can_share(Session* s);

}  // namespace sluice::client
