// SPDX-License-Identifier: Apache-2.0
// What loading code (module.cc) and linking it (link.cc) share: images on their way to the node,
// and the options and logs of its compiler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "abi/cuda_driver.h"
#include "client/core/jit_logs.h"

namespace sluice::client {

class Session;
struct Device;

// The options that are numbers go along; the log buffers are filled here.
struct JitOptions {
  std::vector<uint32_t> pairs;
  JitLogs logs;
  JitOptions(unsigned count, const CUjit_option* options, void** values);
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(pairs)); }
  uint32_t count() const { return static_cast<uint32_t>(pairs.size() / 2); }
};

// Sends an image ahead of the command that will name it.
CUresult upload(Session* s, const Device& to, const void* image, size_t bytes, uint64_t* blob);

}  // namespace sluice::client
