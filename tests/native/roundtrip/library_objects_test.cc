// SPDX-License-Identifier: Apache-2.0
// Objects of NVIDIA's libraries live as long as something works with them, and end once.
#include "library/objects.h"
#include "tests/native/roundtrip/library_proofs.h"

namespace sluice::test {
namespace {

namespace ids = sluice::library;

TEST_F(LibraryProofs, RanksThatAShrinkLeavesOutAreTheParents) {
  ValidFrame f = hand_written("NcclGroup, a shrink");
  EXPECT_EQ(send(f).status, 0);
  const auto with = [&](int32_t a, int32_t b, int32_t c) {
    ValidFrame changed = f;
    const uint64_t first = static_cast<uint32_t>(a) | uint64_t{static_cast<uint32_t>(b)} << 32;
    changed.words[changed.words.size() - 2] = first;
    changed.words[changed.words.size() - 1] = static_cast<uint32_t>(c);
    changed.words[3] = handle_id(HandleKind::kLibraryObject, 300);
    return changed;
  };
  EXPECT_EQ(send(with(4, 5, 8)).status, 4) << "a rank beyond";
  EXPECT_EQ(send(with(4, -1, 6)).status, 4) << "a rank before";
  EXPECT_EQ(send(with(4, 4, 6)).status, 4) << "a rank twice";
}

TEST_F(LibraryProofs, ACommunicatorIsDestroyedOnceInAGroup) {
  const uint64_t comm = library_object(ids::k_nccl);
  const auto group = [&](std::vector<std::pair<uint16_t, std::vector<uint64_t>>> calls) {
    ValidFrame f;
    f.name = "NcclGroup";
    f.function = ids::id_sluiceNcclGroup;
    f.answered = true;
    f.words = {calls.size() | uint64_t{1} << 32};
    for (const auto& [id, body] : calls) {
      f.words.push_back(id | uint64_t{FurnishedRig::kContext} << 32);
      f.words.push_back(body.size() * 8);
      f.words.insert(f.words.end(), body.begin(), body.end());
    }
    return f;
  };
  constexpr uint16_t kDestroy = ids::id_ncclCommDestroy;
  EXPECT_EQ(send(group({{kDestroy, {comm}}, {kDestroy, {comm}}})).status, 5);
  EXPECT_EQ(calls("ncclCommDestroy"), 0u);
  EXPECT_EQ(
      send(group({{kDestroy, {comm}},
                  {ids::id_ncclSend, {rig_->address(), 16, 7, 1, comm, FurnishedRig::kStreamId}}}))
          .status,
      5);
  EXPECT_EQ(calls("ncclCommDestroy"), 0u);
  EXPECT_EQ(send(group({{kDestroy, {comm}}})).status, 0);
  EXPECT_EQ(calls("ncclCommDestroy"), 1u);
}

// Somebody else's command ends what a call is working with.
TEST_F(LibraryProofs, ObjectsInUseAreNotDestroyed) {
  const ValidFrame scale = frame("cublasSscal_v2"), destroy = frame("cublasDestroy_v2");
  bool ended = true;
  fake().instead["cublasSscal_v2"] = [&](const uint64_t*) {
    Answer answer;
    ended = rig_->dispatch(destroy.header(), destroy.body(), &answer);
    return 0;
  };
  send(scale);
  fake().instead.erase("cublasSscal_v2");
  EXPECT_FALSE(ended);
  EXPECT_EQ(calls("cublasDestroy_v2"), 0u);
}

// cuDNN has put a pointer to the one into the other.
TEST_F(LibraryProofs, WhatAnotherObjectPointsToOutlivesItsEnd) {
  const ValidFrame set = frame("cudnnSetRNNDescriptor_v8"),
                   drop = frame("cudnnDestroyDropoutDescriptor"),
                   end = frame("cudnnDestroyRNNDescriptor");
  expect_called(set, "the descriptor");
  EXPECT_EQ(send(drop).status, 0);
  EXPECT_EQ(calls("cudnnDestroyDropoutDescriptor"), 0u) << "it is pointed to";
  EXPECT_FALSE(rig_->session().rejected());
  EXPECT_EQ(send(end).status, 0);
  EXPECT_EQ(calls("cudnnDestroyRNNDescriptor"), 1u);
  EXPECT_EQ(calls("cudnnDestroyDropoutDescriptor"), 1u) << "nothing points to it any more";
  EXPECT_STREQ(fake().calls.back().function->name, "cudnnDestroyDropoutDescriptor")
      << "it ended first";
}

// cuFFT may read a callback's code when the plan is made, long after the call that gave it.
TEST_F(LibraryProofs, CodeThatAPlanIsGivenStaysUntilThePlanEnds) {
  const ValidFrame set = frame("cufftXtSetJITCallback"), end = frame("cufftDestroy");
  const FunctionSpec& spec = function("cufftXtSetJITCallback");
  int code = -1;
  for (int i = 0; i < spec.params; ++i)
    if (spec.param[i].kind == wire::ParamKind::kIn && spec.param[i].count[0] >= 0) code = i;
  ASSERT_GE(code, 0);
  const std::byte* given = nullptr;
  std::vector<std::byte> bytes;
  fake().instead["cufftXtSetJITCallback"] = [&](const uint64_t* words) {
    given = reinterpret_cast<const std::byte*>(words[code]);
    const auto n = wire::elements(spec, spec.param[code], words);
    bytes.assign(given, given + n);
    return 0;
  };
  EXPECT_EQ(send(set).status, 0);
  ASSERT_FALSE(bytes.empty());
  const auto object = [&] {
    worker::LibraryObject found;
    EXPECT_TRUE(worker::Libraries::get().objects.get(set.words[0], &found));
    return found;
  };
  ASSERT_TRUE(object().retained);
  ASSERT_EQ(object().retained->size(), 1u);
  const auto holds = [&] {
    for (const auto& [what, buffers] : *object().retained)
      for (const auto& buffer : *buffers)
        if (buffer.get() == given) return std::equal(bytes.begin(), bytes.end(), buffer.get());
    return false;
  };
  EXPECT_TRUE(holds()) << "the library has a pointer to it";
  EXPECT_EQ(send(set).status, 0);
  EXPECT_EQ(object().retained->size(), 1u) << "what is set anew takes the place of the old";
  EXPECT_TRUE(holds());
  fake().instead.erase("cufftXtSetJITCallback");
  EXPECT_EQ(send(end).status, 0);
  EXPECT_EQ(calls("cufftDestroy"), 1u);
}

// A watchdog may end a communicator that another thread is stuck with.
TEST_F(LibraryProofs, CommunicatorsInUseAreAborted) {
  const ValidFrame send_it = frame("ncclSend"), abort = frame("ncclCommAbort");
  bool ended = false;
  fake().instead["ncclSend"] = [&](const uint64_t*) {
    Answer answer;
    ended = rig_->dispatch(abort.header(), abort.body(), &answer);
    return 0;
  };
  send(send_it);
  fake().instead.erase("ncclSend");
  EXPECT_TRUE(ended);
  EXPECT_EQ(calls("ncclCommAbort"), 1u);
}

}  // namespace
}  // namespace sluice::test
