// SPDX-License-Identifier: Apache-2.0
// Which major version of CUDA the program speaks: libcudart.so.N, or a forwarding library that has
// a SONAME of its own in that version, says so before the session is opened, and OpenSession tells
// the node. Who says nothing (a program on the driver API) is taken for the newest.
#pragma once

#include <cstdint>

// The CUDART_VERSION of a library that was loaded; the first counts. Another major version beside
// it is logged once: one program has one. Exported for our own libraries.
extern "C" __attribute__((visibility("default"))) void sluice_runtime_version(int version);
// Where the contexts are counted that are current on the calling thread; there until it ends. The
// runtime gives a thread without one the primary context, and looks at each call.
extern "C" __attribute__((visibility("default"))) const uint32_t* sluice_runtime_contexts();

namespace sluice::client {

// What was said first, or the newest: 13000 = 13.0.
uint32_t runtime_version();

}  // namespace sluice::client
