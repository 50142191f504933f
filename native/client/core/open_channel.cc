// SPDX-License-Identifier: Apache-2.0
#include "client/core/open_channel.h"

#include <unistd.h>

#include "channel/rdma_device.h"
#include "client/core/log.h"

namespace sluice::client {

std::unique_ptr<Channel> open_channel(const Config& c, const wire::OpenSession& request,
                                      Refusal* refusal) {
  const bool any = c.channel == "auto";
  std::string why_not;
  // What is near leads to one node only (or to another by its relay). All of a job go one way: its
  // processes, and whoever holds it. A controller that is away now may be there for the next one.
  if (any && c.cross_node && request.vgpu_count > 1 && c.enable_net && !c.controller.empty()) {
    auto channel = open_tcp(c, request, Rdma::kNo, refusal);
    if (channel || !refusal->nobody_answered) return channel;
    if (!c.job.empty()) {
      refusal->text =
          "a job's vGPUs that may be of several nodes (SLUICE_CROSS_NODE=1) are the controller's "
          "to give, by SLUICE_CHANNEL=" +
          c.channel + " too, and none answers (" + refusal->text +
          "): name one by SLUICE_CONTROLLER, or unset SLUICE_CROSS_NODE for a job on the GPUs of "
          "one node";
      return nullptr;
    }
    log_line(LogLevel::kInfo, "vGPUs of several nodes are the controller's to give (" +
                                  refusal->text + "): what is near this machine is asked");
    *refusal = {};
  }
  if (c.channel == "shm" || (any && access(c.server_socket.c_str(), F_OK) == 0))
    return open_unix(c.server_socket, request, c.options, refusal);
  if (any || c.channel == "ivshmem") {
    const std::string resource = c.ivshmem.empty() ? find_ivshmem(&why_not) : c.ivshmem;
    if (!resource.empty()) return open_ivshmem(resource, request, c.options, refusal);
    if (!any) {
      refusal->text = why_not;
      return nullptr;
    }
  }
  if (c.channel == "rdma") return open_tcp(c, request, Rdma::kOnly, refusal);
  std::string no_rdma;
  const bool rdma = any && c.enable_net && channel::RdmaDevice::any(&no_rdma);
  if (rdma) {
    // A node that cannot be reached may still be by what follows; one that was has been asked.
    auto channel = open_tcp(c, request, Rdma::kIfThere, refusal);
    if (channel || !refusal->nobody_answered) return channel;
    log_line(LogLevel::kInfo, "not by RDMA: " + refusal->text);
    *refusal = {};
  }
  std::string no_vsock;
  if (c.channel == "vsock" || (any && find_vsock(&no_vsock)))
    return open_vsock(request, c.options, refusal);
  if (any) why_not += "; " + no_vsock;
  if (any && !c.enable_net) {
    refusal->text = "no channel: no server socket " + c.server_socket + "; " + why_not +
                    "; the network is disabled (enable_net)";
    return nullptr;
  }
  auto channel = open_tcp(c, request, Rdma::kNo, refusal);
  if (!channel && any)
    refusal->text += " (before that: no server socket " + c.server_socket + "; " + why_not + ")";
  return channel;
}

}  // namespace sluice::client
