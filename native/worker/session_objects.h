// SPDX-License-Identifier: Apache-2.0
// What a session's client has made, by kind: the record that the worker keeps of an object, and the
// table from the client's minted ids to records (objects.h). Handlers look up what a command names
// here and nowhere else, so that nothing of another session can be named. Tables may be looked at
// by any thread; what is marked as the leader's is for the thread that takes frames in order
// (executor.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "wire/array_shape.h"
#include "wire/protocol.h"
#include "worker/driver.h"
#include "worker/graph.h"
#include "worker/objects.h"

namespace sluice::worker {

struct StreamObject {
  CUstream handle = nullptr;
  uint32_t device = 0;
  uint64_t green = 0;  // the green context that it runs in
};
struct GreenObject {
  CUgreenCtx handle = nullptr;
  CUcontext context = nullptr;  // what it is as a context
  uint32_t device = 0;
};
struct CodeObject {
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  uint32_t device = 0;
  bool has_ptx = false;                // what the driver asks of it may compile
  bool module_kind = true;             // else a library, which belongs to no context
  uint64_t of = 0;                     // the library whose module it is, if it is one's
  uint64_t bytes = 0, data_bytes = 0;  // charged for it (worker/code_charge.h)
};
struct AllocationObject {
  CUmemGenericAllocationHandle handle = 0;
  uint32_t device = 0;
  uint64_t bytes = 0;
  bool shared = false;  // another session's, and charged there
};
// An event that other processes may record and wait for (worker/shared_event.cc).
struct SharedEventObject {
  class EventRegion* region = nullptr;
  uint32_t index = 0;
};
struct FunctionObject {
  CUfunction function = nullptr;  // or a kernel, cast
  CUkernel kernel = nullptr;
  uint64_t code = 0;  // the module or library that it came from
  uint32_t param_bytes = 0;
  uint32_t local_bytes = 0;  // of each thread
  bool settled = false;      // was launched: what the driver took for it is charged
};

struct ArrayObject {
  CUarray array = nullptr;
  CUmipmappedArray mipmapped = nullptr;
  uint32_t device = 0;
  wire::ArrayShape shape;
  uint64_t parent = 0;  // the mipmapped array that it is a level of
};

// A part of a GPU, which clients name by number (worker/green_context.cc).
struct KnownResource {
  CUdevResource resource;
  uint32_t device;
};

struct SessionObjects {
  ObjectTable<StreamObject> streams{wire::HandleKind::kStream};
  ObjectTable<CUevent> events{wire::HandleKind::kEvent};
  ObjectTable<CodeObject> modules{wire::HandleKind::kModule};
  ObjectTable<CodeObject> libraries{wire::HandleKind::kLibrary};
  ObjectTable<std::shared_ptr<struct LinkState>> links{wire::HandleKind::kLink};
  ObjectTable<FunctionObject> functions{wire::HandleKind::kFunction};
  ObjectTable<FunctionObject> kernels{wire::HandleKind::kKernel};
  ObjectTable<AllocationObject> allocations{wire::HandleKind::kAllocation};
  ObjectTable<SharedEventObject> shared_events{wire::HandleKind::kEvent, wire::kMaxSharedEvents};
  ObjectTable<ArrayObject> arrays{wire::HandleKind::kArray};
  ObjectTable<ArrayObject> mipmapped_arrays{wire::HandleKind::kMipmappedArray};
  ObjectTable<GreenObject> green_contexts{wire::HandleKind::kGreenContext};
  ObjectTable<GraphRef> graphs{wire::HandleKind::kGraph};
  ObjectTable<GraphExecObject> graph_execs{wire::HandleKind::kGraphExec};

  // The leader's alone, as all that follow.
  uint64_t graph_nodes = 0;  // of all graphs and executable graphs (worker/graph_size.h)
  std::vector<KnownResource> dev_resources;
  std::vector<CUdevResourceDesc> dev_descriptions;
  // Textures and surfaces by vGPU, kind and the driver's number.
  std::set<std::tuple<uint32_t, bool, uint64_t>> textures;
  // How often each allocation is mapped.
  std::map<uint64_t, uint32_t> times_mapped;
};

}  // namespace sluice::worker
