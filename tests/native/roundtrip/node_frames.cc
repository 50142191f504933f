// SPDX-License-Identifier: Apache-2.0
// Good frames of links to other nodes, and a node at the other end of one.
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>

#include "tests/native/roundtrip/valid_frames.h"
#include "wire/protocol.h"
#include "worker/node_links.h"

namespace sluice::test {

using Rig = FurnishedRig;

// A link to kOtherNode, whose other end has greeted and says nothing more.
void FurnishedRig::connect_node() {
  if (other_node_ >= 0) return;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw std::runtime_error("no socket");
  other_node_ = ends[1];
  const wire::StreamRecord greeting{};
  if (write(ends[1], &greeting, sizeof greeting) != sizeof greeting)
    throw std::runtime_error("no greeting");
  Recording& r = Recording::get();
  const bool before = std::exchange(r.writing_down, false);
  worker::NodeLink* const link = session().links->at(kOtherNode);
  link->connected(1, std::make_unique<channel::ResumableStream::Connection>(
                         ends[0], std::make_unique<channel::PlainStream>(ends[0])));
  std::string why;
  if (!link->open(&why)) throw std::runtime_error(why);
  r.writing_down = before;
}

FurnishedRig::~FurnishedRig() {
  if (other_node_ >= 0) ::close(other_node_);
}

void add_node_frames(FurnishedRig& rig, std::vector<ValidFrame>* all) {
  auto f = make("NodeLinkOpen", wire::kNodeLinkOpen, true, "", wire::NodeLinkOpen{Rig::kOtherNode});
  f.node = true;
  all->push_back(f);
  using T = wire::NodeTransfer;
  const auto transfer = [&](const char* name, uint16_t function, const char* calls, T body) {
    body.transfer = 9;
    body.peer = Rig::kOtherNode;
    body.stream = Rig::kStreamId;
    auto g = make(name, function, false, calls, body);
    g.handles = {offsetof(T, stream)};
    g.node = true;
    if (body.event) g.handles.push_back(offsetof(T, event));
    if (body.rows) g.addresses = {{offsetof(T, address), (body.rows - 1) * 256 + 100}};
    all->push_back(g);
  };
  T copy{}, event{}, whole{};
  copy.address = rig.address() + 512;
  copy.pitch = 256, copy.width = 100, copy.rows = 3;
  whole = copy;
  whole.whole_device = 1;
  event.event = Rig::kEventId;
  transfer("NodeSend", wire::kNodeSend, "cuLaunchKernel", copy);
  transfer("NodeReceive", wire::kNodeReceive, "cuStreamWaitValue64_v2", copy);
  transfer("NodeReceive, whole device", wire::kNodeReceive, "cuStreamWaitValue64_v2", whole);
  transfer("NodeSend, event", wire::kNodeSend, "cuLaunchHostFunc", event);
  transfer("NodeReceive, event", wire::kNodeReceive, "cuStreamWaitValue64_v2", T{});
}

}  // namespace sluice::test
