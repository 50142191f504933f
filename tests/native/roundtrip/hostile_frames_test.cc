// SPDX-License-Identifier: Apache-2.0
// What no client of ours sends: every command cut short, with handles and addresses that are not
// the session's, with choices that there are not. Each must end the session with a reason and must
// not reach the driver.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>

#include "tests/native/roundtrip/fake_libraries.h"
#include "tests/native/roundtrip/library_frames.h"
#include "tests/native/roundtrip/valid_frames.h"
#include "wire/generated.h"

namespace sluice::test {
namespace {

// What one frame leads to in a session of its own.
struct FrameOutcome {
  bool accepted;
  std::string reason;
  std::vector<std::string> calls;
  std::vector<std::string> violations;
  Answer answer;
};

FrameOutcome send(FurnishedRig& rig, const wire::FrameHeader& header,
                  std::span<const std::byte> body) {
  FrameOutcome o;
  o.accepted = rig.dispatch(header, body, &o.answer);
  o.reason = rig.session().reason();
  for (const Call& c : Recording::get().calls) o.calls.emplace_back(c.name);
  for (const FakeCall& c : FakeLibraries::get().calls) o.calls.emplace_back(c.function->name);
  o.violations = Recording::get().violations;
  return o;
}

// The number of frames does not depend on the session, their contents do.
size_t frame_count() {
  static const size_t count = [] {
    FurnishedRig rig;
    return valid_frames(rig).size();
  }();
  return count + library_functions().size();
}

ValidFrame make_frame(FurnishedRig& rig, size_t i) {
  const size_t libraries = frame_count() - library_functions().size();
  return i < libraries ? valid_frames(rig)[i]
                       : library_frame(rig, *library_functions()[i - libraries]);
}

// Sends frame `i` of a fresh session after `change` had its way with it.
template <class Change>
FrameOutcome send_changed(size_t i, Change&& change) {
  FurnishedRig rig;
  ValidFrame f = make_frame(rig, i);
  if (f.in_capture) rig.begin_capture();
  if (f.linked) rig.complete_link();
  if (f.node) rig.connect_node();
  change(rig, f);
  return send(rig, f.header(), f.body());
}

template <class T>
void put(ValidFrame& f, size_t offset, T value) {
  std::memcpy(reinterpret_cast<char*>(f.words.data()) + offset, &value, sizeof value);
}

ValidFrame frame_at(size_t i) {
  FurnishedRig rig;
  return make_frame(rig, i);
}

void expect_refused(const FrameOutcome& o, const std::string& what) {
  EXPECT_FALSE(o.accepted) << what << " was accepted";
  EXPECT_FALSE(o.reason.empty()) << what << ": no reason was given";
  EXPECT_TRUE(o.calls.empty()) << what << " reached the driver: " << o.calls[0];
  EXPECT_TRUE(o.violations.empty()) << what << ": " << o.violations[0];
}

TEST(HostileFrames, GoodOnesAreAccepted) {
  for (size_t i = 0, n = frame_count(); i < n; ++i) {
    const ValidFrame f = frame_at(i);
    const FrameOutcome o = send_changed(i, [](FurnishedRig&, ValidFrame&) {});
    EXPECT_TRUE(o.accepted) << f.name << ": " << o.reason;
    EXPECT_TRUE(o.violations.empty()) << f.name << ": " << o.violations[0];
    if (!f.reaches.empty()) {
      EXPECT_GE(std::count(o.calls.begin(), o.calls.end(), f.reaches), 1) << f.name;
    }
    if (f.calls.empty()) continue;
    EXPECT_EQ(std::count(o.calls.begin(), o.calls.end(), f.calls), 1) << f.name << ", " << f.calls;
  }
}

TEST(HostileFrames, EveryHandlerHasOne) {
  std::set<uint16_t> covered{wire::kPing, wire::kReadOutput};  // these have no body
  for (size_t i = 0, n = frame_count(); i < n; ++i) covered.insert(frame_at(i).function);
  const auto& table = worker::dispatch_table();
  for (size_t i = 0; i < table.size(); ++i) {
    if (!table[i].run) continue;
    EXPECT_TRUE(covered.contains(static_cast<uint16_t>(i))) << table[i].name;
  }
}

TEST(HostileFrames, ReplyRest) {
  const std::vector<std::byte> rest(kReplyLimit + 60, std::byte{7});
  const auto ask = [](FurnishedRig& rig, uint64_t from, Answer* answer) {
    const wire::FrameHeader header{24, wire::kReplyRest, 3, 1, 1};
    return rig.dispatch(header, std::as_bytes(std::span(&from, 1)), answer);
  };
  Answer answer;
  {
    FurnishedRig rig;
    EXPECT_FALSE(ask(rig, 8, &answer)) << "there is no answer that goes on";
  }
  for (const uint64_t from : {uint64_t{0}, uint64_t{39}, uint64_t{41}, ~uint64_t{0}}) {
    FurnishedRig rig;
    ASSERT_TRUE(rig.session().unfetched.keep(3, 40, rest));
    EXPECT_FALSE(ask(rig, from, &answer)) << from;
  }
  FurnishedRig rig;
  ASSERT_TRUE(rig.session().unfetched.keep(3, 40, rest));
  EXPECT_TRUE(ask(rig, 40, &answer));
  EXPECT_EQ(answer.body, std::vector<std::byte>(kReplyLimit, std::byte{7}));
  EXPECT_TRUE(ask(rig, 40 + kReplyLimit, &answer));
  EXPECT_EQ(answer.body, std::vector<std::byte>(60, std::byte{7}));
  EXPECT_FALSE(ask(rig, 40, &answer)) << "it was given already";
}

// The driver steps by rows * pitch from slice to slice, whatever the frame calls a slice.
TEST(HostileFrames, SlicesOfCopyNodesAreWholeRows) {
  struct Case {
    uint64_t pitch, slice, depth;
    bool good;
  };
  for (const Case& c : {Case{128, 384, 2, true}, Case{128, 512, 1, true}, Case{128, 356, 2, false},
                        Case{128, 256, 2, false}, Case{128, 400, 2, false}, Case{0, 300, 1, false},
                        Case{128, 0, 1, false}, Case{64, 384, 1, false}}) {
    FurnishedRig rig;
    wire::CopyNode node{};
    node.to = {rig.address(), c.pitch, c.slice, wire::NodeMemory::kDevice, 0};
    node.from = {rig.arena(), 100, 300, wire::NodeMemory::kArena, 0};
    node.width = 100, node.rows = 3, node.depth = c.depth;
    const ValidFrame f = make(
        "copy", wire::kGraphNodeAdd, true, "",
        wire::GraphNodeAdd{FurnishedRig::kGraphId, CU_GRAPH_NODE_TYPE_MEMCPY, sizeof node, 0, 0},
        text(node));
    const FrameOutcome o = send(rig, f.header(), f.body());
    const std::string what = std::to_string(c.pitch) + ", " + std::to_string(c.slice);
    if (!c.good) {
      expect_refused(o, what);
    } else {
      EXPECT_TRUE(o.accepted) << what << ": " << o.reason;
    }
  }
}

// Of one row or one slice nothing lies at the next, so the client may say what it likes; the driver
// is told what was checked.
TEST(HostileFrames, DistancesThatNothingLiesAt) {
  const auto change = [](uint64_t rows, uint64_t slices, uint64_t pitch, uint64_t height) {
    return [=](FurnishedRig&, ValidFrame& f) {
      auto* m = reinterpret_cast<wire::SluiceCopyArrays*>(f.words.data());
      m->rows = rows, m->slices = slices;
      m->toPitch = m->fromPitch = pitch;
      m->toHeight = m->fromHeight = height;
    };
  };
  for (size_t i = 0, n = frame_count(); i < n; ++i) {
    const ValidFrame good = frame_at(i);
    if (good.function != wire::kSluiceCopyArrays) continue;
    for (const uint64_t distance : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40, ~uint64_t{0}})
      for (const uint64_t rows : {1, 4}) {
        const FrameOutcome o =
            send_changed(i, change(rows, 1, rows == 1 ? distance : uint64_t{256}, distance));
        EXPECT_TRUE(o.accepted) << good.name << ", " << distance << ": " << o.reason;
        EXPECT_TRUE(o.violations.empty()) << good.name << ", " << distance << o.violations[0];
      }
    // Slices that lie in one another, and an empty box.
    for (const auto& [rows, slices, pitch, height] : {std::array<uint64_t, 4>{4, 2, 256, 0},
                                                      {1, 2, 0, 4},
                                                      {1, 2, 63, 4},
                                                      {4, 2, 256, 3},
                                                      {0, 1, 256, 4},
                                                      {4, 0, 256, 4},
                                                      {4, 2, 1ull << 33, 1ull << 33}})
      expect_refused(send_changed(i, change(rows, slices, pitch, height)),
                     good.name + " of " + std::to_string(rows) + " rows, " +
                         std::to_string(slices) + " slices, " + std::to_string(pitch) +
                         " bytes apart, " + std::to_string(height) + " high");
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
      for (int c = range.or_null ? 1 : 0; c < 6; ++c) {
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

// What single commands must not say.
TEST(HostileFrames, ParticularLies) {
  struct Lie {
    const char* frame;
    const char* what;
    std::function<void(FurnishedRig&, ValidFrame&)> tell;
  };
  using Copy = wire::CopyToDevice;
  using wire::Upload;
  const auto set = [](size_t offset, auto value) {
    return [=](FurnishedRig&, ValidFrame& f) { put(f, offset, value); };
  };
  const Lie lies[] = {
      {"Launch", "too few parameters", set(offsetof(wire::Launch, param_bytes), 19u)},
      {"Launch", "no parameters", set(offsetof(wire::Launch, param_bytes), 0u)},
      {"Launch", "more parameters than there are", set(offsetof(wire::Launch, param_bytes), 4000u)},
      {"Launch", "more attributes than there are",
       set(offsetof(wire::Launch, attribute_count), 60u)},
      {"Launch", "countless attributes", set(offsetof(wire::Launch, attribute_count), ~0u)},
      {"Launch, attributes", "an attribute with an event",
       set(sizeof(wire::Launch) + 20, uint32_t{CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT})},
      {"Launch, attributes", "a window in memory of others",
       [](FurnishedRig&, ValidFrame& f) {
         constexpr size_t at = sizeof(wire::Launch) + 20;
         put(f, at, uint32_t{CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW});
         const CUaccessPolicyWindow window{&f, 4096, 0.5f, CU_ACCESS_PROPERTY_NORMAL,
                                           CU_ACCESS_PROPERTY_NORMAL};
         put(f, at + offsetof(wire::LaunchAttribute, value), window);
       }},
      {"CopyToDevice, arena", "a mark that there is not", set(offsetof(Copy, mark), 8192u)},
      {"NodeLinkOpen", "a link to itself", set(0, uint64_t{2})},
      {"NodeLinkOpen", "a link to nobody", set(0, uint64_t{4})},
      {"NodeSend", "a copy to itself", set(offsetof(wire::NodeTransfer, peer), uint64_t{3})},
      {"NodeSend", "a copy to where there is no link",
       set(offsetof(wire::NodeTransfer, peer), uint64_t{0})},
      {"NodeReceive", "rows beyond counting",
       set(offsetof(wire::NodeTransfer, rows), ~uint64_t{0})},
      {"NodeReceive", "rows in one another", set(offsetof(wire::NodeTransfer, pitch), uint64_t{9})},
      {"CopyToHost, arena", "a mark that there is not", set(offsetof(Copy, mark), 0xfffffffeu)},
      {"CopyToDevice, inline", "more data than there is",
       set(offsetof(Copy, width), uint64_t{105})},
      {"CopyToDevice, inline", "rows without a pitch",
       set(offsetof(Copy, rows), uint64_t{2} << 40)},
      {"CopyToHost, inline", "more than a reply holds",
       set(offsetof(Copy, width), uint64_t{kReplyLimit} + 1)},
      {"CopyToHost, inline rows", "rows beyond counting", set(offsetof(Copy, rows), ~uint64_t{0})},
      {"CopyToDevice, arena rows", "a pitch that wraps around",
       set(offsetof(Copy, device_pitch), uint64_t{1} << 63)},
      {"CopyToDevice, arena rows", "rows that overlap",
       set(offsetof(Copy, host_pitch), uint64_t{99})},
      {"CopyOnDevice", "nothing to copy", set(offsetof(wire::CopyOnDevice, width), uint64_t{0})},
      {"CopyOnDevice, rows", "beyond the window",
       set(offsetof(wire::CopyOnDevice, rows), uint64_t{1} << 39)},
      {"FillDevice", "beyond the window",
       set(offsetof(wire::FillDevice, width), uint64_t{1} << 45)},
      {"FillDevice", "elements of three bytes", set(offsetof(wire::FillDevice, element_bytes), 3u)},
      {"MemoryMap", "less than a page", set(offsetof(wire::MemoryMap, bytes), uint64_t{4096})},
      {"MemoryMap", "nothing", set(offsetof(wire::MemoryMap, bytes), uint64_t{0})},
      {"MemoryMap", "more than the vGPU has",
       set(offsetof(wire::MemoryMap, bytes), uint64_t{256} << 20)},
      {"MemoryMap", "what is backed already",
       [](FurnishedRig& rig, ValidFrame& f) {
         put(f, offsetof(wire::MemoryMap, address), rig.address() + (2 << 20));
       }},
      {"MemoryUnmap", "a part", set(offsetof(wire::MemoryMap, bytes), uint64_t{2} << 20)},
      {"MemoryUnmap", "another vGPU's", set(offsetof(wire::MemoryMap, device), 1u)},
      {"MemoryUnmap", "what an allocation backs",
       [](FurnishedRig& rig, ValidFrame& f) {
         put(f, offsetof(wire::MemoryMap, address), rig.address() + FurnishedRig::kMappedBytes);
         put(f, offsetof(wire::MemoryMap, bytes), uint64_t{2} << 20);
       }},
      {"AllocationCreate", "nothing", set(offsetof(wire::AllocationCreate, bytes), uint64_t{0})},
      {"AllocationCreate", "half a slab",
       set(offsetof(wire::AllocationCreate, bytes), uint64_t{1} << 20)},
      {"AllocationCreate", "more than the vGPU has",
       set(offsetof(wire::AllocationCreate, bytes), uint64_t{256} << 20)},
      {"AllocationDestroy", "what is mapped", set(0, FurnishedRig::kAllocationId)},
      {"AllocationMap", "more than there is",
       set(offsetof(wire::AllocationMap, bytes), uint64_t{4} << 20)},
      {"AllocationMap", "where slabs are",
       [](FurnishedRig& rig, ValidFrame& f) {
         put(f, offsetof(wire::AllocationMap, address), rig.address() + (2 << 20));
       }},
      {"AllocationMap", "where an allocation is",
       [](FurnishedRig& rig, ValidFrame& f) {
         put(f, offsetof(wire::AllocationMap, address), rig.address() + FurnishedRig::kMappedBytes);
       }},
      {"AllocationUnmap", "more than the mapping",
       set(offsetof(wire::AllocationUnmap, bytes), uint64_t{4} << 20)},
      {"AllocationUnmap", "slabs",
       [](FurnishedRig& rig, ValidFrame& f) {
         put(f, offsetof(wire::AllocationUnmap, address), rig.address());
         put(f, offsetof(wire::AllocationUnmap, bytes), FurnishedRig::kMappedBytes);
       }},
      {"AllocationAccess", "writing only", set(offsetof(wire::AllocationAccess, flags), 2u)},
      {"Upload", "more than there is", set(offsetof(Upload, bytes), uint64_t{4000})},
      {"Upload", "beyond its blob", set(offsetof(Upload, offset), uint64_t{1})},
      {"Upload", "an endless blob", set(offsetof(Upload, total), ~uint64_t{0})},
      {"Upload", "a piece before the first", set(offsetof(Upload, offset), ~uint64_t{0})},
      {"Upload", "into a blob that is full", set(offsetof(Upload, blob), FurnishedRig::kBlob)},
      {"CodeLoad, module", "an image that never came",
       set(offsetof(wire::CodeLoad, blob), uint64_t{1234})},
      {"CodeLoad, module", "more options than there are",
       set(offsetof(wire::CodeLoad, option_count), 30u)},
      {"CodeLoadKnown", "more options than there are",
       set(offsetof(wire::CodeLoadKnown, option_count), 30u)},
      {"CodeLoadKnown", "an image that is not kept",
       set(offsetof(wire::CodeLoadKnown, bytes), uint64_t{100})},
      {"CodeLoadKnown", "an endless image",
       set(offsetof(wire::CodeLoadKnown, bytes), ~uint64_t{0})},
      {"FunctionGet", "a name beyond the command",
       set(offsetof(wire::FunctionGet, name_bytes), 4000u)},
      {"FunctionGet", "no name", set(offsetof(wire::FunctionGet, name_bytes), 0u)},
      {"FunctionGet", "a NUL in a name", set(sizeof(wire::FunctionGet) + 2, uint8_t{0})},
      {"GlobalGet", "a name beyond the command", set(offsetof(wire::GlobalGet, name_bytes), 4000u)},
  };
  FurnishedRig rig;
  const std::vector<ValidFrame> good = valid_frames(rig);
  for (const Lie& lie : lies) {
    const auto it = std::find_if(good.begin(), good.end(),
                                 [&](const ValidFrame& f) { return f.name == lie.frame; });
    ASSERT_NE(it, good.end()) << lie.frame;
    expect_refused(send_changed(static_cast<size_t>(it - good.begin()), lie.tell),
                   std::string(lie.frame) + ": " + lie.what);
  }
}

// Not every command needs a context; those that do must not take one that there is not.
TEST(HostileFrames, ContextsThatThereAreNot) {
  for (size_t i = 0, n = frame_count(); i < n; ++i) {
    const ValidFrame good = frame_at(i);
    for (uint32_t wrong : {0u, 3u, 65u, ~0u}) {
      const FrameOutcome o =
          send_changed(i, [&](FurnishedRig&, ValidFrame& f) { f.context = wrong; });
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
    if (f.function < wire::kFirstApiFunction || f.function >= wire::kFirstLibraryFunction) continue;
    FurnishedRig poor;
    const auto give_back = poor.driver().cuMemFreeHost;  // of what furnishing took
    poor.driver() = worker::Driver{};
    poor.driver().cuMemFreeHost = give_back;
    poor.driver().cuCtxSetCurrent = [](CUcontext) { return CUDA_SUCCESS; };
    ValidFrame again;
    for (const ValidFrame& g : valid_frames(poor))
      if (g.function == f.function) again = g;
    const FrameOutcome o = send(poor, again.header(), again.body());
    EXPECT_TRUE(o.accepted) << f.name << ": " << o.reason;
    EXPECT_EQ(o.answer.status, CUDA_ERROR_NOT_SUPPORTED) << f.name;
  }
}

}  // namespace
}  // namespace sluice::test
