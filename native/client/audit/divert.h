// SPDX-License-Identifier: Apache-2.0
// `static_runtime = divert`: a program that has NVIDIA's CUDA runtime linked in gets ours.
//
// When the loader has mapped an object in which a static runtime is found (static_runtime.h), each
// of that runtime's public functions is made to jump to the function of the same name in our
// libcudart, which is loaded already; what ours has not answers cudaErrorNotSupported. All of them
// or none, before any code of the object runs. It changes code of others in the memory of the
// user's own process: whoever runs the program has to have asked for it.
#pragma once

#include <link.h>

namespace sluice::audit {

// Whether the user wants it (SLUICE_STATIC_RUNTIME=divert).
bool diverts();
// An object of the program's own name space was mapped.
void note_object(const link_map* map);
// All that was to be mapped is there. `is_ours`: whether a path is of one of our libraries.
void divert_noted(bool (*is_ours)(const char* path));

}  // namespace sluice::audit
