// SPDX-License-Identifier: Apache-2.0
// Of the programs here: a call of CUDA's or CUPTI's that fails ends the program, and is named.
#pragma once

#include <cstdio>
#include <cstdlib>

#define REQUIRE(call)                                                        \
  do {                                                                       \
    const int e = static_cast<int>(call);                                    \
    if (e != 0) {                                                            \
      std::fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, e); \
      std::exit(1);                                                          \
    }                                                                        \
  } while (0)
