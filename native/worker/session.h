// SPDX-License-Identifier: Apache-2.0
// One session: the vGPUs that a grant gives, the objects that its client made, and whatever else a
// command may name or use up, each a part with a header of its own. Handlers (memory.cc, copy.cc,
// code.cc, launch.cc, stream.cc, event.cc and the generated ones) check everything that a command
// says against it. A command that does not fit ends the session by reject(); nothing else of the
// worker's does what a client says.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "wire/bodies/commands.h"
#include "wire/frame.h"
#include "worker/arena_view.h"
#include "worker/bounce.h"
#include "worker/bulk.h"
#include "worker/captures.h"
#include "worker/code_cache.h"
#include "worker/collectives.h"
#include "worker/compiler.h"
#include "worker/completion_page.h"
#include "worker/context_ties.h"
#include "worker/cut.h"
#include "worker/decoder.h"
#include "worker/driver.h"
#include "worker/endpoint.h"
#include "worker/global_ranges.h"
#include "worker/grant_ledger.h"
#include "worker/rejection.h"
#include "worker/reply.h"
#include "worker/session_figures.h"
#include "worker/session_objects.h"
#include "worker/session_plan.h"
#include "worker/shadows.h"
#include "worker/signals.h"
#include "worker/traffic.h"
#include "worker/turn_keeper.h"
#include "worker/unfetched_answers.h"
#include "worker/uploads.h"
#include "worker/vgpu.h"

namespace sluice::worker {

class Broker;
class NodeLinks;
class SharedEvents;

class Session {
 public:
  Session(const Driver& driver, std::unique_ptr<Endpoint> endpoint, SessionPlan plan);
  ~Session();

  // Reserves windows, registers what is shared and publishes the record. False with `error`.
  bool open(std::vector<Gpu>& gpus, std::string* error);

  // A command that no client of ours sends. Ends the session with this reason.
  void reject(const std::string& reason);
  bool rejected() const { return rejection_.rejected(); }
  std::string reason() const { return rejection_.reason(); }

  // Makes the vGPU's context current on this thread. nullptr: there is no such device (rejected).
  Vgpu* use(uint32_t device);
  // What this thread named last; nullptr for threads that ran no command.
  Vgpu* used_last() const;
  // The client has sent nothing for a while, says the thread that takes its commands.
  void went_quiet();
  // By the frame's context field (device + 1).
  Vgpu* use_context(uint32_t context) { return use(context - 1); }

  // The driver's stream; its context is made current. False: no such stream (rejected).
  bool stream(uint64_t id, uint32_t context, CUstream* handle, Vgpu** owner = nullptr);
  // Has `stream` write `value` into the completion page. kNoMark does nothing.
  CUresult mark(CUstream stream, uint32_t mark, uint64_t value);

  // Whether all of [address, address + bytes) is device memory that this session may name.
  bool device_range(uint64_t address, uint64_t bytes);
  bool arena_range(uint64_t address, uint64_t bytes);
  // The vGPU whose memory lies at a window's address, kNobody for other addresses.
  static constexpr uint32_t kNobody = ~0u;
  uint32_t memory_owner(uint64_t address);

  // All that came from the client and all that went there, whichever way it took.
  uint64_t bytes_in() const { return endpoint_->bytes_in() + figures.shared_in.load(); }
  uint64_t bytes_out() const { return figures.replied.load() + figures.shared_out.load(); }

  Endpoint& endpoint() { return *endpoint_; }

  const Driver& driver;
  const SessionPlan plan;
  Cut cut;  // before the gates
  std::vector<std::unique_ptr<Vgpu>> vgpus;
  // Of the node's, set before open().
  std::unique_ptr<CodeCache> code_cache;  // where the node keeps code
  std::unique_ptr<GrantLedger> ledger;    // where other sessions use the same vGPUs
  std::unique_ptr<TurnKeeper> turns;      // where the GPUs' time is divided
  Broker* broker = nullptr;               // the way to other sessions; the worker's own
  std::unique_ptr<NodeLinks> links;       // where the client has vGPUs of other nodes, too
  bool concurrent = false;                // the GPUs are run through MPS

  // Memory through which data passes.
  BulkFrames bulk, large_bulk;
  Bounces bounces;
  ArenaViews arena_views;
  CompletionPage marks;
  Uploads uploads;
  UnfetchedAnswers unfetched;

  Compiler compiler;  // before the objects, as links have it end what they began
  SessionObjects objects;
  GlobalRanges globals;
  std::unique_ptr<SharedEvents> events_of_others;
  Captures captures;
  Shadows shadows;
  Signals signals;
  GraphTraffic graph_traffic;
  Collectives collectives;
  ContextTies ties;

  // Whose call the next command is, of a client that profiles; 0: nobody's. Of the executor's
  // leader.
  uint32_t marked_call = 0;

  SessionFigures figures;

 private:
  std::unique_ptr<Endpoint> endpoint_;
  Rejection rejection_;
};

}  // namespace sluice::worker
