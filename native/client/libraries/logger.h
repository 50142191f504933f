// SPDX-License-Identifier: Apache-2.0
// The functions by which a program sets how a library logs. The library runs on the GPU's node, and
// what it logs there is not carried to the program: they succeed, and that is said once.
#pragma once

#include "client/library/call.h"

#define SLUICE_LOGGER(prefix, name)                                                         \
  namespace {                                                                               \
  void logging_is_wanted() {                                                                \
    sluice_library_note(name " runs on the GPU's node; what it logs there is not carried"); \
  }                                                                                         \
  }                                                                                         \
  SLUICE_PUBLIC int32_t prefix##LoggerSetCallback(void* callback) {                         \
    if (callback) logging_is_wanted();                                                      \
    return 0;                                                                               \
  }                                                                                         \
  SLUICE_PUBLIC int32_t prefix##LoggerSetFile(void* file) {                                 \
    if (file) logging_is_wanted();                                                          \
    return 0;                                                                               \
  }                                                                                         \
  SLUICE_PUBLIC int32_t prefix##LoggerOpenFile(const char* file) {                          \
    if (file) logging_is_wanted();                                                          \
    return 0;                                                                               \
  }                                                                                         \
  SLUICE_PUBLIC int32_t prefix##LoggerSetLevel(int32_t level) {                             \
    if (level > 0) logging_is_wanted();                                                     \
    return 0;                                                                               \
  }                                                                                         \
  SLUICE_PUBLIC int32_t prefix##LoggerSetMask(int32_t mask) {                               \
    if (mask != 0) logging_is_wanted();                                                     \
    return 0;                                                                               \
  }                                                                                         \
  SLUICE_PUBLIC int32_t prefix##LoggerForceDisable() { return 0; }
