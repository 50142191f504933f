// SPDX-License-Identifier: Apache-2.0
// Mutated inputs into what reads what others wrote: the client's JSON, HTTP answers, addresses, INI
// files and fat binaries; the worker's images of code; the software GPU's PTX; TLS records.
// Whatever comes, nothing crashes (build with SLUICE_SANITIZE=address,undefined), and what is
// refused costs nothing.
#include <cstring>

#include "tests/native/fuzz/fuzz.h"
#include "tests/native/fuzz/targets.h"

namespace {

struct Counted {
  sluice::fuzz::Target target;
  unsigned long long understood = 0, refused = 0;
};

}  // namespace

int main(int argc, char** argv) {
  namespace fuzz = sluice::fuzz;
  std::vector<Counted> all;
  for (const auto& some : {fuzz::client_targets(), fuzz::image_targets(), fuzz::softgpu_targets(),
                           fuzz::tls_targets()}) {
    for (const fuzz::Target& target : some) all.push_back({target});
  }
  fuzz::run(argc, argv, 50'000, 20'000, [&all](fuzz::Random& random) {
    Counted& c = all[random() % all.size()];
    const std::string text =
        fuzz::mutated(c.target.good[random() % c.target.good.size()], c.target.signs, random);
    const std::vector<std::byte> input(
        reinterpret_cast<const std::byte*>(text.data()),
        reinterpret_cast<const std::byte*>(text.data()) + text.size());
    ++(c.target.read(input) ? c.understood : c.refused);
  });
  bool both = true;
  for (const Counted& c : all) {
    std::printf("%s: %llu understood, %llu refused\n", std::string(c.target.name).c_str(),
                c.understood, c.refused);
    both &= c.understood > 0 && c.refused > 0;
  }
  return both ? 0 : 1;
}
