// SPDX-License-Identifier: Apache-2.0
// What the fuzzing programs share: their arguments, seeds that bring a failure again, and mutated
// inputs. PROGRAM [inputs] [seed], or PROGRAM --seconds N.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

namespace sluice::fuzz {

using Random = std::mt19937_64;

// Runs `one` for each input. `batch`: how many inputs share a seed when a time is given, so that
// what fails late comes again soon.
template <class One>
void run(int argc, char** argv, long inputs, long batch, One one) {
  const auto some = [&one](long count, uint64_t seed) {
    std::printf("%ld inputs, seed %llu\n", count, static_cast<unsigned long long>(seed));
    std::fflush(stdout);
    Random random(seed);
    for (long i = 0; i < count; ++i) one(random);
  };
  if (argc == 3 && std::strcmp(argv[1], "--seconds") == 0) {
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::seconds(std::strtol(argv[2], nullptr, 10));
    do some(batch, std::random_device{}());
    while (std::chrono::steady_clock::now() < until);
  } else {
    some(argc > 1 ? std::strtol(argv[1], nullptr, 10) : inputs,
         argc > 2 ? std::strtoull(argv[2], nullptr, 0) : std::random_device{}());
  }
}

// Up to five changes: a byte, some of `signs`, less, a piece of itself again, an earlier end.
inline std::string mutated(std::string text, std::string_view signs, Random& random) {
  for (auto changes = random() % 6; changes > 0; --changes) {
    const size_t at = text.empty() ? 0 : random() % text.size();
    switch (random() % 6) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(random());
        break;
      case 1:
        text.insert(at, 1 + random() % 8, signs[random() % signs.size()]);
        break;
      case 2:
        text.erase(at, 1 + random() % 8);
        break;
      case 3:
        text.insert(at, std::string(text), random() % (text.size() + 1), random() % 64);
        break;
      case 4: {  // a number in its place, small, large or any
        const uint64_t numbers[] = {0, ~uint64_t{0}, random() % 256, random(), uint64_t{1} << 31};
        const uint64_t number = numbers[random() % std::size(numbers)];
        const size_t bytes = size_t{1} << random() % 4;
        if (at + bytes <= text.size()) std::memcpy(text.data() + at, &number, bytes);
        break;
      }
      default:
        if (random() % 4 == 0) text.resize(at);
    }
  }
  return text;
}

}  // namespace sluice::fuzz
