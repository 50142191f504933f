// SPDX-License-Identifier: Apache-2.0
// Where an application wants to read what the node's compiler and linker said.
#pragma once

#include <cstddef>
#include <span>

namespace sluice::client {

// The log buffers that an application names among its options. They stay its own, and so does
// where CUDA leaves their lengths.
struct JitLogs {
  struct Log {
    char* text = nullptr;
    size_t room = 0;
    void** written = nullptr;
    void give(const char* from, size_t n) const;
  };
  Log info, error;

  // A wire::CodeLoadReply with the texts behind it; nothing when there is none.
  void give(std::span<const std::byte> answer) const;
};

}  // namespace sluice::client
