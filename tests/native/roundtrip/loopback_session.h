// SPDX-License-Identifier: Apache-2.0
// The process's client session on a loopback channel, with a stream, an event, a module, a library
// and memory made through the exported functions. Fixture of the round-trip tests; owns what it
// makes, and prints the seed of a failed test.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <type_traits>

#include "client/core/session.h"
#include "tests/native/roundtrip/loopback_channel.h"

namespace sluice::test {

// Puts an answer in front of a driver function for as long as it lives.
template <class F>
class ScopedAnswer {
 public:
  template <class L>
  ScopedAnswer(std::function<F>& slot, L answer) : slot_(slot), before_(slot) {
    slot_ = std::move(answer);
  }
  ~ScopedAnswer() { slot_ = before_; }
  ScopedAnswer(const ScopedAnswer&) = delete;

 private:
  std::function<F>& slot_;
  std::function<F> before_;
};

class RoundTrip : public ::testing::Test {
 public:
  static constexpr size_t kBytes = 8 << 20;
  struct World {
    LoopbackChannel* channel = nullptr;
    CUcontext contexts[2] = {};
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUmodule module = nullptr;
    CUlibrary library = nullptr;
    CUfunction function = nullptr;
    CUkernel kernel = nullptr;
    CUdeviceptr memory = 0;  // kBytes
  };

 protected:
  void SetUp() override;
  void TearDown() override;

  template <class T>
  T random() {
    if constexpr (std::is_floating_point_v<T>) {
      return static_cast<T>(static_cast<double>(next()) / 1e9);
    } else if constexpr (std::is_integral_v<T>) {
      // Small ones too, or conditions on arguments would hardly ever hold.
      const uint64_t value = next();
      return static_cast<T>(next() % 2 ? value : value % 8);
    } else {
      static_assert(std::is_trivially_copyable_v<T>);
      T value;
      auto* at = reinterpret_cast<unsigned char*>(&value);
      for (size_t i = 0; i < sizeof value; ++i) at[i] = static_cast<unsigned char>(next());
      return value;
    }
  }
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return all.begin()[next() % all.size()];
  }
  uint64_t next() { return engine_(); }
  // n printable characters.
  std::string random_text(size_t n) {
    std::string text(n, 'x');
    for (char& c : text) c = static_cast<char>('!' + next() % 90);
    return text;
  }
  // Device memory with room for `bytes`, 8-byte aligned.
  CUdeviceptr random_address(uint64_t bytes) {
    return world().memory + next() % ((kBytes - bytes) / 8) * 8;
  }
  CUstream random_stream() { return one_of({CUstream{nullptr}, CU_STREAM_LEGACY, world().stream}); }
  CUfunction random_function() {
    return one_of({world().function, reinterpret_cast<CUfunction>(world().kernel)});
  }

  // The driver's handle behind one of the application's.
  CUstream driver_of(CUstream h);
  CUevent driver_of(CUevent h);
  CUmodule driver_of(CUmodule h);
  CUlibrary driver_of(CUlibrary h);
  CUfunction driver_of(CUfunction h);
  CUkernel driver_of(CUkernel h);

  static World& world();
  static Recording& recording() { return Recording::get(); }
  worker::Session& worker_session() { return world().channel->rig.session(); }
  std::vector<uint16_t>& seen() { return world().channel->seen; }
  // Made up, destroyed or of another kind; no application ever held them.
  std::vector<uint64_t> wrong_handles() {
    return {3, id(world().stream) ^ uint64_t{1} << 24, id(world().event) + 77, id(this)};
  }
  std::vector<uint64_t> wrong_addresses() {
    return {0, world().memory - 8, world().memory + kBytes, uint64_t{8} << 44};
  }
  void forget_answers() {
    auto& answers = client::Session::get()->answers;
    for (uint64_t about : {client::AnswerCache::kForEver, id(world().function), id(world().kernel),
                           id(world().module), id(world().library)})
      answers.forget(about);
  }
  template <class H>
  static uint64_t id(H handle) {
    return reinterpret_cast<uint64_t>(handle);
  }
  // A fire-and-forget command that the driver refused: every later call says so.
  void expect_poisoned(CUresult status) {
    EXPECT_EQ(cuCtxGetFlags(&flags_), status);
    world().channel->sticky_ = 0;
  }

 private:
  uint64_t seed_ = 0;
  std::mt19937_64 engine_;
  unsigned flags_ = 0;
};

// Two plain values, also structs, byte for byte.
template <class T>
::testing::AssertionResult same(const T& a, const T& b) {
  if (std::memcmp(&a, &b, sizeof a) == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << ::testing::PrintToString(a) << " is not " << ::testing::PrintToString(b);
}

}  // namespace sluice::test
