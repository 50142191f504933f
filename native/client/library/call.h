// SPDX-License-Identifier: Apache-2.0
// What the forwarding libraries (libcublas.so.13, …) ask of libcuda.so.1, which has the session.
// These functions are exported under Sluice's own names for them alone; both come from one build.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "wire/library_spec.h"

#define SLUICE_INTERNAL __attribute__((visibility("default")))
#define SLUICE_PUBLIC extern "C" __attribute__((visibility("default")))

extern "C" {
// One call: arguments as words, pointers as addresses. Returns what the function returns.
SLUICE_INTERNAL int64_t sluice_library_call(const sluice::wire::LibrarySpec* library,
                                            const sluice::wire::FunctionSpec* function,
                                            const uint64_t* arguments);
// The same, for functions that return a text; it lives as long as the process.
SLUICE_INTERNAL const char* sluice_library_text(const sluice::wire::LibrarySpec* library,
                                                const sluice::wire::FunctionSpec* function,
                                                const uint64_t* arguments);
// What the session has sent so far: commands nobody waited for, and round trips. For measurements.
SLUICE_INTERNAL void sluice_library_statistics(uint64_t* commands, uint64_t* round_trips);
// Says once that a function is not supported.
SLUICE_INTERNAL void sluice_library_unsupported(const char* function);
// The same for a function of a CUDA runtime inside of the program that ours has not, whose calls
// were made to lead here (audit/divert.h): cudaErrorNotSupported.
SLUICE_INTERNAL int sluice_library_refuse_runtime(const char* function);
// Another object that holds what this one holds; only of those that are kept by content (kept.h).
SLUICE_INTERNAL bool sluice_library_clone(uint64_t object, uint64_t* copy);
// Says something once, in the client's log.
SLUICE_INTERNAL void sluice_library_note(const char* text);
// The application's stream that an object's work goes to. False when it is no object of that type.
SLUICE_INTERNAL bool sluice_library_stream(uint64_t object, uint8_t type, uint64_t* stream);
}

namespace sluice::client::library {

// A parameter as a word; signed numbers keep their sign, floating point its bits.
template <class T>
uint64_t word(T value) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<uint64_t>(value);
  } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    return static_cast<uint64_t>(static_cast<int64_t>(value));
  } else if constexpr (std::is_integral_v<T>) {
    return value;
  } else {
    static_assert(sizeof(T) <= 8);
    uint64_t w = 0;
    std::memcpy(&w, &value, sizeof value);
    return w;
  }
}

}  // namespace sluice::client::library
