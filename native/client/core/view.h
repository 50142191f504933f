// SPDX-License-Identifier: Apache-2.0
// Looking without a session: what the requester's sessions have or, where there are none, what one
// would get. It takes no vGPU, waits in no queue and starts no worker; the same way leads there as
// to a session. docs/protocol.md, "Views", has the answer's JSON.
#pragma once

#include <string>

#include "client/core/config.h"
#include "client/core/open_request.h"

namespace sluice::client {

// False: nobody answers, or one like this can never get a vGPU; `refusal` says why.
bool ask_for_view(const Config& config, std::string* text, Refusal* refusal);

// Each of these asks by one way (open_channel.h).
bool view_unix(const std::string& socket_path, wire::OpenSession request,
               const RequestOptions& options, std::string* text, Refusal* refusal);
bool view_ivshmem(const std::string& resource_path, wire::OpenSession request,
                  const RequestOptions& options, std::string* text, Refusal* refusal);
bool view_vsock(wire::OpenSession request, const RequestOptions& options, std::string* text,
                Refusal* refusal);
bool view_net(const Config& config, wire::OpenSession request, std::string* text, Refusal* refusal);

// The text behind an OpenReply of `bytes` in all. False: it refuses, or is no answer to a view.
bool read_view(const void* reply, size_t bytes, const std::string& server, std::string* text,
               Refusal* refusal);

}  // namespace sluice::client
