// SPDX-License-Identifier: Apache-2.0
// What the worker says of the session when it is open: read out of its bytes, and checked.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "wire/frame.h"

namespace sluice::client {

struct SessionRecord {
  wire::SessionRecord session{};
  std::vector<wire::DeviceRecord> devices;  // at least one
};

// `reply`: an OpenReply and what is behind it. False: `error` says what is wrong with it.
bool read_session_record(std::span<const std::byte> reply, SessionRecord* record,
                         std::string* error);

}  // namespace sluice::client
