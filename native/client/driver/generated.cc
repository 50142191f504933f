// SPDX-License-Identifier: Apache-2.0
// The exported functions that follow from the registry alone: refusals, and names that stand for others.
#include "abi/cuda_driver.h"
// The text below is made by native/codegen.
#include "client/unsupported_driver.inc"
#include "client/variants_driver.inc"
