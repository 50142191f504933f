// SPDX-License-Identifier: Apache-2.0
#include "client/core/statistics.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "abi/function_ids.h"
#include "library/objects.h"
#include "wire/frame.h"
#include "wire/merge_figures.h"

namespace sluice::client {

namespace {

constexpr size_t kMostSent = 20;

std::string name_of(uint16_t function) {
  if (const wire::CommandSpec* c = wire::find_command(function)) return c->name;
  if (const char* name = abi::function_name(function)) return name;
  if (const char* name = library::function_name(function)) return name;
  return "function " + std::to_string(function);
}

}  // namespace

void Statistics::print(uint64_t bytes_out, uint64_t cache_hits) const {
  std::fprintf(stderr,
               "sluice: %llu asynchronous commands, %llu round trips, %llu bytes out, %llu bytes "
               "in, %llu cache hits\n",
               static_cast<unsigned long long>(commands),
               static_cast<unsigned long long>(round_trips.load()),
               static_cast<unsigned long long>(bytes_out),
               static_cast<unsigned long long>(bytes_in.load()),
               static_cast<unsigned long long>(cache_hits));
  std::vector<std::pair<uint32_t, uint16_t>> waited;
  for (size_t f = 0; f < kFunctions; ++f)
    if (const uint32_t n = round_trips_of[f].load()) waited.emplace_back(n, f);
  std::sort(waited.rbegin(), waited.rend());
  for (const auto& [count, function] : waited)
    std::fprintf(stderr, "sluice: %10u round trips of %s\n", count, name_of(function).c_str());
  std::vector<std::pair<uint64_t, uint16_t>> sent;
  for (size_t f = 0; f < kFunctions; ++f)
    if (commands_of[f]) sent.emplace_back(commands_of[f], f);
  std::sort(sent.rbegin(), sent.rend());
  if (sent.size() > kMostSent) sent.resize(kMostSent);
  for (const auto& [count, function] : sent)
    std::fprintf(stderr, "sluice: %10llu asynchronous commands of %s\n",
                 static_cast<unsigned long long>(count), name_of(function).c_str());
}

void Statistics::print_merged(const wire::MergeFigures& all) {
  std::string left;
  for (size_t i = 0; i < wire::kLeftReasons; ++i)
    if (all.known >> i & 1)
      left += std::string(i ? ", " : "") + std::to_string(all.left[i]) + " " +
              wire::text_of(static_cast<wire::LeftSingle>(i));
  std::fprintf(stderr, "sluice: %llu commands merged into %llu graphs; left single: %s\n",
               static_cast<unsigned long long>(all.replayed),
               static_cast<unsigned long long>(all.graphs), left.c_str());
}

}  // namespace sluice::client
