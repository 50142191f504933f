// SPDX-License-Identifier: Apache-2.0
// Code as the application holds it: modules and libraries, what is found in them, and links under
// way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/core/jit_logs.h"
#include "wire/bodies/commands.h"

namespace sluice::client {

struct Device;

// A loaded module or library.
struct Code {
  Device* device = nullptr;       // of a module
  uint64_t library = 0;           // whose module it is, if it is one's: it goes with that
  std::vector<uint64_t> modules;  // a library's, one of each device that was asked about
  struct Named {
    std::string name;
    uint64_t handle;
  };
  std::vector<Named> functions;
  struct Global {
    std::string name;
    uint64_t address, bytes;
    uint32_t node;  // whose address it is
  };
  std::vector<Global> globals;
};

// A link of the node's linker under way (driver/link.cc).
struct Link {
  Device* device = nullptr;
  JitLogs logs;
  std::vector<char> image;  // the product
  bool complete = false;
};

// A module's function or a library's kernel.
struct Function {
  Device* device = nullptr;  // nullptr for a kernel: it runs on the current context's device
  uint64_t code = 0;
  std::string name;
  wire::FunctionRecord record{};
  struct Param {
    uint32_t offset, size;
  };
  std::vector<Param> params;
  // What the functions of CUDA 2 have set for the next launch (driver/old_launch.cc).
  struct Prepared {
    uint32_t block[3] = {1, 1, 1};
    uint32_t shared = 0;
    std::vector<std::byte> params;
  };
  std::shared_ptr<Prepared> prepared;
};

}  // namespace sluice::client
