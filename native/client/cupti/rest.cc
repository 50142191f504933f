// SPDX-License-Identifier: Apache-2.0
// What libcupti exports beside the Activity and the Callback API: texts, its version, and all that
// is refused (native/api/absent.yaml), counters above all.
#include "client/absent/note.h"
#if SLUICE_CUPTI_MAJOR >= 13
#include "client/absent_cupti.inc"
constexpr uint32_t kApiVersion = 130001;  // of the CUPTI whose names are exported here
#else
#include "client/absent_cupti12.inc"
constexpr uint32_t kApiVersion = 28;
#endif

namespace {

CUptiResult text_of(CUptiResult result, const char** text) {
  if (!text) return CUPTI_ERROR_INVALID_PARAMETER;
  *text = sluice::absent::name_of(kCUptiResultNames, result);
  return *text ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  return text_of(result, text);
}

CUptiResult cuptiGetErrorMessage(CUptiResult result, const char** text) {
  return text_of(result, text);
}

CUptiResult cuptiGetVersion(uint32_t* version) {
  if (!version) return CUPTI_ERROR_INVALID_PARAMETER;
  *version = kApiVersion;
  return CUPTI_SUCCESS;
}

}  // extern "C"
#pragma GCC visibility pop
