// SPDX-License-Identifier: Apache-2.0
// What programs ask of cuDNN's descriptors: one by one at first, then all of it in one answer, and
// the same either way.
#include <dlfcn.h>

#include "client/library/cudnn_look.h"
#include "client/library/object.h"
#include "client/objects/device.h"
#include "tests/native/libraries/arguments.h"

extern "C" {
int32_t cudnnBackendCreateDescriptor(int32_t type, void** descriptor);
int32_t cudnnBackendDestroyDescriptor(void* descriptor);
int32_t cudnnBackendFinalize(void* descriptor);
int32_t cudnnBackendSetAttribute(void* descriptor, int32_t name, int32_t type, int64_t count,
                                 const void* elements);
int32_t cudnnBackendGetAttribute(void* descriptor, int32_t name, int32_t type, int64_t requested,
                                 int64_t* count, void* elements);
}

namespace sluice::test {
namespace {

using client::library::Key;
using client::library::LearnedQuestions;
using client::library::State;
using wire::BackendQuestion;

constexpr int32_t kHeuristics = 6, kConfiguration = 3, kEngine = 2;
constexpr int32_t kResults = 402, kConfigurationEngine = 300, kIndex = 401, kNotes = 403;
constexpr int32_t kInt64 = 3, kObjects = 15;
constexpr int64_t kAskedFor = 5;

class Looking : public RoundTrip {
 protected:
  void SetUp() override {
    RoundTrip::SetUp();
    FakeLibraries::get();
    looks(true);
    std::lock_guard lock(State::get().mutex);
    State::get().learned.clear();
    State::get().answers.clear();
  }
  void TearDown() override {
    for (void* d : made_) EXPECT_EQ(cudnnBackendDestroyDescriptor(d), 0);
    looks(false);
    RoundTrip::TearDown();
  }
  static void looks(bool on) {
    uint64_t& abilities = client::Session::get()->devices()[0]->record.abilities;
    abilities = on ? abilities | wire::kAnswersLooks : abilities & ~wire::kAnswersLooks;
  }
  void* create(int32_t type) {
    void* d = nullptr;
    EXPECT_EQ(cudnnBackendCreateDescriptor(type, &d), 0);
    made_.push_back(d);
    return d;
  }
  void* build(int64_t value) {
    void* d = create(kHeuristics);
    EXPECT_EQ(cudnnBackendSetAttribute(d, 400, kInt64, 1, &value), 0);
    EXPECT_EQ(cudnnBackendFinalize(d), 0);
    return d;
  }
  int64_t number(void* from, int32_t name) {
    int64_t value = 0, count = 0;
    EXPECT_EQ(cudnnBackendGetAttribute(from, name, kInt64, 1, &count, &value), 0);
    EXPECT_EQ(count, 2);
    return value;
  }
  // As frameworks do: how many there are, all of them, the engine of each and what it says.
  std::vector<int64_t> read(void* heuristics) {
    std::vector<int64_t> said;
    int64_t count = 0;
    EXPECT_EQ(cudnnBackendGetAttribute(heuristics, kResults, kObjects, 0, &count, nullptr), 0);
    said.push_back(count);
    std::vector<void*> found;
    for (int64_t i = 0; i < kAskedFor; ++i) found.push_back(create(kConfiguration));
    EXPECT_EQ(
        cudnnBackendGetAttribute(heuristics, kResults, kObjects, kAskedFor, &count, found.data()),
        0);
    for (int64_t i = 0; i < count; ++i) {
      void* engine = create(kEngine);
      int64_t engines = 0;
      EXPECT_EQ(cudnnBackendGetAttribute(found[static_cast<size_t>(i)], kConfigurationEngine,
                                         kObjects, 1, &engines, &engine),
                0);
      said.push_back(engines);
      said.push_back(number(engine, kIndex));
      said.push_back(number(engine, kNotes));
      said.push_back(number(found[static_cast<size_t>(i)], kNotes));
    }
    return said;
  }
  uint64_t trips() { return world().channel->answered; }
  static int64_t on_node() {
    void* fake = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_NOLOAD);
    auto* count = reinterpret_cast<int64_t (*)()>(dlsym(fake, "fake_cudnn_descriptors"));
    const int64_t all = count ? count() : -1;
    if (fake) dlclose(fake);
    return all;
  }

