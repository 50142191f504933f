// SPDX-License-Identifier: Apache-2.0
// Objects of NVIDIA's libraries live as long as something works with them, and end once.
#include "library/objects.h"
#include "tests/native/roundtrip/library_proofs.h"
#include "wire/cudnn_backend.h"

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

// cuDNN's backend descriptors: what nobody waited for and was refused, and questions behind what
// is waited for.
class BackendBuilds : public LibraryProofs {
 protected:
  static constexpr uint64_t kInt64 = 3, kInt32 = 23, kOwnKind = 15;
  static constexpr uint64_t kRefusedWith = 9999;  // fake_cudnn_backend.cc

  static uint64_t id(uint32_t slot) { return handle_id(HandleKind::kLibraryObject, 300 + slot); }
  template <class T>
  static ValidFrame command(uint16_t function, bool answered, const T& head,
                            const std::vector<uint64_t>& tail) {
    return make("", function, answered, "", head,
                {reinterpret_cast<const char*>(tail.data()), tail.size() * sizeof tail[0]});
  }
  static ValidFrame build(uint32_t slot, bool answered, std::vector<uint64_t> attribute,
                          const std::vector<uint64_t>& questions = {}) {
    attribute.insert(attribute.end(), questions.begin(), questions.end());
    return command(ids::id_sluiceCudnnBackendBuild, answered, wire::BackendBuild{id(slot), 10, 1},
                   attribute);
  }
  static std::vector<uint64_t> plain() { return {900 | kInt64 << 32, 1, 16}; }
  static std::vector<uint64_t> refused(int32_t status) {
    return {kRefusedWith | kInt32 << 32, 1, static_cast<uint64_t>(status)};
  }
  static std::vector<uint64_t> made_of(uint32_t slot) {
    return {700 | kOwnKind << 32, 1, id(slot)};
  }
  static ValidFrame get(uint32_t slot) {
    return command(ids::id_sluiceCudnnBackendGet, true,
                   wire::BackendGet{id(slot), 905, kInt64, 1, 0, 0}, {});
  }
};

TEST_F(BackendBuilds, WhatNobodyWaitedForTellsItsStatusToAllThatIsMadeOfIt) {
  EXPECT_TRUE(send(build(1, false, refused(2007))).accepted);
  EXPECT_TRUE(send(build(2, false, made_of(1))).accepted);
  EXPECT_EQ(send(build(3, true, made_of(2))).status, 2007);
  EXPECT_EQ(send(get(2)).status, 2007);
  EXPECT_EQ(send(command(ids::id_sluiceCudnnBackendLook, true, wire::BackendLook{1, 1},
                         {id(2), 905 | kInt64 << 32, 1, 0}))
                .status,
            2007);
  EXPECT_EQ(send(command(ids::id_sluiceCudnnBackendExecute, true,
                         wire::BackendExecute{library_object(ids::k_cudnn), id(2), 0, 0, 0}, {}))
                .status,
            2007);
  for (const uint32_t slot : {2u, 1u})
    EXPECT_TRUE(
        send(command(ids::id_sluiceCudnnBackendDestroy, false, wire::BackendDestroy{id(slot)}, {}))
            .accepted);
  expect_rejected(get(2), "a descriptor that has ended");
}

TEST_F(BackendBuilds, WhatIsRefusedWhileSomebodyWaitsIsNotThere) {
  EXPECT_EQ(send(build(1, true, refused(3000))).status, 3000);
  expect_rejected(get(1), "a descriptor that its client knows not to be there");
}

TEST_F(BackendBuilds, TwoOfOneIdEndTheSession) {
  EXPECT_TRUE(send(build(1, false, refused(2007))).accepted);
  expect_rejected(build(1, false, plain()), "an id that a refused one has");
}

TEST_F(BackendBuilds, QuestionsAreWholeAndHangTogether) {
  const std::vector<uint64_t> question{905 | kInt64 << 32, 1, 0};
  EXPECT_EQ(send(build(1, true, plain(), question)).status, 0);
  const auto rejected = [&](bool answered, std::vector<uint64_t> questions, const char* what) {
    fresh();
    expect_rejected(build(2, answered, plain(), questions), what);
  };
  rejected(false, question, "a question that nobody waits for");
  rejected(true, {905 | kInt64 << 32, 1}, "two thirds of a question");
  rejected(true, {905 | kInt64 << 32, 1, 1ull << 32}, "a question that hangs by none");
  std::vector<uint64_t> many;
  for (int i = 0; i < 257; ++i) many.insert(many.end(), question.begin(), question.end());
  rejected(true, many, "257 questions");
  // What they ask is the node's to bound.
  fresh();
  EXPECT_EQ(send(build(3, true, plain(), {905 | kInt64 << 32, 1ull << 40, 0})).status, 0);
  EXPECT_EQ(send(build(4, true, plain(), {905 | kOwnKind << 32, ~0ull, 3})).status, 0);
}

}  // namespace
}  // namespace sluice::test
