// SPDX-License-Identifier: Apache-2.0
#include "process/options.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>

#include "process/log.h"
#include "whole_number.h"

namespace sluice::process {

namespace {

// setresuid() and setresgid() take the largest number for "stays as it is".
constexpr uint32_t kMostAccount = std::numeric_limits<uint32_t>::max() - 1;

// From 0 to `most`.
template <class T>
Option number_option(std::string name, T* to, T most = std::numeric_limits<T>::max()) {
  return {std::move(name), [=](const char* value) -> std::string {
            uint64_t number = 0;
            if (!read_whole_number(value, &number) || number > static_cast<uint64_t>(most))
              return "a number from 0 to " + std::to_string(most);
            *to = static_cast<T>(number);
            return "";
          }};
}

}  // namespace

Option text_option(std::string name, std::string* to) {
  return {std::move(name), [=](const char* value) { return *to = value, std::string(); }};
}

Option switch_option(std::string name, bool* to) {
  return {std::move(name), [=](const char* value) {
            *to = std::strcmp(value, "off") != 0;
            return std::string();
          }};
}

bool read_options(std::span<char* const> arguments, std::span<const Option> known,
                  std::string* error) {
  for (size_t i = 0; i < arguments.size(); i += 2) {
    const auto option =
        std::ranges::find_if(known, [&](const Option& o) { return o.name == arguments[i]; });
    if (option == known.end()) return *error = "unknown option " + std::string(arguments[i]), false;
    if (i + 1 == arguments.size()) return *error = option->name + " needs a value", false;
    if (const std::string wanted = option->take(arguments[i + 1]); !wanted.empty()) {
      *error = option->name + " is \"" + arguments[i + 1] + "\"; " + wanted + " is wanted";
      return false;
    }
  }
  return true;
}

std::vector<Option> options_of(SessionProcess* process) {
  return {text_option("--id", &process->id),
          number_option("--control", &process->control),
          text_option("--cgroup", &process->cgroup),
          number_option("--uid", &process->uid, kMostAccount),
          number_option("--gid", &process->gid, kMostAccount),
          switch_option("--sandbox", &process->sandbox),
          text_option("--rdma", &process->rdma)};
}

void join_cgroup(const std::string& folder) {
  if (folder.empty()) return;
  FILE* f = std::fopen((folder + "/cgroup.procs").c_str(), "w");
  if (!f || std::fprintf(f, "%d", getpid()) < 0 || std::fclose(f) != 0)
    log_error("joining the cgroup " + folder + ": " + std::strerror(errno));
}

}  // namespace sluice::process
