// SPDX-License-Identifier: Apache-2.0
// The name of a code image by its content: BLAKE2b with 32 bytes (RFC 7693), which client, worker
// and server (hashlib.blake2b) compute alike. It runs at about a gigabyte a second in plain C++ on
// every processor, where SHA-256 needs instructions that not all have.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sluice::wire {

using ContentHash = std::array<uint8_t, 32>;

ContentHash content_hash(std::span<const std::byte> content);
std::string hex(const ContentHash& hash);

}  // namespace sluice::wire
