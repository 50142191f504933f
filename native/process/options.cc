// SPDX-License-Identifier: Apache-2.0
#include "process/options.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "process/log.h"

namespace sluice::process {

bool read_options(std::span<char* const> arguments, std::span<const Option> known,
                  std::string* error) {
  for (size_t i = 0; i < arguments.size(); i += 2) {
    const auto option =
        std::ranges::find_if(known, [&](const Option& o) { return o.name == arguments[i]; });
    if (option == known.end()) return *error = "unknown option " + std::string(arguments[i]), false;
    if (i + 1 == arguments.size()) return *error = option->name + " needs a value", false;
    option->take(arguments[i + 1]);
  }
  return true;
}

std::vector<Option> options_of(SessionProcess* process) {
  const auto number = [](const char* value) { return static_cast<uint32_t>(std::atol(value)); };
  return {{"--id", [=](const char* value) { process->id = value; }},
          {"--control", [=](const char* value) { process->control = std::atoi(value); }},
          {"--cgroup", [=](const char* value) { process->cgroup = value; }},
          {"--uid", [=](const char* value) { process->uid = number(value); }},
          {"--gid", [=](const char* value) { process->gid = number(value); }},
          {"--sandbox", [=](const char* value) { process->sandbox = is_on(value); }}};
}

bool is_on(const char* value) { return std::strcmp(value, "off") != 0; }

void join_cgroup(const std::string& folder) {
  if (folder.empty()) return;
  FILE* f = std::fopen((folder + "/cgroup.procs").c_str(), "w");
  if (!f || std::fprintf(f, "%d", getpid()) < 0 || std::fclose(f) != 0)
    log_error("joining the cgroup " + folder + ": " + std::strerror(errno));
}

}  // namespace sluice::process
