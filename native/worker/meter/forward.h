// SPDX-License-Identifier: Apache-2.0
// What forward.cc and metered.cc of sluice_meter.so know of each other: the driver's functions, and
// which of them have a metered one in their place.
#pragma once

#include "abi/cuda_driver.h"
#include "worker/meter/meter.h"

namespace sluice::meter {

using worker::MeterHost;

// The driver's own; nullptr where it has none.
struct Real {
#define SLUICE_DRIVER_FUNCTION(name) decltype(&::name) name = nullptr;
#include "abi/driver_functions.inc"
#undef SLUICE_DRIVER_FUNCTION
};
extern Real real;
extern const MeterHost* host;

// By exported name; nullptr for what goes straight to the driver.
void* metered(const char* exported);
// The same for what cuGetProcAddress is asked for.
void* metered_answer(const char* symbol, int version, bool per_thread);

}  // namespace sluice::meter
