// SPDX-License-Identifier: Apache-2.0
// libnvshmem_host.so.3. Its start-up refuses, and the status of the start-up stays "not
// initialized".
#include <cstdio>
#include <cstdlib>

#include "client/absent/note.h"
#include "client/absent_nvshmem.inc"

extern "C" {

__attribute__((visibility("default"))) void nvshmem_info_get_version(int* major, int* minor) {
  // Of OpenSHMEM, not of the library.
  if (major) *major = 1;
  if (minor) *minor = 3;
}

__attribute__((visibility("default"))) void nvshmemx_vendor_get_version_info(int* major, int* minor,
                                                                             int* patch) {
  if (major) *major = 3;
  if (minor) *minor = 4;
  if (patch) *patch = 5;
}

__attribute__((visibility("default"))) void nvshmem_info_get_name(char* name) {
  constexpr size_t kLongest = 256;  // NVSHMEM_MAX_NAME_LEN
  if (name) std::snprintf(name, kLongest, "NVSHMEM is not available through Sluice");
}

__attribute__((visibility("default"))) void nvshmem_query_thread(int* provided) {
  if (provided) *provided = 0;  // NVSHMEM_THREAD_SINGLE
}

// Ends the program by definition, on every processing element; there is this one only.
__attribute__((visibility("default"))) void nvshmem_global_exit(int status) { std::exit(status); }

}  // extern "C"
