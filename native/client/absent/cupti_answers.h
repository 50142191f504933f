// SPDX-License-Identifier: Apache-2.0
// What CUPTI's functions by hand answer, the same in each version: included once by each version's
// source, behind its generated part and kApiVersion.
#pragma once

namespace {

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
