// SPDX-License-Identifier: Apache-2.0
// What the user asked for: environment first, then ~/.sluice/client.conf, then
// /etc/sluice/client.conf. Read once, at the first CUDA call. A value that cannot be used is an
// error that names where it stands and what is wanted. Keys, variables, defaults and bounds are
// native/api/client_settings.yaml's.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "client/setting_table.h"

namespace sluice::client {

// What is wanted besides sizes and numbers; whether it is given is the host's and the pool's say.
struct RequestOptions {
  std::string project;  // on whose account, "" = the host's or the token's default
  std::string gpu_model, gpu_architecture;
  std::vector<std::pair<std::string, std::string>> labels;  // that the node must have
  // Reserved, on-demand, or a reservation first and then the pool.
  std::string mode = setting::kMode.initial;
  std::string sharing = setting::kSharing.initial;
  std::string merge_launches = setting::kMergeLaunches.initial;
  bool preempt = setting::kPreempt.initial;
  bool same_gpu = setting::kSameGpu.initial;
};

struct Config {
  // Several with commas, perhaps behind https://.
  std::string controller = setting::kControllerAddr.initial;
  std::string ca_file;     // of the controllers' and the nodes' certificates; "": the machine's
  std::string token;       // as it stands in the environment
  std::string token_file;  // where it is looked for else, and whether somebody named that place
  bool token_file_named = false;
  std::string server_socket = setting::kServerSocket.initial;
  std::string channel = setting::kChannel.initial;
  std::string ivshmem;         // resource file, "" = find it
  std::string ibverbs_device;  // NAME[:PORT[:GID]], "" = find it
  std::string log_file;        // "" = none
  bool log_to_screen = setting::kLogToScreen.initial;
  bool enable_net = setting::kEnableNet.initial;
  uint32_t vgpu_count = setting::kVgpuCount.initial;
  // Which of them CUDA_VISIBLE_DEVICES leaves, in its order: so many the session asks for.
  std::vector<uint32_t> visible = {0};
  uint32_t gmem_mib = setting::kGmem.initial;
  uint32_t ratio_percent = setting::kRatio.initial;
  std::string job;  // token of the job that this process belongs to, "" = none
  uint32_t job_processes = setting::kJobProcesses.initial;
  int32_t bulk_connections = setting::kBulkConnections.initial;
  bool cross_node = setting::kCrossNode.initial;
  int32_t priority = setting::kPriority.initial;
  int32_t wait_seconds = setting::kWait.initial;
  RequestOptions options;
  // What `sluice run` and the loader hook go by (audit/divert.h); judged here as all others are.
  std::string static_runtime = setting::kStaticRuntime.initial;
  int debug = setting::kDebug.initial;
  bool stats = setting::kStats.initial;
  std::string error;  // the first value that cannot be used; the session is then refused with it
};

Config read_config();

// Whether it looks like one: 32 lower-case hexadecimal digits.
bool is_job_token(const std::string& text);

// CUDA_VISIBLE_DEVICES by CUDA's rules, over `count` devices; nullptr leaves all. A list of numbers
// ends at the first that is no device's, and holds nothing if one comes twice. Names ("GPU-…") are
// those of another session, since each has names of its own: one leaves as many as it lists.
std::vector<uint32_t> visible_devices(const char* text, uint32_t count);

}  // namespace sluice::client
