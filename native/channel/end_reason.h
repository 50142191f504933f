// SPDX-License-Identifier: Apache-2.0
// Why the host side ended a session: text at the end of its slot's mailbox, up to a NUL, for the
// client's user. The worker writes it before `sticky_error`, so whoever sees that sees this too;
// empty while the session lives, and where an older worker did not say.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>

#include "channel/region.h"

namespace sluice::channel {

inline constexpr size_t kEndReasonBytes = 512;

inline std::span<std::byte> end_reason_place(const MappedSlot& slot) {
  return slot.mailbox().last(kEndReasonBytes);
}

inline void write_end_reason(const MappedSlot& slot, const std::string& reason) {
  const auto at = end_reason_place(slot);
  std::memset(at.data(), 0, at.size());
  std::memcpy(at.data(), reason.data(), std::min(reason.size(), at.size() - 1));
}

inline std::string read_end_reason(const MappedSlot& slot) {
  const auto at = end_reason_place(slot);
  const auto* text = reinterpret_cast<const char*>(at.data());
  return {text, strnlen(text, at.size())};
}

}  // namespace sluice::channel
