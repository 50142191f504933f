// SPDX-License-Identifier: Apache-2.0
#include "client/core/view.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "client/core/open_channel.h"
#include "wire/frame.h"

namespace sluice::client {

namespace {

wire::OpenSession view_request(const Config& config) {
  Config alone = config;
  alone.job.clear();  // with hold_job and without a job a server that knows no views starts nothing
  alone.visible.resize(config.vgpu_count);  // whichever of them CUDA_VISIBLE_DEVICES hides
  wire::OpenSession request = make_request(alone);
  request.flags |= wire::kView | wire::kHoldJob;
  request.wait_seconds = 0;
  return request;
}

}  // namespace

bool read_view(const void* reply, size_t bytes, const std::string& server, std::string* text,
               Refusal* refusal) {
  wire::OpenReply head{};
  std::memcpy(&head, reply, std::min(bytes, sizeof head));
  if (bytes < sizeof head || head.header.function != wire::kOpenReply) {
    refusal->text = server + " closed the connection before it answered";
    return false;
  }
  head.message[sizeof head.message - 1] = 0;
  if (head.status != 0) {
    refusal->status = head.status;
    refusal->text = head.message;
    return false;
  }
  const char* from = static_cast<const char*>(reply) + sizeof head;
  if (head.header.size > bytes || head.header.size <= sizeof head) {
    refusal->text = server + " answers with no view: it is of another release than this library";
    return false;
  }
  const size_t room = head.header.size - sizeof head;
  text->assign(from, strnlen(from, room));
  return true;
}

bool ask_for_view(const Config& config, std::string* text, Refusal* refusal) {
  if (!config.error.empty()) {
    refusal->text = config.error;
    return false;
  }
  const wire::OpenSession request = view_request(config);
  const bool any = config.channel == "auto";
  if (config.channel == "shm" || (any && access(config.server_socket.c_str(), F_OK) == 0))
    return view_unix(config.server_socket, request, config.options, text, refusal);
  std::string why_not, no_vsock;
  const bool vsock = (any || config.channel == "vsock") && find_vsock(&no_vsock);
  if (any || config.channel == "ivshmem") {
    const std::string resource = config.ivshmem.empty() ? find_ivshmem(&why_not) : config.ivshmem;
    if (!resource.empty()) {
      if (view_ivshmem(resource, request, config.options, text, refusal)) return true;
      // Its slots may all be in use, and a look needs one; the other way needs none.
      return vsock && refusal->nobody_answered &&
             view_vsock(request, config.options, text, refusal);
    }
    if (!any) {
      refusal->text = why_not;
      return false;
    }
  }
  if (vsock || config.channel == "vsock") return view_vsock(request, config.options, text, refusal);
  if (any && !config.enable_net) {
    refusal->text = "no channel: no server socket " + config.server_socket + "; " + why_not + "; " +
                    no_vsock + "; the network is disabled (enable_net)";
    return false;
  }
  if (view_net(config, request, text, refusal)) return true;
  if (any)
    refusal->text += " (before that: no server socket " + config.server_socket + "; " + why_not +
                     "; " + no_vsock + ")";
  return false;
}

}  // namespace sluice::client
