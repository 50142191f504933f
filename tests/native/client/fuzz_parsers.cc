// SPDX-License-Identifier: Apache-2.0
// Mutated texts and images into what reads them: the client's JSON, HTTP answers, addresses and fat
// binaries. Whatever comes, nothing crashes (build with SLUICE_SANITIZE=address,
// undefined), and what is refused costs nothing. fuzz_parsers [inputs] [seed], or --seconds N.
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "client/core/http.h"
#include "client/core/json.h"
#include "client/driver/fat_binary.h"

namespace sluice::client {
namespace {

struct {
  unsigned long long understood = 0, refused = 0;
} g_count;

void count(bool understood) { ++(understood ? g_count.understood : g_count.refused); }

std::span<const std::byte> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string fat_binary() {
  std::string image(16 + 64 + 32 + 64 + 16, '\0');
  const auto put = [&image](size_t at, auto value) {
    std::memcpy(image.data() + at, &value, sizeof value);
  };
  put(0, uint32_t{0xba55ed50});
  put(4, uint16_t{1});
  put(6, uint16_t{16});
  put(8, uint64_t{image.size() - 16});
  for (const auto [at, kind, bytes] : {std::array<size_t, 3>{16, 2, 32}, {16 + 64 + 32, 1, 16}}) {
    put(at, static_cast<uint16_t>(kind));
    put(at + 4, uint32_t{64});
    put(at + 8, uint64_t{bytes});
    put(at + 28, uint32_t{90});
  }
  return image;
}

// A kind of input: good ones, and what reads it.
struct Target {
  std::vector<std::string> good;
  void (*read)(const std::string&);
};

const Target kTargets[] = {
    {{R"({"key":"0123","port":9960,"tls":true,"address":"10.0.0.1","session_id":"5"})",
      R"({"type":"urn:sluice:problem:not-granted","detail":"\u00e9\ud83d\ude00","x":[1,{"y":-1.5e3}]})"},
     [](const std::string& text) { count(!JsonObject(text).text("key").empty()); }},
    {{"HTTP/1.1 201 Created\r\ncontent-length: 2\r\nlocation: http://a:1/v1/x\r\n\r\n{}",
      "HTTP/1.1 429 Too Many\r\nRetry-After: 2\r\nTransfer-Encoding: "
      "chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"},
     [](const std::string& text) {
       HttpAnswer answer;
       count(parse_answer(text, false, &answer));
       parse_answer(text, true, &answer);
     }},
    {{"host:9123", "https://[fe80::1]:9123", "http://10.0.0.1"},
     [](const std::string& text) {
       HttpAddress address;
       count(parse_address(text, true, &address));
     }},
    {{fat_binary()},
     [](const std::string& image) {
       std::vector<std::byte> room;
       const ComputeCapability gpus[] = {{9, 0}};
       const auto kept = parts_for(bytes_of(image), gpus, false, &room);
       if (kept.size() > image.size()) std::abort();
       count(kept.size() < image.size());
     }},
};

void run(std::mt19937_64& random) {
  const Target& target = kTargets[random() % std::size(kTargets)];
  std::string text = target.good[random() % target.good.size()];
  for (int changes = static_cast<int>(random() % 6); changes > 0; --changes) {
    const size_t at = text.empty() ? 0 : random() % text.size();
    switch (random() % 5) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(random());
        break;
      case 1:
        text.insert(at, 1 + random() % 8, "{}[]\"\\:,u0-\r\n\xff"[random() % 14]);
        break;
      case 2:
        text.erase(at, 1 + random() % 8);
        break;
      case 3:
        text.insert(at, text, random() % (text.size() + 1), random() % 64);
        break;
      default:
        text.resize(at);
    }
  }
  target.read(text);
}

void run_inputs(long inputs, uint64_t seed) {
  std::printf("%ld inputs, seed %llu\n", inputs, static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  std::mt19937_64 random(seed);
  for (long i = 0; i < inputs; ++i) run(random);
}

}  // namespace
}  // namespace sluice::client

int main(int argc, char** argv) {
  using namespace sluice::client;
  if (argc == 3 && std::strcmp(argv[1], "--seconds") == 0) {
    // Each batch with a seed of its own, so that what fails late comes again soon.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(std::atol(argv[2]));
    do run_inputs(50'000, std::random_device{}());
    while (std::chrono::steady_clock::now() < until);
  } else {
    run_inputs(argc > 1 ? std::atol(argv[1]) : 50'000,
               argc > 2 ? std::strtoull(argv[2], nullptr, 0) : std::random_device{}());
  }
  std::printf("%llu understood, %llu refused\n", g_count.understood, g_count.refused);
  return g_count.understood > 0 && g_count.refused > 0 ? 0 : 1;
}
