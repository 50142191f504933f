// SPDX-License-Identifier: Apache-2.0
// libcusparseLt.so.0. cusparseLtInit already refuses, so no caller gets as far as a handle.
#include "client/absent/note.h"
#include "client/absent_cusparselt.inc"

extern "C" {

__attribute__((visibility("default"))) const char* cusparseLtGetErrorName(cusparseStatus_t status) {
  const char* name = sluice::absent::name_of(kcusparseStatus_tNames, status);
  return name ? name : "unrecognized error code";
}

__attribute__((visibility("default"))) const char* cusparseLtGetErrorString(
    cusparseStatus_t status) {
  if (status == CUSPARSE_STATUS_SUCCESS) return "success";
  if (status == CUSPARSE_STATUS_NOT_SUPPORTED) return "cuSPARSELt is not available through Sluice";
  return cusparseLtGetErrorName(status);
}

}  // extern "C"
