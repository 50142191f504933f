// SPDX-License-Identifier: Apache-2.0
// Parts of fat binaries as nvcc packs them, unpacked: for the worker, which looks what they will
// take, and for the software GPU, which runs their PTX.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "image_format.h"

namespace sluice::fat_binary {

// Of one part, unpacked.
inline constexpr uint64_t kMaxUnpacked = 1ull << 30;

inline bool is_packed(const Part& part) { return part.flags & (kLz4 | kZstd); }

// What a packed part holds; `payload` is what stands behind its header. False: it is not as its
// header says, or (with another `why`) this machine cannot unpack it.
bool unpack(const Part& part, std::span<const std::byte> payload, std::vector<std::byte>* content,
            std::string* why);

// All of `packed`, which fills `to` exactly.
bool unpack_lz4(std::span<const std::byte> packed, std::span<std::byte> to);

}  // namespace sluice::fat_binary
