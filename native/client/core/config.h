// SPDX-License-Identifier: Apache-2.0
// What the user asked for: environment first, then ~/.sluice/client.conf, then
// /etc/sluice/client.conf. Read once, at the first CUDA call. A value that cannot be used is an
// error that names where it stands and what is wanted.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sluice::client {

// What is wanted besides sizes and numbers; whether it is given is the host's and the pool's say.
struct RequestOptions {
  std::string project;  // on whose account, "" = the host's or the token's default
  std::string gpu_model, gpu_architecture;
  std::vector<std::pair<std::string, std::string>> labels;  // that the node must have
  std::string mode = "auto";  // reserved, on-demand, or a reservation first and then the pool
  bool preempt = false;
  bool same_gpu = false;
};

struct Config {
  std::string controller = "127.0.0.1:9123";  // several with commas, perhaps behind https://
  std::string ca_file;     // of the controllers' and the nodes' certificates; "": the machine's
  std::string token;       // as it stands in the environment
  std::string token_file;  // where it is looked for else, and whether somebody named that place
  bool token_file_named = false;
  std::string server_socket = "/run/sluice/server.sock";
  std::string channel = "auto";  // auto, shm, ivshmem, vsock, tcp
  std::string ivshmem;           // resource file, "" = find it
  std::string log_file;          // "" = none
  bool log_to_screen = true;
  bool enable_net = true;
  uint32_t vgpu_count = 1;
  // Which of them CUDA_VISIBLE_DEVICES leaves, in its order: so many the session asks for.
  std::vector<uint32_t> visible = {0};
  uint32_t gmem_mib = 0;
  uint32_t ratio_percent = 0;
  std::string job;  // token of the job that this process belongs to, "" = none
  uint32_t job_processes = 0;
  bool cross_node = false;
  int32_t priority = 0;
  int32_t wait_seconds = -1;
  RequestOptions options;
  int debug = 0;
  bool stats = false;
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
