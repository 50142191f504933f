// SPDX-License-Identifier: Apache-2.0
#include "worker/dispatch.h"

namespace sluice::worker {

namespace {

void ping(Session&, const Command&, Reply&) {}

DispatchTable make() {
  DispatchTable t{};
  t[wire::kPing] = {"ping", ping, Handler::Answered::kOnly, false};
  add_memory_handlers(t);
  add_copy_handlers(t);
  add_code_handlers(t);
  add_launch_handlers(t);
  add_stream_handlers(t);
  add_event_handlers(t);
  add_generated_handlers(t);
  return t;
}

}  // namespace

const DispatchTable& dispatch_table() {
  static const DispatchTable table = make();
  return table;
}

}  // namespace sluice::worker
