// SPDX-License-Identifier: Apache-2.0
#include "worker/dispatch.h"

#include <algorithm>

#include "worker/device_output.h"

namespace sluice::worker {

namespace {

void ping(Session&, const Command&, Reply&) {}

void read_output(Session& s, const Command&, Reply& reply) {
  const size_t room = std::min(s.endpoint().reply_limit(), wire::kOutputPiece);
  bool error = false;
  const std::string text = DeviceOutput::instance().take(room - sizeof(wire::OutputReply), &error);
  reply.put(wire::OutputReply{static_cast<uint32_t>(text.size()), error});
  reply.put_bytes(text.data(), text.size());
}

void reply_rest(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto from = d.fixed<wire::ReplyRest>().from;
  if (!d.ok() ||
      !s.unfetched.take(c.header.lane, from, s.endpoint().reply_limit(), &reply.body, &reply.more))
    s.reject("ReplyRest asks for what there is none of");
}

// What the registry says of the commands of our own; the files of handlers add what answers them.
DispatchTable registered() {
  DispatchTable t{};
  for (const wire::CommandSpec& c : wire::kCommands) {
    using Class = wire::CommandClass;
    using Answered = Handler::Answered;
    if (c.command_class == Class::kSession) continue;
    Handler& h = t[c.id];
    h.name = c.name;
    h.answered = c.command_class == Class::kAnswered ? Answered::kOnly
                 : c.command_class == Class::kAsync  ? Answered::kNever
                                                     : Answered::kEither;
    h.may_block = c.may_block;
  }
  return t;
}

DispatchTable make() {
  DispatchTable t = registered();
  t[wire::kPing].run = ping;
  t[wire::kReplyRest].run = reply_rest;
  t[wire::kReadOutput].run = read_output;
  add_memory_handlers(t);
  add_virtual_memory_handlers(t);
  add_copy_handlers(t);
  add_array_handlers(t);
  add_array_copy_handlers(t);
  add_texture_handlers(t);
  add_code_handlers(t);
  add_launch_handlers(t);
  add_limit_handlers(t);
  add_link_handlers(t);
  add_stream_handlers(t);
  add_event_handlers(t);
  add_peer_handlers(t);
  add_shared_memory_handlers(t);
  add_shared_event_handlers(t);
  add_cluster_handlers(t);
  add_capture_handlers(t);
  add_graph_handlers(t);
  add_graph_node_handlers(t);
  add_attribute_handlers(t);
  add_graph_copy_handlers(t);
  add_signal_handlers(t);
  add_shadow_handlers(t);
  add_tensor_map_handlers(t);
  add_green_context_handlers(t);
  add_code_names_handlers(t);
  add_atomics_handlers(t);
  add_generated_handlers(t);
  add_node_link_handlers(t);
  add_merging_handlers(t);
  add_node_nvml_handlers(t);
  add_profile_handlers(t);
  add_library_handlers(t);
  add_nccl_handlers(t);
  add_cudnn_backend_handlers(t);
  add_cudnn_ctc_handlers(t);
  add_curand_handlers(t);
  return t;
}

}  // namespace

const DispatchTable& dispatch_table() {
  static const DispatchTable table = make();
  return table;
}

}  // namespace sluice::worker
