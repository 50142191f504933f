// SPDX-License-Identifier: Apache-2.0
// cuInit, versions, error names: what a process asks before and beside its session.
#include <algorithm>
#include <cstring>

#include "abi/names.h"
#include "client/core/enter.h"
#include "client/core/log.h"
#include "client/core/session.h"

using namespace sluice::client;

namespace {

const sluice::abi::ErrorName* find_error(CUresult error) {
  for (const auto& e : sluice::abi::kDriverErrors)
    if (e.value == static_cast<int>(error)) return &e;
  return nullptr;
}

CUresult error_text(CUresult error, const char** text, const char* sluice::abi::ErrorName::*which) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  const auto* e = find_error(error);
  *text = e ? e->*which : nullptr;
  return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = Session::open(); e != CUDA_SUCCESS) return e;
  Session* s;
  return enter(&s);
}

CUresult cuDriverGetVersion(int* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  const Session* s = Session::get();
  *version = s ? static_cast<int>(std::min(s->record().driver_version, 13000u)) : 13000;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  return error_text(error, text, &sluice::abi::ErrorName::name);
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  return error_text(error, text, &sluice::abi::ErrorName::text);
}

CUresult cuGetExportTable(const void** table, const CUuuid*) {
  if (!table) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  note_export_table(__builtin_return_address(0));
  return CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"
