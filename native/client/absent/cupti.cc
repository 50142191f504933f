// SPDX-License-Identifier: Apache-2.0
// libcupti.so.13. A profiler that cannot subscribe goes on without the GPU: Kineto, which is what
// torch.profiler stands on, warns once and records the CPU's side.
#include "client/absent/note.h"
#include "client/absent_cupti.inc"

namespace {

constexpr uint32_t kApiVersion = 130001;  // of the CUPTI whose names are exported here

CUptiResult text_of(CUptiResult result, const char** text) {
  if (!text) return CUPTI_ERROR_INVALID_PARAMETER;
  *text = sluice::absent::name_of(kCUptiResultNames, result);
  return *text ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) CUptiResult cuptiGetResultString(CUptiResult result,
                                                                        const char** text) {
  return text_of(result, text);
}

__attribute__((visibility("default"))) CUptiResult cuptiGetErrorMessage(CUptiResult result,
                                                                        const char** text) {
  return text_of(result, text);
}

__attribute__((visibility("default"))) CUptiResult cuptiGetVersion(uint32_t* version) {
  if (!version) return CUPTI_ERROR_INVALID_PARAMETER;
  *version = kApiVersion;
  return CUPTI_SUCCESS;
}

}  // extern "C"
