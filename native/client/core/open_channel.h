// SPDX-License-Identifier: Apache-2.0
// Which way leads to a server from here, and opening a session on it.
#pragma once

#include <memory>
#include <string>

#include "client/core/channel.h"
#include "client/core/config.h"
#include "client/core/open_request.h"
#include "wire/frame.h"

namespace sluice::client {

// On the channel that the user named, or on the first of those there are: the server's socket on a
// GPU host, then the region that a guest has of its host, RDMA where this machine has a device for
// it, vsock, TCP. Waits for the grant. Without one: nullptr, and why.
std::unique_ptr<Channel> open_channel(const Config& config, const wire::OpenSession& request,
                                      Refusal* refusal);

// Each of these fills `request.channel`, asks and waits for the grant. Without one: nullptr.
std::unique_ptr<Channel> open_unix(const std::string& socket_path, wire::OpenSession request,
                                   const RequestOptions& options, Refusal* refusal);
std::unique_ptr<Channel> open_ivshmem(const std::string& resource_path, wire::OpenSession request,
                                      const RequestOptions& options, Refusal* refusal);
std::unique_ptr<Channel> open_vsock(wire::OpenSession request, const RequestOptions& options,
                                    Refusal* refusal);
// Over the network: by TCP, or by RDMA where both sides have it.
enum class Rdma { kNo, kIfThere, kOnly };
std::unique_ptr<Channel> open_tcp(const Config& config, wire::OpenSession request, Rdma rdma,
                                  Refusal* refusal);

// A connection on which a byte makes this guest's host look at its region, -1 where there is no
// vsock device of Sluice's or nobody listens.
int open_vsock_bell();

// Whether this machine is a guest with a vsock device of Sluice's, whose CID tells; `why` says why
// not. Nothing is sent: the host of any other guest is not Sluice's to speak to.
bool find_vsock(std::string* why);

// Resource files of Sluice regions in this machine's PCI devices (1af4:1110 with our magic), ""
// when there is none. `why` says what was found instead (no device, no permission, a foreign
// region).
std::string find_ivshmem(std::string* why);

}  // namespace sluice::client
