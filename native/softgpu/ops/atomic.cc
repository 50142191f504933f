// SPDX-License-Identifier: Apache-2.0
#include "softgpu/ops/tables.h"
namespace sluice::softgpu { void add_atomics(OpcodeTable&) {} }
