// SPDX-License-Identifier: Apache-2.0
// libcufile.so.0. Reads and writes answer the negative status, as they do without NVIDIA's driver
// for storage; everything else answers the pair of a cuFile and a CUDA error.
#include <sys/types.h>

#include "client/absent/note.h"

struct CUfileError_t {
  int err;
  int cuda;
};

#include "client/absent_cufile.inc"
