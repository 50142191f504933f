// SPDX-License-Identifier: Apache-2.0
// What `sluice run --share` calls by name, so that a job's hold goes the same way as its sessions:
// the channel, the settings and who the host says this is. No session is opened.
#include <atomic>
#include <cstdio>

#include "client/core/config.h"
#include "client/core/open_channel.h"
#include "client/core/open_request.h"

namespace sluice::client {

namespace {

// Asks that this process's job keeps its vGPUs for as long as it lives, and returns when nobody
// keeps it any more, with the reason.
Refusal hold_job() {
  static std::atomic<bool> by_controller{false};  // then its sessions are there, too
  Config config = read_config();
  if (by_controller.load() && config.channel == "auto") config.channel = "tcp";
  Refusal refusal{config.error};
  if (refusal.text.empty() && config.job.empty()) refusal.text = "SLUICE_JOB is not set";
  if (!refusal.text.empty()) return refusal;
  wire::OpenSession request = make_request(config);
  request.flags |= wire::kHoldJob;
  open_channel(config, request, &refusal);
  if (refusal.held) by_controller.store(true);
  return refusal;
}

}  // namespace

}  // namespace sluice::client

// Returns when the job is held no more, with the reason in `why`; the caller may ask again.
extern "C" __attribute__((visibility("default"))) int sluice_job_hold(char* why, size_t room) {
  const sluice::client::Refusal refusal = sluice::client::hold_job();
  if (why && room) std::snprintf(why, room, "%s", refusal.text.c_str());
  return static_cast<int>(refusal.status);
}
