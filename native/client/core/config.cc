// SPDX-License-Identifier: Apache-2.0
#include "client/core/config.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "client/core/ini_file.h"
#include "wire/frame.h"

namespace sluice::client {

namespace {

struct Value {
  std::string text;
  std::string where;
};
using Values = std::map<std::string, Value>;  // "section.key"

void read_file(const std::string& path, Values* values) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  for (IniValue& each : read_ini(text.view()))
    (*values)[each.section + "." + each.key] = {std::move(each.value),
                                                path + ":" + std::to_string(each.line)};
}

class Reader {
 public:
  Reader(const Values& values, Config* config) : values_(values), config_(config) {}

  bool find(const char* file_key, std::initializer_list<const char*> variables, Value* out) const {
    for (const char* name : variables) {
      if (const char* v = std::getenv(name); v && *v) {
        *out = {v, std::string("environment variable ") + name};
        return true;
      }
    }
    const auto it = file_key ? values_.find(file_key) : values_.end();
    if (it == values_.end()) return false;
    *out = it->second;
    return true;
  }

  void text(const char* key, std::initializer_list<const char*> variables, std::string* to) const {
    if (Value v; find(key, variables, &v)) *to = v.text;
  }

  template <class T>
  void number(const char* key, std::initializer_list<const char*> variables, long low, long high,
              T* to) const {
    Value v;
    if (!find(key, variables, &v)) return;
    char* end = nullptr;
    errno = 0;
    const long n = std::strtol(v.text.c_str(), &end, 10);
    if (errno || *end || end == v.text.c_str() || n < low || n > high) {
      if (config_->error.empty())
        config_->error = v.where + " is \"" + v.text + "\": a whole number from " +
                         std::to_string(low) + " to " + std::to_string(high) + " is wanted";
      return;
    }
    *to = static_cast<T>(n);
  }

  // One of a few words; anything else is an error.
  void word(const char* key, std::initializer_list<const char*> variables,
            std::initializer_list<const char*> known, std::string* to) const {
    Value v;
    if (!find(key, variables, &v)) return;
    std::string list;
    for (const char* each : known) {
      if (v.text == each) {
        *to = v.text;
        return;
      }
      list += (list.empty() ? "" : ", ") + std::string(each);
    }
    refuse(v, "one of " + list);
  }

  // Letters, digits and a few signs, as names of projects and labels are.
  void name(const char* key, std::initializer_list<const char*> variables, size_t longest,
            const char* others, std::string* to) const {
    Value v;
    if (!find(key, variables, &v)) return;
    if (is_name(v.text, longest, others))
      *to = v.text;
    else
      refuse(v, "at most " + std::to_string(longest) + " letters, digits or any of \"" + others +
                    "\"");
  }

  // NAME=VALUE pairs with commas.
  void labels(const char* key, std::initializer_list<const char*> variables,
              std::vector<std::pair<std::string, std::string>>* to) const {
    Value v;
    if (!find(key, variables, &v)) return;
    std::stringstream list(v.text);
    std::string entry;
    while (std::getline(list, entry, ',')) {
      const size_t equal = entry.find('=');
      const std::string name(trimmed(std::string_view(entry).substr(0, equal)));
      const std::string value(
          equal == std::string::npos ? "" : trimmed(std::string_view(entry).substr(equal + 1)));
      if (!is_name(name, wire::kMaxLabelBytes, "._/-") ||
          !is_name(value, wire::kMaxLabelBytes, "._/-") || to->size() == wire::kMaxLabels) {
        refuse(v, "at most " + std::to_string(wire::kMaxLabels) +
                      " pairs NAME=VALUE with commas, such as rack=r12,");
        return;
      }
      to->emplace_back(name, value);
    }
  }

  void flag(const char* key, std::initializer_list<const char*> variables, bool* to) const {
    Value v;
    if (!find(key, variables, &v)) return;
    if (v.text == "1" || v.text == "true" || v.text == "yes" || v.text == "on")
      *to = true;
    else if (v.text == "0" || v.text == "false" || v.text == "no" || v.text == "off")
      *to = false;
    else if (config_->error.empty())
      config_->error = v.where + " is \"" + v.text + "\": true or false is wanted";
  }

 private:
  static bool is_name(const std::string& text, size_t longest, const char* others) {
    return !text.empty() && text.size() <= longest &&
           std::all_of(text.begin(), text.end(), [others](unsigned char c) {
             return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                    (c && std::strchr(others, c));
           });
  }

  void refuse(const Value& v, const std::string& wanted) const {
    if (config_->error.empty())
      config_->error = v.where + " is \"" + v.text + "\": " + wanted + " is wanted";
  }

  const Values& values_;
  Config* config_;
};

}  // namespace

