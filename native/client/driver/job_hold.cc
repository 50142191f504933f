// SPDX-License-Identifier: Apache-2.0
// What `sluice run --share` calls by name, so that a job's hold goes the same way as its sessions:
// the channel, the settings and who the host says this is.
#include <cstdio>

#include "client/core/session.h"

// Returns when the job is held no more, with the reason in `why`; the caller may ask again.
extern "C" __attribute__((visibility("default"))) int sluice_job_hold(char* why, size_t room) {
  const sluice::client::Refusal refusal = sluice::client::Session::hold_job();
  if (why && room) std::snprintf(why, room, "%s", refusal.text.c_str());
  return static_cast<int>(refusal.status);
}
