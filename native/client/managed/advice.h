// SPDX-License-Identifier: Apache-2.0
// What a program has said of pages of managed memory (cuMemAdvise, cuMemPrefetchAsync), for
// cuMemRangeGetAttribute to say again. Pages move by touch and launch whatever was advised.
#pragma once

#include <cstdint>

namespace sluice::client {

struct Advice {
  static constexpr int kHost = -1;     // CU_DEVICE_CPU
  static constexpr int kNowhere = -2;  // CU_DEVICE_INVALID

  bool read_mostly = false;
  int preferred = kNowhere;
  int prefetched = kNowhere;
  uint64_t accessed_by = 0;  // bit i: the device i
  bool accessed_by_host = false;

  bool operator==(const Advice&) const = default;
};

}  // namespace sluice::client