bool is_job_token(const std::string& text) {
  return text.size() == wire::kJobTokenDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::vector<uint32_t> visible_devices(const char* text, uint32_t count) {
  std::vector<uint32_t> found;
  if (!text) {
    for (uint32_t i = 0; i < count; ++i) found.push_back(i);
    return found;
  }
  std::stringstream list(text);
  std::string entry;
  while (std::getline(list, entry, ',')) {
    entry = std::string(trimmed(entry));
    uint32_t device = static_cast<uint32_t>(found.size());
    if (!entry.starts_with("GPU-") && !entry.starts_with("MIG-")) {
      if (entry.empty() || entry[0] < '0' || entry[0] > '9') break;
      device =
          static_cast<uint32_t>(std::min(std::strtoull(entry.c_str(), nullptr, 10), 1ull << 31));
    }
    if (device >= count) break;
    if (std::find(found.begin(), found.end(), device) != found.end()) return {};
    found.push_back(device);
  }
  return found;
}

Config read_config() {
  Config c;
  Values values;
  read_file("/etc/sluice/client.conf", &values);
  if (const char* home = std::getenv("HOME"))
    read_file(std::string(home) + "/.sluice/client.conf", &values);
  const Reader r(values, &c);
  r.text("controller.controller_addr", {"SLUICE_CONTROLLER", "ORION_CONTROLLER"}, &c.controller);
  r.text("controller.ca", {"SLUICE_CA"}, &c.ca_file);
  r.text(nullptr, {"SLUICE_TOKEN"}, &c.token);
  r.text("controller.token_file", {"SLUICE_TOKEN_FILE"}, &c.token_file);
  c.token_file_named = !c.token_file.empty();
  if (const char* home = std::getenv("HOME"); home && !c.token_file_named)
    c.token_file = std::string(home) + "/.sluice/token";
  r.text("client.server_socket", {"SLUICE_SERVER_SOCKET"}, &c.server_socket);
  r.text("client.channel", {"SLUICE_CHANNEL"}, &c.channel);
  r.text("client.ivshmem", {"SLUICE_IVSHMEM"}, &c.ivshmem);
  r.flag("client.enable_net", {}, &c.enable_net);
  r.flag("log.log_to_screen", {}, &c.log_to_screen);
  r.number("client.vgpu_count", {"SLUICE_VGPU", "ORION_VGPU"}, 1, wire::kMaxDevices, &c.vgpu_count);
  r.number("client.gmem", {"SLUICE_GMEM", "ORION_GMEM"}, 1, wire::kMaxGmemMib, &c.gmem_mib);
  r.number("client.ratio", {"SLUICE_RATIO", "ORION_RATIO"}, 1, wire::kMaxRatioPercent,
           &c.ratio_percent);
  r.flag("client.cross_node", {"SLUICE_CROSS_NODE", "ORION_CROSS_NODE"}, &c.cross_node);
  r.number("client.priority", {"SLUICE_PRIORITY"}, -wire::kMaxPriority, wire::kMaxPriority,
           &c.priority);
  r.number("client.wait", {"SLUICE_WAIT"}, -1, wire::kMaxWaitSeconds, &c.wait_seconds);
  r.name("client.project", {"SLUICE_PROJECT"}, wire::kMaxProjectBytes, "._-", &c.options.project);
  r.name("client.gpu_model", {"SLUICE_GPU_MODEL"}, wire::kMaxGpuModelBytes, " ._-()/",
         &c.options.gpu_model);
  r.name("client.gpu_architecture", {"SLUICE_GPU_ARCHITECTURE"}, wire::kMaxArchitectureBytes, "._",
         &c.options.gpu_architecture);
  r.labels("client.labels", {"SLUICE_LABELS"}, &c.options.labels);
  r.word("client.mode", {"SLUICE_MODE"}, {"auto", "reserved", "on-demand"}, &c.options.mode);
  r.flag("client.preempt", {"SLUICE_PREEMPT"}, &c.options.preempt);
  r.flag("client.same_gpu", {"SLUICE_SAME_GPU"}, &c.options.same_gpu);
  r.text(nullptr, {"SLUICE_JOB"}, &c.job);
  r.number(nullptr, {"SLUICE_JOB_PROCESSES"}, 1, wire::kMaxJobProcesses, &c.job_processes);
  if (!c.job.empty() && !is_job_token(c.job) && c.error.empty())
    c.error = "SLUICE_JOB is no token of `sluice run --share` (" +
              std::to_string(wire::kJobTokenDigits) +
              " hexadecimal digits): unset it, or start the job with `sluice run --share`";
  r.number(nullptr, {"SLUICE_DEBUG"}, 0, 9, &c.debug);
  r.flag(nullptr, {"SLUICE_STATS"}, &c.stats);
  constexpr const char* kChannels[] = {"auto", "shm", "ivshmem", "vsock", "tcp"};
  if (std::find(std::begin(kChannels), std::end(kChannels), c.channel) == std::end(kChannels) &&
      c.error.empty())
    c.error =
        "the channel \"" + c.channel + "\" is unknown: auto, shm, ivshmem, vsock or tcp is wanted";
  c.visible = visible_devices(std::getenv("CUDA_VISIBLE_DEVICES"), c.vgpu_count);
  return c;
}

}  // namespace sluice::client
