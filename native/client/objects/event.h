// SPDX-License-Identifier: Apache-2.0
// An event as the application holds it.
#pragma once

#include <cstdint>

#include "wire/bodies/commands.h"

namespace sluice::client {

struct Device;
struct Stream;

struct Event {
  Device* device = nullptr;
  unsigned flags = 0;
  bool shared = false;  // with other processes: only the worker knows where it stands
  uint32_t mark = wire::kNoMark;
  uint64_t value = 0;  // of the newest record; 0: never recorded
  Stream* stream = nullptr;
  uint64_t work = 0;      // the device's newest work (core/work_account.h) at the newest record
  uint64_t captured = 0;  // the capture that the newest record belongs to, if it does
  bool in_graph = false;  // graphs record it: only the driver knows
  // Under the lock of what is known of events (core/event_progress.h), of its newest record.
  bool listed = false, done = false;
};

}  // namespace sluice::client
