// SPDX-License-Identifier: Apache-2.0
// For the generated stubs of exported functions that Sluice does not speak yet.
#pragma once

namespace sluice::client {

// Logs once per function that it was called and refused.
void note_unsupported(const char* function);

}  // namespace sluice::client
