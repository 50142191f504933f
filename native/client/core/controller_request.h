// SPDX-License-Identifier: Apache-2.0
// What a client without a server near it asks of the controllers: a session, or to hold a job.
// Every address is tried in its order; a follower's word for who leads is followed; what broke off
// is asked again under the same idempotency key, so that it is granted once.
#pragma once

#include <string>
#include <vector>

#include "client/core/config.h"
#include "client/core/open_request.h"

namespace sluice::client {

// Where the session is, and what opens it.
struct Ticket {
  std::string address, port, key;
  bool tls = false;
  std::string name;  // that the data port's certificate has
  std::string node;  // where vGPUs are of several nodes: which one it is
};

// A ticket for each node that has vGPUs of the session, in their order. False: `refusal` says why
// there is none.
bool ask_for_session(const Config& config, const wire::OpenSession& request,
                     std::vector<Ticket>* tickets, Refusal* refusal);

// The token to show, "" for none. False: `error` says why it cannot be used. Nothing else reads it,
// and nothing prints it.
bool read_token(const Config& config, std::string* token, std::string* error);

}  // namespace sluice::client
