// SPDX-License-Identifier: Apache-2.0
// What a client asks a server for, as bytes, and why it is refused. What the numbers mean is said
// in native/api/protocol.yaml; the server reads them in open_session.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/core/config.h"
#include "wire/frame.h"

namespace sluice::client {

// Why no session was opened: the line for the user, and the CUresult for the program.
struct Refusal {
  std::string text;
  uint32_t status = 100;         // CUDA_ERROR_NO_DEVICE
  bool nobody_answered = false;  // no controller was reached that decides
  bool held = false;             // a controller held the job, until the connection broke off
};

// For this process: the channel's part (kind and key) is left to who opens one.
wire::OpenSession make_request(const Config& config);

// The request's bytes, with the options that have no fixed size behind it.
std::vector<std::byte> open_frame(wire::OpenSession request, const RequestOptions& options);

}  // namespace sluice::client
