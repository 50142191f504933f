// SPDX-License-Identifier: Apache-2.0
// What every test program needs: ending at an unexpected CUDA error with its place, and
// random-looking numbers that are the same everywhere. Lines on standard output are the same on
// every right device; those that begin with "# " describe the machine, and comparisons skip them.
// Times go to stderr.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

inline void require_success(cudaError_t error, const char* what, int line) {
  if (error == cudaSuccess) return;
  std::fflush(stdout);
  std::fprintf(stderr, "line %d: %s: %s (%d)\n", line, what, cudaGetErrorString(error),
               static_cast<int>(error));
  std::exit(1);
}

#define REQUIRE(call) require_success((call), #call, __LINE__)

inline int argument(int argc, char** argv, int index, int otherwise) {
  return argc > index ? std::atoi(argv[index]) : otherwise;
}

// A full-period generator; `state` starts anywhere.
inline uint32_t next_number(uint32_t& state) {
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

// FNV-1a over the bytes, so that a whole result can be one line.
inline uint64_t checksum(const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint64_t hash = 0xcbf29ce484222325ull;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3ull;
  return hash;
}

// Prints one fact and returns whether it holds.
inline bool fact(const char* what, bool holds) {
  std::printf("%s: %s\n", what, holds ? "yes" : "no");
  return holds;
}
