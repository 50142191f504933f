// SPDX-License-Identifier: Apache-2.0
// The API of cuBLAS without handles (cublas.h): one handle for each context, made by cublasInit,
// and an error that cublasGetError asks for afterwards. The functions themselves are generated from
// those with a handle; here is what all of them share.
#pragma once

#include <cstdint>

#include "wire/library_spec.h"

namespace sluice::client::legacy {

// As cuComplex and cuDoubleComplex are passed and returned by value.
using wire::Complex;
struct alignas(16) DoubleComplex {
  double x, y;
};

// The handle of the thread's context; nullptr, with the error kept, before cublasInit.
void* handle();
void keep_error(int32_t status);

template <class F>
void call(F&& with_handle) {
  if (void* h = handle()) keep_error(with_handle(h));
}

// A letter of BLAS as the enumeration that says the same; cuBLAS refuses the -1 of any other.
inline int32_t one_of(char letter, const char* letters) {
  for (int32_t i = 0; letters[i]; ++i)
    if ((letter | 0x20) == letters[i]) return i;
  return -1;
}
inline int32_t operation_of(char letter) { return one_of(letter, "ntc"); }
inline int32_t fill_of(char letter) { return one_of(letter, "lu"); }
inline int32_t side_of(char letter) { return one_of(letter, "lr"); }
inline int32_t diagonal_of(char letter) { return one_of(letter, "nu"); }

}  // namespace sluice::client::legacy
