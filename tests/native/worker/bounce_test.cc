// SPDX-License-Identifier: Apache-2.0
#include "worker/bounce.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

namespace sluice::worker {
namespace {

std::atomic<size_t> g_pinned{0};

Driver driver() {
  Driver d;
  d.cuMemHostAlloc = [](void** at, size_t bytes, unsigned) {
    auto* words = static_cast<size_t*>(std::malloc(bytes + 64));
    *words = bytes;
    g_pinned += bytes;
    *at = reinterpret_cast<std::byte*>(words) + 64;
    return CUDA_SUCCESS;
  };
  d.cuMemFreeHost = [](void* at) {
    auto* words = reinterpret_cast<size_t*>(static_cast<std::byte*>(at) - 64);
    g_pinned -= *words;
    std::free(words);
    return CUDA_SUCCESS;
  };
  return d;
}

TEST(Bounces, AreUsedAgain) {
  const Driver d = driver();
  {
    Bounces bounces(d);
    std::byte* const first = bounces.take(100'000).get();
    EXPECT_EQ(bounces.take(70'000).get(), first);
    EXPECT_EQ(g_pinned, size_t{128 << 10});
  }
  EXPECT_EQ(g_pinned, 0u);
}

// A client that asks on every lane and reads nothing.
TEST(Bounces, HaveABoundThatOneWaitsAt) {
  const Driver d = driver();
  Bounces bounces(d);
  constexpr size_t kAnswer = 16 << 20;
  std::vector<std::shared_ptr<std::byte>> held;
  for (size_t bytes = 0; bytes < Bounces::kMostBytes; bytes += kAnswer)
    held.push_back(bounces.take(kAnswer));
  std::atomic<bool> got{false};
  std::thread next([&] {
    EXPECT_NE(bounces.take(kAnswer), nullptr);
    got = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(got);
  EXPECT_EQ(g_pinned, Bounces::kMostBytes);
  held.pop_back();
  next.join();
  held.clear();
  EXPECT_NE(bounces.take(1), nullptr) << "those of another size make room";
  EXPECT_LE(g_pinned, Bounces::kMostBytes);
  EXPECT_EQ(bounces.take(Bounces::kMostBytes + 1), nullptr);
}

}  // namespace
}  // namespace sluice::worker
