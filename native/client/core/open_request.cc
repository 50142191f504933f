// SPDX-License-Identifier: Apache-2.0
#include "client/core/open_request.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "client/core/runtime_version.h"

namespace sluice::client {

namespace {

uint64_t own_start_time() {
  std::ifstream in("/proc/self/stat");
  std::string all;
  std::getline(in, all);
  const size_t paren = all.rfind(')');
  if (paren == std::string::npos) return 0;
  const char* at = all.c_str() + paren + 1;
  for (int field = 2; *at && field < 21; ++at)
    if (*at == ' ') ++field;
  return std::strtoull(at, nullptr, 10);
}

template <size_t N>
void put_text(char (&to)[N], const std::string& from) {
  std::memcpy(to, from.data(), std::min(from.size(), N - 1));
}

}  // namespace

wire::OpenSession make_request(const Config& c) {
  wire::OpenSession r{};
  r.header = {sizeof r, wire::kOpenSession, wire::kNoLane, 0, 0};
  r.magic = wire::kOpenMagic;
  r.protocol_major = wire::kProtocolMajor;
  r.protocol_minor = wire::kProtocolMinor;
  r.vgpu_count = static_cast<uint32_t>(c.visible.size());
  if (!c.job.empty()) {
    // A job's vGPUs are its processes' own to tell apart: which of them this one has is said.
    put_text(r.job, c.job);
    r.job_processes = c.job_processes;
    r.vgpu_count = c.vgpu_count;
    r.chosen_count = static_cast<uint32_t>(c.visible.size());
    bool all = c.visible.size() == c.vgpu_count;
    for (size_t i = 0; i < c.visible.size(); ++i) {
      r.chosen[i] = static_cast<uint8_t>(c.visible[i]);
      all = all && c.visible[i] == i;
    }
    if (all) r.chosen_count = 0;
  }
  r.gmem_mib = c.gmem_mib;
  r.ratio_percent = c.ratio_percent;
  r.flags = (c.cross_node ? wire::kCrossNode : 0u) | (c.options.preempt ? wire::kPreempt : 0u) |
            (c.options.same_gpu ? wire::kSameGpu : 0u) |
            (c.options.mode == "reserved" ? wire::kReservedOnly : 0u) |
            (c.options.mode == "on-demand" ? wire::kOnDemandOnly : 0u) | wire::kTakesRelay |
            wire::kResumable | (c.options.merge_launches != "off" ? wire::kMergeLaunches : 0u) |
            (c.options.merge_launches == "force" ? wire::kMergeAtOnce : 0u);
  r.priority = c.priority;
  r.wait_seconds = c.wait_seconds;
  r.pid = static_cast<uint32_t>(getpid());
  r.uid = static_cast<uint32_t>(getuid());
  r.start_time = own_start_time();
  r.cuda_version = runtime_version();
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  put_text(r.host, host);
  char exe[256];
  const ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
  if (n > 0) {
    const std::string path(exe, static_cast<size_t>(n));
    put_text(r.program, path.substr(path.rfind('/') + 1));
  }
  return r;
}

std::vector<std::byte> open_frame(wire::OpenSession request, const RequestOptions& options) {
  std::string text;
  const auto add = [&text](const std::string& name, const std::string& value) {
    if (!value.empty()) text += name + "=" + value + "\n";
  };
  add("project", options.project);
  add("gpu_model", options.gpu_model);
  add("gpu_architecture", options.gpu_architecture);
  if (options.sharing != setting::kSharing.initial) add("sharing", options.sharing);
  for (const auto& [name, value] : options.labels) add("label", name + "=" + value);
  text.resize(std::min(wire::round_up(text.size(), 8), wire::kMaxRequestOptionBytes));
  request.header.size = static_cast<uint32_t>(sizeof request + text.size());
  std::vector<std::byte> frame(request.header.size);
  std::memcpy(frame.data(), &request, sizeof request);
  std::memcpy(frame.data() + sizeof request, text.data(), text.size());
  return frame;
}

}  // namespace sluice::client
