// SPDX-License-Identifier: Apache-2.0
// What no client of ours sends: every command cut short, with handles and addresses that are not
// the session's, with choices that there are not. Each must end the session with a reason and must
// not reach the driver.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/native/roundtrip/valid_frames.h"

namespace sluice::test {
namespace {

// What one frame leads to in a session of its own.
struct Outcome {
  bool accepted;
  std::string reason;
  std::vector<std::string> calls;
  std::vector<std::string> violations;
  Answer answer;
};

Outcome send(FurnishedRig& rig, const wire::FrameHeader& header, std::span<const std::byte> body) {
  Outcome o;
  o.accepted = rig.dispatch(header, body, &o.answer);
  o.reason = rig.session().reason();
  for (const Call& c : Recording::get().calls) o.calls.emplace_back(c.name);
  o.violations = Recording::get().violations;
  return o;
}

// The number of frames does not depend on the session, their contents do.
size_t frame_count() {
  FurnishedRig rig;
  return valid_frames(rig).size();
}

// Sends frame `i` of a fresh session after `change` had its way with it.
template <class Change>
Outcome send_changed(size_t i, Change&& change) {
  FurnishedRig rig;
  ValidFrame f = valid_frames(rig)[i];
  change(rig, f);
  return send(rig, f.header(), f.body());
}

template <class T>
void put(ValidFrame& f, size_t offset, T value) {
  std::memcpy(reinterpret_cast<char*>(f.words.data()) + offset, &value, sizeof value);
}

ValidFrame frame_at(size_t i) {
  FurnishedRig rig;
  return valid_frames(rig)[i];
}

void expect_refused(const Outcome& o, const std::string& what) {
  EXPECT_FALSE(o.accepted) << what << " was accepted";
  EXPECT_FALSE(o.reason.empty()) << what << ": no reason was given";
  EXPECT_TRUE(o.calls.empty()) << what << " reached the driver: " << o.calls[0];
  EXPECT_TRUE(o.violations.empty()) << what << ": " << o.violations[0];
}

TEST(HostileFrames, GoodOnesAreAccepted) {
  for (size_t i = 0, n = frame_count(); i < n; ++i) {
    const ValidFrame f = frame_at(i);
    const Outcome o = send_changed(i, [](FurnishedRig&, ValidFrame&) {});
    EXPECT_TRUE(o.accepted) << f.name << ": " << o.reason;
    EXPECT_TRUE(o.violations.empty()) << f.name << ": " << o.violations[0];
    if (f.calls.empty()) continue;
    EXPECT_EQ(std::count(o.calls.begin(), o.calls.end(), f.calls), 1) << f.name << ", " << f.calls;
  }
}

TEST(HostileFrames, EveryHandlerHasOne) {
  FurnishedRig rig;
  std::set<uint16_t> covered{wire::kPing, wire::kReadOutput};  // these have no body
  for (const ValidFrame& f : valid_frames(rig)) covered.insert(f.function);
  const auto& table = worker::dispatch_table();
  for (size_t i = 0; i < table.size(); ++i) {
    if (!table[i].run) continue;
    EXPECT_TRUE(covered.contains(static_cast<uint16_t>(i))) << table[i].name;
  }
}

TEST(HostileFrames, CutShort) {
  for (size_t i = 0, n = frame_count(); i < n; ++i) {
    const ValidFrame good = frame_at(i);
    for (size_t words = 0; words < good.words.size(); ++words)
      expect_refused(send_changed(i, [&](FurnishedRig&, ValidFrame& f) { f.words.resize(words); }),
                     good.name + " cut to " + std::to_string(words * 8) + " bytes");
  }
}

TEST(HostileFrames, UnknownHandles) {
  for (size_t i = 0, n = frame_count(); i < n; ++i) {
    const ValidFrame good = frame_at(i);
    for (size_t offset : good.handles) {
      uint64_t own;
      std::memcpy(&own, reinterpret_cast<const char*>(good.words.data()) + offset, 8);
      // Another generation, another slot, another kind, a pointer, the driver's own handles.
      for (uint64_t foreign : std::vector<uint64_t>{own ^ 1ull << 24, own + 100, own ^ 8ull << 40,
                                                    0x7fff12345678, 1, 2, ~0ull})
        expect_refused(
            send_changed(i, [&](FurnishedRig&, ValidFrame& f) { put(f, offset, foreign); }),
            good.name + ", handle at " + std::to_string(offset) + " = " + std::to_string(foreign));
    }
  }
}

TEST(HostileFrames, TakenOrImpossibleNewHandles) {
  for (size_t i = 0, n = frame_count(); i < n; ++i) {
    const ValidFrame good = frame_at(i);
    for (size_t offset : good.minted) {
      uint64_t own;
      std::memcpy(&own, reinterpret_cast<const char*>(good.words.data()) + offset, 8);
      const uint64_t taken = (own & ~0xffffffull) | 3;
      for (uint64_t wrong :
           std::vector<uint64_t>{0, taken, own | 0xffffff, own ^ 8ull << 40, own ^ 1ull << 50})
        expect_refused(
            send_changed(i, [&](FurnishedRig&, ValidFrame& f) { put(f, offset, wrong); }),
            good.name + ", new handle " + std::to_string(wrong));
    }
  }
}

TEST(HostileFrames, ForeignAddresses) {
  for (size_t i = 0, n = frame_count(); i < n; ++i) {
    const ValidFrame good = frame_at(i);
    for (const auto& range : good.addresses) {
      for (int c = 0; c < 6; ++c) {
        expect_refused(send_changed(i,
                                    [&](FurnishedRig& rig, ValidFrame& f) {
                                      const auto& first = *rig.session().vgpus[0];
                                      const auto& last = *rig.session().vgpus[1];
                                      const uint64_t end = last.window_begin + last.window_bytes;
                                      const uint64_t choices[] = {0,
                                                                  first.window_begin - 4096,
                                                                  end,
                                                                  end - range.bytes + 4,
                                                                  ~0ull - 4095,
                                                                  reinterpret_cast<uint64_t>(&rig)};
                                      put(f, range.offset, choices[c]);
                                    }),
                       good.name + ", foreign address " + std::to_string(c));
      }
    }
    for (const auto& range : good.arena) {
      for (int c = 0; c < 6; ++c) {
        expect_refused(send_changed(i,
                                    [&](FurnishedRig& rig, ValidFrame& f) {
                                      const uint64_t end = rig.arena() + kArenaBytes;
                                      const uint64_t choices[] = {0,
                                                                  rig.arena() - 4096,
                                                                  end,
                                                                  end - range.bytes + 1,
                                                                  ~0ull - 4095,
                                                                  rig.address()};
                                      put(f, range.offset, choices[c]);
                                    }),
                       good.name + ", host memory outside the arena " + std::to_string(c));
      }
    }
  }
}

TEST(HostileFrames, ChoicesThatThereAreNot) {
  for (size_t i = 0, n = frame_count(); i < n; ++i) {
    const ValidFrame good = frame_at(i);
    for (size_t offset : good.choices)
      for (uint32_t wrong : {0x7ffffff1u, 0xfffffff1u, 0x10000u})
        expect_refused(
            send_changed(i, [&](FurnishedRig&, ValidFrame& f) { put(f, offset, wrong); }),
            good.name + ", choice at " + std::to_string(offset));
    for (size_t offset : good.devices)
      for (uint32_t wrong : {2u, 64u, ~0u})
        expect_refused(
            send_changed(i, [&](FurnishedRig&, ValidFrame& f) { put(f, offset, wrong); }),
            good.name + ", vGPU at " + std::to_string(offset));
  }
}

// Not every command needs a context; those that do must not take one that there is not.
TEST(HostileFrames, ContextsThatThereAreNot) {
  for (size_t i = 0, n = frame_count(); i < n; ++i) {
    const ValidFrame good = frame_at(i);
    for (uint32_t wrong : {0u, 3u, 65u, ~0u}) {
      const Outcome o = send_changed(i, [&](FurnishedRig&, ValidFrame& f) { f.context = wrong; });
      EXPECT_TRUE(o.violations.empty()) << good.name << ": " << o.violations[0];
      if (!o.accepted) {
        EXPECT_TRUE(o.calls.empty()) << good.name << " reached the driver: " << o.calls[0];
        EXPECT_FALSE(o.reason.empty()) << good.name;
      }
    }
  }
}

TEST(HostileFrames, UnknownFunctions) {
  for (uint32_t function = 0; function < 0x10000; function += function < 1024 ? 1 : 97) {
    const auto& table = worker::dispatch_table();
    if (function < table.size() && table[function].run) continue;
    FurnishedRig rig;
    ValidFrame f;
    f.function = static_cast<uint16_t>(function);
    f.words.resize(8);
    expect_refused(send(rig, f.header(), f.body()), "function " + std::to_string(function));
  }
}

TEST(HostileFrames, AnsweredTheOtherWay) {
  for (size_t i = 0, n = frame_count(); i < n; ++i) {
    const ValidFrame good = frame_at(i);
    if (worker::dispatch_table()[good.function].answered == worker::Handler::Answered::kEither)
      continue;
    expect_refused(send_changed(i, [&](FurnishedRig&, ValidFrame& f) { f.answered = !f.answered; }),
                   good.name + (good.answered ? " without" : " with") + " an answer");
  }
}

// The back end's refusals and what a driver lacks are the caller's to know, and end no session.
TEST(HostileFrames, MissingDriverFunctionIsNoRejection) {
  FurnishedRig rig;
  for (const ValidFrame& f : valid_frames(rig)) {
    if (f.function < wire::kFirstApiFunction) continue;
    FurnishedRig poor;
    poor.driver() = worker::Driver{};
    poor.driver().cuCtxSetCurrent = [](CUcontext) { return CUDA_SUCCESS; };
    ValidFrame again;
    for (const ValidFrame& g : valid_frames(poor))
      if (g.function == f.function) again = g;
    const Outcome o = send(poor, again.header(), again.body());
    EXPECT_TRUE(o.accepted) << f.name << ": " << o.reason;
    EXPECT_EQ(o.answer.status, CUDA_ERROR_NOT_SUPPORTED) << f.name;
  }
}

}  // namespace
}  // namespace sluice::test
