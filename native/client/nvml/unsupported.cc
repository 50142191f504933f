// SPDX-License-Identifier: Apache-2.0
// Everything else that NVML exports, and the texts of its errors.
#include "client/nvml/session.h"
#include "client/unsupported_nvml.inc"

extern "C" const char* nvmlErrorString(nvmlReturn_t result) {
  for (const ErrorText& e : kErrorTexts)
    if (e.value == static_cast<int>(result)) return e.text;
  return "Unknown Error";
}
