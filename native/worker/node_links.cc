// SPDX-License-Identifier: Apache-2.0
// Links to other nodes, and the commands about them.
#include "worker/node_links.h"

#include <utility>

#include "process/log.h"
#include "worker/copy.h"
#include "worker/dispatch.h"

namespace sluice::worker {

NodeLink* NodeLinks::at(uint64_t peer) {
  const uint64_t first = session_.plan.first_window, own = session_.plan.vgpus.size();
  if (peer >= session_.plan.windows || (peer >= first && peer < first + own)) return nullptr;
  const auto there = static_cast<uint32_t>(peer);
  std::lock_guard lock(mutex_);
  auto& link = links_[there];
  if (!link)
    link = std::make_unique<NodeLink>(session_, there, first > peer,
                                      [this, there](uint32_t epoch) { return ask_(there, epoch); });
  return link.get();
}

// Where PTX is compiled.
LinkKernel* NodeLinks::kernel(std::string* why) {
  std::lock_guard lock(kernel_mutex_);
  if (!std::exchange(tried_, true)) {
    no_kernel_ = "there is no thread to be had for its kernel (session_pids)";
    const bool ran = session_.compiler.run(
        [this] { kernel_ = LinkKernel::load(session_.driver, session_.vgpus, &no_kernel_); });
    if (!ran) tried_ = false;
  }
  if (!kernel_) *why = no_kernel_;
  return kernel_.get();
}

void NodeLinks::fail() {
  std::lock_guard lock(mutex_);
  for (const auto& [_, link] : links_) link->fail();
}

void NodeLinks::ask_again() {
  std::lock_guard lock(mutex_);
  for (const auto& [_, link] : links_) link->ask_again();
}

namespace {

NodeLink* link_to(Session& s, uint64_t peer) { return s.links ? s.links->at(peer) : nullptr; }

void open(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::NodeLinkOpen>();
  NodeLink* const link = d.ok() ? link_to(s, m.peer) : nullptr;
  if (!link) return s.reject("NodeLinkOpen names no other node of the client's");
  if (link->is_open()) return link->given_up();
  std::string why;
  if (link->open(&why)) return;
  process::log_error("there is no link to the client's vGPU " + std::to_string(m.peer) +
                     " on another node, copies go by way of the client: " + why);
  reply.status = CUDA_ERROR_NOT_SUPPORTED;
}

// What a copy in the default stream is to be between: whatever streams the device has. Those that
// the default stream does not wait for by itself do so by an event, and for it.
template <class Each>
CUresult for_streams_apart(Session& s, const Vgpu& v, Each each) {
  CUresult e = CUDA_SUCCESS;
  s.objects.streams.for_each([&](uint64_t, const StreamObject& o) {
    unsigned flags = 0;
    if (e != CUDA_SUCCESS || o.device != v.index || capturing(s, o.handle)) return;
    e = s.driver.cuStreamGetFlags(o.handle, &flags);
    if (e == CUDA_SUCCESS && (flags & CU_STREAM_NON_BLOCKING)) e = each(o.handle);
  });
  return e;
}

CUresult order(Session& s, Vgpu& v, CUevent event, CUstream before, CUstream after) {
  v.gate->followed(after);
  const CUresult e = s.driver.cuEventRecord(event, before);
  return e == CUDA_SUCCESS ? s.driver.cuStreamWaitEvent(after, event, 0) : e;
}

CUresult begin(Session& s, NodeLink& link, NodeLink::End end, const wire::NodeTransfer& t, Vgpu& v,
               const NodeLink::Place& place) {
  CUstream stream = place.stream;
  v.gate->followed(stream);
  if (t.whole_device == 0) return link.begin(end, t, place, CUDA_SUCCESS);
  CUevent order_event = nullptr;
  CUresult e = s.driver.cuEventCreate(&order_event, CU_EVENT_DISABLE_TIMING);
  if (e == CUDA_SUCCESS)
    e = for_streams_apart(s, v,
                          [&](CUstream other) { return order(s, v, order_event, other, stream); });
  e = link.begin(end, t, place, e);
  if (e == CUDA_SUCCESS)
    e = for_streams_apart(s, v,
                          [&](CUstream other) { return order(s, v, order_event, stream, other); });
  if (order_event) s.driver.cuEventDestroy_v2(order_event);
  return e;
}

CUresult transfer(Session& s, const Command& c, NodeLink::End end, const char* name) {
  Decoder d(c.body);
  const auto t = d.fixed<wire::NodeTransfer>();
  NodeLink* const link = d.ok() ? link_to(s, t.peer) : nullptr;
  const auto bad = [&](const std::string& what) {
    s.reject(std::string(name) + " " + what);
    return CUDA_SUCCESS;
  };
  if (!link || !link->is_open()) return bad("names no node to which there is a link");
  if (link->knows(t.transfer)) return bad("names a transfer that is under way");
  CUstream stream;
  Vgpu* v;
  if (!s.stream(t.stream, c.header.context, &stream, &v)) return CUDA_SUCCESS;
  if (capturing(s, stream)) return bad("names a stream that captures");
  CUevent event = nullptr;
  uint32_t device = v->index;
  if (t.rows == 0) {
    if (end == NodeLink::End::kSends && !s.objects.events.get(t.event, &event))
      return bad("names an event that the session does not have");
  } else {
    const uint64_t span = span_of(t.pitch, t.width, t.rows);
    if (span == 0 || !s.device_range(t.address, span))
      return bad("names device memory that the session does not have");
    if (const uint32_t owner = s.memory_owner(t.address); owner != Session::kNobody) device = owner;
  }
  return begin(s, *link, end, t, *v, {device, v->index, stream, event});
}

void send(Session& s, const Command& c, Reply& reply) {
  reply.status = transfer(s, c, NodeLink::End::kSends, "NodeSend");
}

void receive(Session& s, const Command& c, Reply& reply) {
  reply.status = transfer(s, c, NodeLink::End::kReceives, "NodeReceive");
}

}  // namespace

void add_node_link_handlers(DispatchTable& t) {
  t[wire::kNodeLinkOpen].run = open;
  t[wire::kNodeSend].run = send;
  t[wire::kNodeReceive].run = receive;
}

}  // namespace sluice::worker
