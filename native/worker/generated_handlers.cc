// SPDX-License-Identifier: Apache-2.0
// Handlers of the functions that have a frame of their own.
#include <cstring>

#include "wire/generated.h"
#include "worker/dispatch.h"

namespace sluice::worker {

namespace {

// An enumeration's place in an answer is a number of the same size.
template <class T, class Field>
T* out(Field* field) {
  static_assert(sizeof(T) == sizeof(Field));
  return reinterpret_cast<T*>(field);
}

// The text below is made by native/codegen.
#include "worker/generated_handlers.inc"

}  // namespace

void add_generated_handlers(DispatchTable& t) { add_all(t); }

}  // namespace sluice::worker
