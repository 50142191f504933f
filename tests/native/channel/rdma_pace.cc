// SPDX-License-Identifier: Apache-2.0
// What RdmaConnection adds to the device (rdma_floor.cc): the same figures of it. Bulk as a session
// sends it: pinned memory into places that the reader has granted ahead, as far as there are some,
// and other memory through stage and ring.
//
//     rdma_pace ROUND_TRIPS MEBIBYTES
//                   prints the median in microseconds, GiB/s of pinned memory, GiB/s of other
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "channel/futex.h"
#include "tests/native/channel/rdma_pair.h"

namespace {
constexpr size_t kPart = 1 << 20;
}  // namespace

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
    std::vector<std::byte> places[2], rest(kPart);
    for (auto& place : places) {
      place.resize(kPart);
      OwnMemory::add(place.data(), kPart);
      pair.ends[1]->grant(place.data(), kPart);
    }
    write_all(*pair.ends[1], word, 1);
    for (size_t got = 0; got < all; got += kPart) {
      std::byte* const place = pair.ends[1]->await_placed(kPart);
      if (!read_all(*pair.ends[1], place ? place : rest.data(), kPart)) return;
      if (place) pair.ends[1]->grant(place, kPart);
    }
    write_all(*pair.ends[1], word, 1);
    for (size_t got = 0; got < all; got += kPart)
      if (!read_all(*pair.ends[1], rest.data(), kPart)) return;
    write_all(*pair.ends[1], word, 1);
    for (auto& place : places) OwnMemory::remove(place.data());
  });
  char word[64] = {};
  std::vector<double> took;
  for (int i = 0; i < rounds; ++i) {
    const uint64_t begin = now_ns();
    write_all(*pair.ends[0], word, sizeof word);
    read_all(*pair.ends[0], word, sizeof word);
    took.push_back(static_cast<double>(now_ns() - begin) / 1000);
  }
  std::vector<char> bulk(kPart);
  const auto carry = [&](bool kept) {
    const uint64_t begin = now_ns();
    for (size_t put = 0; put < all; put += kPart) {
      iovec part{bulk.data(), kPart};
      kept ? pair.ends[0]->write_kept(&part, 1) : pair.ends[0]->write(&part, 1);
    }
    read_all(*pair.ends[0], word, 1);
    return static_cast<double>(all) / (1 << 30) / (static_cast<double>(now_ns() - begin) / 1e9);
  };
  OwnMemory::add(bulk.data(), kPart);
  read_all(*pair.ends[0], word, 1);  // the first places are granted
  const double pinned = carry(true);
  const bool placed = pair.ends[0]->placed_bytes() > all / 4;
  const double other_memory = carry(false);
  other.join();
  OwnMemory::remove(bulk.data());
  if (!placed) {
    std::fprintf(stderr, "rdma_pace: of %zu bytes only %zu went straight to their places\n", all,
                 static_cast<size_t>(pair.ends[0]->placed_bytes()));
    return 1;
  }
  std::sort(took.begin(), took.end());
  std::printf("%.2f %.5f %.5f\n", took[took.size() / 2], pinned, other_memory);
  return 0;
}
