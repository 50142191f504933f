// SPDX-License-Identifier: Apache-2.0
// A session with objects of NVIDIA's libraries, of which stand-ins take the calls: for tests of
// what must not reach them.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/native/roundtrip/fake_libraries.h"
#include "tests/native/roundtrip/library_frames.h"

namespace sluice::test {

class LibraryProofs : public ::testing::Test {
 protected:
  struct Outcome {
    bool accepted;
    int64_t status;  // that was answered
    std::string reason;
  };
  static const wire::FunctionSpec& function(const std::string& name) {
    for (const wire::FunctionSpec* f : library_functions())
      if (name == f->name) return *f;
    throw std::logic_error(name + " is in no table");
  }
  Outcome send(const ValidFrame& frame) {
    Answer answer;
    Outcome o{rig_->dispatch(frame.header(), frame.body(), &answer), -1, rig_->session().reason()};
    if (answer.body.size() >= 8) std::memcpy(&o.status, answer.body.data(), 8);
    EXPECT_TRUE(Recording::get().violations.empty()) << Recording::get().violations[0];
    return o;
  }
  ValidFrame frame(const std::string& name) { return library_frame(*rig_, function(name)); }
  ValidFrame hand_written(const std::string& name) {
    std::vector<ValidFrame> all;
    add_hand_written_frames(*rig_, &all);
    add_nccl_frames(*rig_, &all);
    for (const ValidFrame& f : all)
      if (f.name == name) return f;
    throw std::logic_error("there is no frame " + name);
  }
  // How often a function was called, with NVIDIA's library none the wiser otherwise.
  static size_t calls(const std::string& name) {
    size_t n = 0;
    for (const FakeCall& c : fake().calls) n += name == c.function->name;
    return n;
  }
  static FakeLibraries& fake() { return FakeLibraries::get(); }
  void expect_rejected(const ValidFrame& f, const std::string& what) {
    fake().calls.clear();
    const Outcome o = send(f);
    EXPECT_FALSE(o.accepted) << what << " was accepted";
    EXPECT_FALSE(o.reason.empty()) << what;
    EXPECT_TRUE(fake().calls.empty()) << what << " reached the library";
  }
  void expect_status(const ValidFrame& f, int64_t status, const std::string& what) {
    fake().calls.clear();
    const Outcome o = send(f);
    EXPECT_TRUE(o.accepted) << what << ": " << o.reason;
    EXPECT_EQ(o.status, status) << what;
    EXPECT_EQ(calls(f.name), 0u) << what << " reached the library";
  }
  void expect_called(const ValidFrame& f, const std::string& what) {
    fake().calls.clear();
    const Outcome o = send(f);
    EXPECT_TRUE(o.accepted) << what << ": " << o.reason;
    EXPECT_EQ(o.status, 0) << what;
    EXPECT_EQ(calls(f.name), 1u) << what << " did not reach the library";
  }
  static void set_mode(uint64_t object, int32_t mode) {
    worker::LibraryObject o;
    ASSERT_TRUE(worker::Libraries::get().objects.get(object, &o));
    o.pointer_mode = mode;
    worker::Libraries::get().objects.set(object, o);
  }
  // A carried piece's first word, by the parameter that announces it.
  static size_t piece_of(const ValidFrame& f, const wire::FunctionSpec& spec, int index) {
    size_t at = spec.params;
    for (int i = 0; i < index; ++i) {
      const wire::ParamSpec& p = spec.param[i];
      const bool sent = p.kind != wire::ParamKind::kOut && p.kind != wire::ParamKind::kResult;
      const uint64_t word = f.words[static_cast<size_t>(i)];
      if (sent && (word & wire::kCarried)) at += wire::round_up(word & ~wire::kCarried, 8) / 8;
    }
    return at;
  }
  void put_numbers(uint64_t address, const std::vector<int32_t>& numbers) {
    Recording::get().memory.write(address, numbers.data(), numbers.size() * 4);
  }

  // A session of its own, for a case that ends it; the one before it is over.
  FurnishedRig& fresh() {
    rig_.reset();
    return rig_.emplace();
  }

  std::optional<FurnishedRig> rig_{std::in_place};
};

}  // namespace sluice::test
