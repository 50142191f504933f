// SPDX-License-Identifier: Apache-2.0
// Names of the reasons why commands were not launched as graphs (native/api/bodies/merging.yaml),
// for the client's statistics and the worker's log.
#pragma once

#include "wire/bodies/merging.h"

namespace sluice::wire {

inline constexpr size_t kLeftReasons = 8;

// What comes behind a number of commands.
inline const char* text_of(LeftSingle why) {
  switch (why) {
    case LeftSingle::kLate:
      return "late";
    case LeftSingle::kDiffering:
      return "differing";
    case LeftSingle::kCutShort:
      return "cut short";
    case LeftSingle::kNotMade:
      return "without a graph";
    case LeftSingle::kUnseen:
      return "not looked at";
    case LeftSingle::kAnswered:
      return "answered";
    case LeftSingle::kLibrary:
      return "of libraries";
    case LeftSingle::kOther:
      return "of other kinds";
  }
  return "for other reasons";
}

}  // namespace sluice::wire
