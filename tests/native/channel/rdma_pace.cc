// SPDX-License-Identifier: Apache-2.0
// What RdmaConnection adds to the device (rdma_floor.cc): the same figures of it.
//
//     rdma_pace ROUND_TRIPS MEBIBYTES     prints the median in microseconds, then GiB/s
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "channel/futex.h"
#include "tests/native/channel/rdma_pair.h"

int main(int argc, char** argv) {
  using namespace sluice::channel;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 1000;
  const size_t all = (argc > 2 ? static_cast<size_t>(std::atoi(argv[2])) : 32) << 20;
  RdmaPair pair;
  std::string error;
  if (!pair.open(&error)) {
    std::fprintf(stderr, "rdma_pace: %s\n", error.c_str());
    return 1;
  }
  std::thread other([&] {
    char word[64];
    for (int i = 0; i < rounds; ++i)
      if (!read_all(*pair.ends[1], word, sizeof word) ||
          !write_all(*pair.ends[1], word, sizeof word))
        return;
    std::vector<char> rest(1 << 20);
    for (size_t got = 0; got < all; got += rest.size())
      if (!read_all(*pair.ends[1], rest.data(), rest.size())) return;
    write_all(*pair.ends[1], word, 1);
  });
  char word[64] = {};
  std::vector<double> took;
  for (int i = 0; i < rounds; ++i) {
    const uint64_t begin = now_ns();
    write_all(*pair.ends[0], word, sizeof word);
    read_all(*pair.ends[0], word, sizeof word);
    took.push_back(static_cast<double>(now_ns() - begin) / 1000);
  }
  std::vector<char> bulk(1 << 20);
  const uint64_t begin = now_ns();
  for (size_t put = 0; put < all; put += bulk.size())
    write_all(*pair.ends[0], bulk.data(), bulk.size());
  read_all(*pair.ends[0], word, 1);
  const double seconds = static_cast<double>(now_ns() - begin) / 1e9;
  other.join();
  std::sort(took.begin(), took.end());
  std::printf("%.2f %.5f\n", took[took.size() / 2], static_cast<double>(all) / (1 << 30) / seconds);
  return 0;
}
