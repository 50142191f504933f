// SPDX-License-Identifier: Apache-2.0
// The worker's end of the channel that the message `session` brings: a region and the place of a
// slot in it, or a socket, with the secrets of its TLS where the server has shaken hands on it.
#pragma once

#include <memory>
#include <string>

#include "worker/endpoint.h"
#include "worker/session_plan.h"

namespace sluice::worker {

// Takes the channel's descriptor: what is left of it is closed with the endpoint. nullptr with
// `error`.
std::unique_ptr<Endpoint> open_endpoint(const process::Message& message, const SessionPlan& plan,
                                        RdmaPlan rdma, std::string* error);

// The connection that the message `resume` brings. nullptr with `error`.
std::unique_ptr<channel::ResumableStream::Connection> open_connection(
    const process::Message& message, std::string* error);

}  // namespace sluice::worker
