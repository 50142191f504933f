// SPDX-License-Identifier: Apache-2.0
// Commands that no client of ours sends, to a real worker with NVIDIA's libraries: one case a
// process, as most of them end the session. tests/gpu/hostile_libraries.py runs them all and looks
// at how the worker ended. It is a client (our libcuda and forwarding libraries are linked into
// it): what a case needs is made by exported functions, the hostile command itself is written by
// hand.
//
//   hostile_libraries --list            names, one a line
//   hostile_libraries CASE              prints what came back: `status N`, `session ended`, `ok`
//   hostile_libraries sweep LIBRARY N   each function from the Nth on with each pointer NULL in
//   turn
#include "tests/gpu/hostile_libraries.h"

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  hostile::Cases all;
  for (const auto& part :
       {hostile::blas_cases(), hostile::solver_cases(), hostile::transform_cases(),
        hostile::collective_cases(), hostile::network_cases()})
    all.insert(all.end(), part.begin(), part.end());
  if (what == "--list") {
    for (const auto& [name, run] : all) std::printf("%s\n", name.c_str());
    return 0;
  }
  if (what == "sweep" && argc == 4)
    return hostile::sweep(argv[2], static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)));
  for (const auto& [name, run] : all)
    if (name == what) return run();
  std::fprintf(stderr, "usage: hostile_libraries --list | CASE | sweep LIBRARY FROM\n");
  return 2;
}
