// SPDX-License-Identifier: Apache-2.0
#include "client/core/config.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <span>
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

using List = std::span<const char* const>;

bool is_one_of(const std::string& text, List words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

// "a, b" + last + "c".
std::string listed(List words, const char* last) {
  std::string all;
  for (size_t i = 0; i < words.size(); ++i)
    all += std::string(i == 0 ? "" : i + 1 == words.size() ? last : ", ") + words[i];
  return all;
}

class Reader {
 public:
  Reader(const Values& values, Config* config) : values_(values), config_(config) {}

  void read(const setting::Text& setting, std::string* to) const {
    if (Value v; find(setting.place, &v)) *to = v.text;
  }

  template <class T>
  void read(const setting::Number& setting, T* to) const {
    Value v;
    if (!find(setting.place, &v)) return;
    char* end = nullptr;
    errno = 0;
    const long n = std::strtol(v.text.c_str(), &end, 10);
    if (errno || *end || end == v.text.c_str() || n < setting.least || n > setting.most)
      refuse(v, "a whole number from " + std::to_string(setting.least) + " to " +
                    std::to_string(setting.most));
    else
      *to = static_cast<T>(n);
  }

  void read(const setting::Words& setting, std::string* to) const {
    Value v;
    if (!find(setting.place, &v)) return;
    if (is_one_of(v.text, setting.known))
      *to = v.text;
    else
      refuse(v, "one of " + listed(setting.known, ", "));
  }

  // Without judging it.
  void take(const setting::Words& setting, std::string* to) const {
    if (Value v; find(setting.place, &v)) *to = v.text;
  }

  void read(const setting::Name& setting, std::string* to) const {
    Value v;
    if (!find(setting.place, &v)) return;
    if (is_name(v.text, setting.longest, setting.others))
      *to = v.text;
    else
      refuse(v, "at most " + std::to_string(setting.longest) + " letters, digits or any of \"" +
                    setting.others + "\"");
  }

  void read(const setting::Labels& setting,
            std::vector<std::pair<std::string, std::string>>* to) const {
    Value v;
    if (!find(setting.place, &v)) return;
    std::stringstream list(v.text);
    std::string entry;
    while (std::getline(list, entry, ',')) {
      const size_t equal = entry.find('=');
      const std::string name(trimmed(std::string_view(entry).substr(0, equal)));
      const std::string value(
          equal == std::string::npos ? "" : trimmed(std::string_view(entry).substr(equal + 1)));
      if (!is_name(name, setting.longest, setting.others) ||
          !is_name(value, setting.longest, setting.others) || to->size() == setting.most) {
        refuse(v, "at most " + std::to_string(setting.most) +
                      " pairs NAME=VALUE with commas, such as rack=r12,");
        return;
      }
      to->emplace_back(name, value);
    }
  }

  void read(const setting::Flag& setting, bool* to) const {
    Value v;
    if (!find(setting.place, &v)) return;
    if (is_one_of(v.text, setting::kTrueWords))
      *to = true;
    else if (is_one_of(v.text, setting::kFalseWords))
      *to = false;
    else
      refuse(v, "true or false");
  }

 private:
  bool find(const setting::Place& place, Value* out) const {
    for (const char* name : place.variables) {
      if (const char* v = name ? std::getenv(name) : nullptr; v && *v) {
        *out = {v, std::string("environment variable ") + name};
        return true;
      }
    }
    const auto it = place.key ? values_.find(place.key) : values_.end();
    if (it == values_.end()) return false;
    *out = it->second;
    return true;
  }

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
  r.read(setting::kControllerAddr, &c.controller);
  r.read(setting::kCa, &c.ca_file);
  r.read(setting::kToken, &c.token);
  r.read(setting::kTokenFile, &c.token_file);
  c.token_file_named = !c.token_file.empty();
  if (const char* home = std::getenv("HOME"); home && !c.token_file_named)
    c.token_file = std::string(home) + "/.sluice/token";
  r.read(setting::kServerSocket, &c.server_socket);
  r.take(setting::kChannel, &c.channel);
  r.read(setting::kBulkConnections, &c.bulk_connections);
  r.read(setting::kIvshmem, &c.ivshmem);
  r.read(setting::kIbverbsDevice, &c.ibverbs_device);
  r.read(setting::kEnableNet, &c.enable_net);
  r.read(setting::kLogToScreen, &c.log_to_screen);
  r.read(setting::kVgpuCount, &c.vgpu_count);
  r.read(setting::kGmem, &c.gmem_mib);
  r.read(setting::kRatio, &c.ratio_percent);
  r.read(setting::kCrossNode, &c.cross_node);
  r.read(setting::kPriority, &c.priority);
  r.read(setting::kWait, &c.wait_seconds);
  r.read(setting::kProject, &c.options.project);
  r.read(setting::kGpuModel, &c.options.gpu_model);
  r.read(setting::kGpuArchitecture, &c.options.gpu_architecture);
  r.read(setting::kLabels, &c.options.labels);
  r.read(setting::kMode, &c.options.mode);
  r.read(setting::kSharing, &c.options.sharing);
  r.read(setting::kMergeLaunches, &c.options.merge_launches);
  r.read(setting::kPreempt, &c.options.preempt);
  r.read(setting::kSameGpu, &c.options.same_gpu);
  r.read(setting::kJob, &c.job);
  r.read(setting::kJobProcesses, &c.job_processes);
  if (!c.job.empty() && !is_job_token(c.job) && c.error.empty())
    c.error = "SLUICE_JOB is no token of `sluice run --share` (" +
              std::to_string(wire::kJobTokenDigits) +
              " hexadecimal digits): unset it, or start the job with `sluice run --share`";
  r.read(setting::kStaticRuntime, &c.static_runtime);
  r.read(setting::kDebug, &c.debug);
  r.read(setting::kStats, &c.stats);
  if (!is_one_of(c.channel, setting::kChannel.known) && c.error.empty())
    c.error = "the channel \"" + c.channel +
              "\" is unknown: " + listed(setting::kChannel.known, " or ") + " is wanted";
  c.visible = visible_devices(std::getenv("CUDA_VISIBLE_DEVICES"), c.vgpu_count);
  return c;
}

}  // namespace sluice::client
