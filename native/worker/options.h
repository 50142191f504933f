// SPDX-License-Identifier: Apache-2.0
// How sluice-server starts a worker (server/workers/process.py): read once by main().
#pragma once

#include <string>
#include <vector>

#include "process/options.h"

namespace sluice::worker {

struct Options : process::SessionProcess {
  std::string driver;                  // libcuda.so.1, or what stands in its place
  std::vector<std::string> libraries;  // folders of NVIDIA's libraries
  std::string visible;                 // UUIDs of GPUs, with commas; "": all
  std::string beside;                  // of a session that may move: those that it does not use
  bool waits = false;                  // for its session, which says whom it becomes
  bool meter = true;                   // what libraries take is charged to the session
  bool concurrent = false;             // through MPS: uid and gid are its daemon's
};

// False with `error`.
bool read_options(int argc, char** argv, Options* options, std::string* error);

}  // namespace sluice::worker
