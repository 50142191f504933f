// SPDX-License-Identifier: Apache-2.0
// What is generated of libcudart.so.12 (native/api/runtime12.yaml): names that the newest runtime
// has without a suffix, functions whose parameters or structures differ, the old ones that it lost.
#include "client/own_runtime12.inc"
