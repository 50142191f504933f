// SPDX-License-Identifier: Apache-2.0
// The arguments of the processes that sluice-server starts: pairs of an option and its value. What
// each of a session's processes is told is here once; a program adds its own.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace sluice::process {

struct Option {
  std::string name;  // "--id"
  // Returns what the value should have been; empty when it is that.
  std::function<std::string(const char*)> take;
};

Option text_option(std::string name, std::string* to);
// "off" switches off; whatever else is on.
Option switch_option(std::string name, bool* to);

// Gives each value to its option. False with `error`: an option that there is not, one without its
// value, or a value that is none for it.
bool read_options(std::span<char* const> arguments, std::span<const Option> known,
                  std::string* error);

// Of a worker and of a relay.
struct SessionProcess {
  std::string id;
  int control = -1;    // the listening socket that the server connects to
  std::string cgroup;  // a folder; "": it stays where it is
  uint32_t uid = 0, gid = 0;
  bool sandbox = true;
  std::string rdma;  // NAME[:PORT[:GID]] of the device for sessions by RDMA; "": none
};
std::vector<Option> options_of(SessionProcess* process);

// This process and its threads count there. What goes wrong is logged, and they stay where they
// are.
void join_cgroup(const std::string& folder);

}  // namespace sluice::process