  std::vector<void*> made_;
};

TEST_F(Looking, WhatOthersWereAskedComesInOneAnswer) {
  read(build(1));
  read(build(2));
  void* third = build(3);
  const uint64_t before = trips();
  const std::vector<int64_t> together = read(third);
  EXPECT_LE(trips() - before, 1u);
  // The same of the same, one by one.
  {
    std::lock_guard lock(State::get().mutex);
    State::get().answers.clear();
  }
  looks(false);
  const uint64_t one_by_one = trips();
  EXPECT_EQ(read(build(3)), together);
  EXPECT_GE(trips() - one_by_one, 8u);
  looks(true);
  EXPECT_NE(read(build(4)), together);
}

TEST_F(Looking, WhatIsGotOnTheWayDoesNotStay) {
  read(build(11));
  read(build(12));
  EXPECT_EQ(cudnnBackendDestroyDescriptor(made_.back()), 0);
  made_.pop_back();
  build(13);
  const int64_t before = on_node();
  ASSERT_GT(before, 0);
  int64_t count = 0;
  void* another = build(14);
  // a look at all that hangs by it
  EXPECT_EQ(cudnnBackendGetAttribute(another, kResults, kObjects, 0, &count, nullptr), 0);
  EXPECT_EQ(on_node(), before + 1);
}

TEST(LearnedQuestions, AreBoundedAndHangTogether) {
  LearnedQuestions learned;
  const BackendQuestion configurations{kResults, kObjects, 4, kConfiguration, 0};
  const BackendQuestion engine{kConfigurationEngine, kObjects, 1, kEngine, 0};
  const BackendQuestion index{kIndex, kInt64, 1, 0, 0};
  learned.asked(kHeuristics, configurations);
  learned.asked(kHeuristics, configurations);
  learned.asked(kConfiguration, engine);
  learned.asked(kEngine, index);
  EXPECT_TRUE(learned.expects(kEngine, index));
  EXPECT_FALSE(learned.expects(kConfiguration, index));
  const auto tree = learned.tree(kHeuristics);
  ASSERT_EQ(tree.size(), 3u);
  EXPECT_EQ(tree[0].parent, 0u);
  EXPECT_EQ(tree[1].parent, 1u);
  EXPECT_EQ(tree[2].parent, 2u);
  // One that leads to itself, and more than there is room for.
  learned.asked(kEngine, {1, kObjects, 1, kEngine, 0});
  for (uint32_t i = 0; i < 1000; ++i) learned.asked(kEngine, {i, kInt64, 1, 0, 0});
  EXPECT_LE(learned.tree(kHeuristics).size(), wire::kMaxBackendLooks);
  learned.asked(kIndex, {1, kInt64, 1 << 20, 0, 0});
  EXPECT_TRUE(learned.tree(kIndex).empty());
}

TEST(LearnedQuestions, AnAnswerIsReadAsFarAsItGoes) {
  LearnedQuestions learned;
  learned.asked(kConfiguration, {kConfigurationEngine, kObjects, 2, kEngine, 0});
  learned.asked(kConfiguration, {kNotes, kInt64, 3, 0, 0});
  learned.asked(kEngine, {kIndex, kInt64, 1, 0, 0});
  const auto tree = learned.tree(kConfiguration);
  // Two engines, of which the second says nothing; then three numbers of five.
  const std::vector<int64_t> words{0, 2, 0, 1, 77, 3000, 0, 0, 5, 1, 2, 3};
  const std::span<const std::byte> whole{reinterpret_cast<const std::byte*>(words.data()),
                                         words.size() * 8};
  const Key content{};
  std::vector<std::pair<Key, size_t>> found;
  const auto keep = [&](const Key& of, std::span<const std::byte> answer) {
    found.emplace_back(of, answer.size());
  };
  client::library::read_look(whole, tree, {&content, 1}, keep);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].second, 8u);
  EXPECT_EQ(found[1].second, 16u);
  EXPECT_EQ(found[2].second, 32u);
  EXPECT_EQ(found[2].first, client::library::question_key(content, tree[2]));
  for (size_t n = 0; n < whole.size(); ++n) {
    found.clear();
    client::library::read_look(whole.first(n), tree, {&content, 1}, keep);
    EXPECT_LE(found.size(), 3u);
  }
  // No room for more was told.
  const std::vector<int64_t> over{-1, -1};
  found.clear();
  client::library::read_look({reinterpret_cast<const std::byte*>(over.data()), 16}, tree,
                             {&content, 1}, keep);
  EXPECT_TRUE(found.empty());
}

}  // namespace
}  // namespace sluice::test
