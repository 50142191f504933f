// SPDX-License-Identifier: Apache-2.0
// What both ends make of the bodies of the commands for graphs (native/api/bodies/graphs.yaml).
#pragma once

#include "wire/bodies/graphs.h"

namespace sluice::wire {

// Whether it names one of the two words of a signal.
constexpr bool is_signal(uint64_t address) {
  return address - kSignalBase < kSignalBytes * kMaxSignals && address % kSignalBytes <= 8 &&
         address % 8 == 0;
}

}  // namespace sluice::wire
