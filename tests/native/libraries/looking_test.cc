// SPDX-License-Identifier: Apache-2.0
// What programs ask of cuDNN's descriptors: one by one at first, then all of it in one answer, and
// the same either way. What they make without waiting, and what becomes of it that cuDNN refuses.
#include <dlfcn.h>

#include "client/library/cudnn_descriptors.h"
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
int32_t cudnnBackendExecute(void* handle, void* plan, void* pack);
int32_t cudnnCreate(void** handle);
int32_t cudnnDestroy(void* handle);
int32_t cudnnCreateTensorDescriptor(void** descriptor);
int32_t cudnnDestroyTensorDescriptor(void* descriptor);
int32_t cudnnSetTensor4dDescriptor(void* descriptor, int32_t format, int32_t type, int32_t n,
                                   int32_t c, int32_t h, int32_t w);
int32_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void* handle, int32_t mode,
                                                             int32_t operations, void* activation,
                                                             void* x, size_t* bytes);
}

namespace sluice::test {
namespace {

using client::library::Key;
using client::library::LearnedQuestions;
using client::library::State;
using wire::BackendQuestion;

constexpr int32_t kHeuristics = 6, kConfiguration = 3, kEngine = 2, kOther = 7;
constexpr int32_t kTensor = 17, kConvolution = 10, kGraph = 15;
constexpr int32_t kRefusedWith = 9999, kInt32 = 23;
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
    State::get().said.clear();
    client::library::cudnn::questions() = {};
  }
  void TearDown() override {
    destroy_all();
    looks(false);
    RoundTrip::TearDown();
  }
  // A worker of today, or one that knows neither looks nor what waits for nothing.
  static void looks(bool on) {
    constexpr uint64_t kBoth = wire::kAnswersLooks | wire::kBuildsAhead;
    uint64_t& abilities = client::Session::get()->devices()[0]->record.abilities;
    abilities = on ? abilities | kBoth : abilities & ~kBoth;
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
  // Of a kind, made of others; `status`: what it is to be refused with. Its own is the result.
  int32_t make(void** made, int32_t type, const std::vector<void*>& of, int32_t status = 0) {
    *made = create(type);
    const auto set = [&](int32_t name, int32_t element, size_t count, const void* at) {
      EXPECT_EQ(cudnnBackendSetAttribute(*made, name, element, static_cast<int64_t>(count), at), 0);
    };
    if (!of.empty()) set(700, kObjects, of.size(), of.data());
    if (status != 0) set(kRefusedWith, kInt32, 1, &status);
    return cudnnBackendFinalize(*made);
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
  // What the stand-in counts.
  static int64_t counted(const char* what) {
    void* fake = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_NOLOAD);
    auto* count = reinterpret_cast<int64_t (*)()>(dlsym(fake, what));
    const int64_t all = count ? count() : -1;
    if (fake) dlclose(fake);
    return all;
  }
  static int64_t on_node() { return counted("fake_cudnn_descriptors"); }
  static void forget_what_was_said() {
    std::lock_guard lock(State::get().mutex);
    State::get().said.clear();
  }
  void destroy_all() {
    for (void* d : made_) EXPECT_EQ(cudnnBackendDestroyDescriptor(d), 0);
    made_.clear();
  }
  void destroy_last() {
    EXPECT_EQ(cudnnBackendDestroyDescriptor(made_.back()), 0);
    made_.pop_back();
  }
  // All that has been sent is done. By a kind of descriptor of which nothing else is asked.
  void drain() {
    void* other = create(kOther);
    EXPECT_EQ(cudnnBackendFinalize(other), 0);
    number(other, kNotes);
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
  forget_what_was_said();
  looks(false);
  const uint64_t one_by_one = trips();
  EXPECT_EQ(read(build(3)), together);
  EXPECT_GE(trips() - one_by_one, 8u);
  looks(true);
  EXPECT_NE(read(build(4)), together);
}

TEST_F(Looking, WhatIsGotOnTheWayStaysUntilItIsAskedForOrTheDescriptorEnds) {
  read(build(11));
  read(build(12));
  destroy_last();
  build(13);
  const int64_t before = on_node();
  ASSERT_GT(before, 0);
  int64_t count = 0;
  void* another = build(14);
  // a look at all that hangs by it: its own are kept, what hangs by those is not
  EXPECT_EQ(cudnnBackendGetAttribute(another, kResults, kObjects, 0, &count, nullptr), 0);
  EXPECT_EQ(on_node(), before + 1 + kAskedFor);
  destroy_last();
  drain();
  EXPECT_EQ(on_node(), before + 1);  // that of drain()
}

TEST_F(Looking, CudnnIsAskedOnceForWhatALookHasGot) {
  read(build(21));
  read(build(22));
  const int64_t before = counted("fake_cudnn_got");
  read(build(23));
  drain();
  // its results, and of each of the two its engine: in the look, and the engines for the client
  EXPECT_EQ(counted("fake_cudnn_got") - before, 1 + 2 + 2);
}

// As when programs ask for as many as they were told that there are.
TEST_F(Looking, CudnnIsAskedOnceForMoreAndForFewer) {
  read(build(31));
  const auto ask = [&](void* heuristics, int64_t requested) {
    std::vector<void*> found;
    for (int64_t i = 0; i < requested; ++i) found.push_back(create(kConfiguration));
    int64_t count = 0;
    EXPECT_EQ(
        cudnnBackendGetAttribute(heuristics, kResults, kObjects, requested, &count, found.data()),
        0);
    EXPECT_EQ(count, 2);
    return std::pair{number(found[0], kNotes), number(found[1], kNotes)};
  };
  const auto three = ask(build(32), 3);
  const auto eight = ask(build(32), 8);
  EXPECT_EQ(three, eight);
  void* next = build(33);
  const int64_t before = counted("fake_cudnn_got");
  int64_t count = 0;
  EXPECT_EQ(cudnnBackendGetAttribute(next, kResults, kObjects, 0, &count, nullptr), 0);
  const int64_t looked = counted("fake_cudnn_got");
  const auto fewer = ask(next, 3);
  drain();
  EXPECT_EQ(counted("fake_cudnn_got"), looked);  // the look had it
  EXPECT_LE(looked - before, 1 + 3 * 2);         // and asked once; the engines for each question
  EXPECT_EQ(ask(build(33), 8), fewer);
}

TEST_F(Looking, WhoWaitsForADescriptorIsToldWhatOthersWereAsked) {
  read(build(51));
  read(build(52));
  const uint64_t before = trips();
  const std::vector<int64_t> together = read(build(53));
  EXPECT_EQ(trips() - before, 1u);  // finalize
  forget_what_was_said();
  EXPECT_EQ(read(build(53)), together);
}

// A question that nobody has asked is asked of all that came in one answer.
TEST_F(Looking, ANewQuestionIsAskedOfAllThatCameTogether) {
  std::vector<void*> found{create(kEngine), create(kEngine)};
  int64_t count = 0;
  void* first = build(61);
  EXPECT_EQ(cudnnBackendGetAttribute(first, kResults, kObjects, 2, &count, found.data()), 0);
  const uint64_t before = trips();
  const int64_t one = number(found[0], 7001), two = number(found[1], 7001);
  EXPECT_EQ(trips() - before, 1u);
  forget_what_was_said();
  looks(false);
  EXPECT_EQ(number(found[0], 7001), one);
  EXPECT_EQ(number(found[1], 7001), two);
}

TEST_F(Looking, NobodyWaitsForWhatOnlyHoldsAttributes) {
  const uint64_t before = trips();
  void *tensor, *operation, *graph, *heuristics;
  EXPECT_EQ(make(&tensor, kTensor, {}), 0);
  EXPECT_EQ(make(&operation, kConvolution, {tensor, tensor}), 0);
  EXPECT_EQ(make(&graph, kGraph, {operation}), 0);
  EXPECT_EQ(trips() - before, 0u);
  EXPECT_EQ(make(&heuristics, kHeuristics, {graph}), 0);
  EXPECT_EQ(trips() - before, 1u);
  destroy_all();
  drain();
  EXPECT_EQ(on_node(), 1);
}

// As PyTorch does for each convolution of another shape: the heuristics, the plan and the first
// execution are waited for, and nothing else.
TEST_F(Looking, APlanOfANewShapeTakesThreeRoundTrips) {
  constexpr int32_t kPlan = 5, kPack = 16, kHeuristicsOfCudnn = 4;
  constexpr int32_t kWorkspace = 402, kUniqueIds = 1000, kPointers = 1001, kPackWorkspace = 1003;
  constexpr int32_t kPointer = 6;
  void* handle;
  ASSERT_EQ(cudnnCreate(&handle), 0);
  const auto convolve = [&](int64_t shape) {
    void *x, *y, *operation, *graph, *heuristics, *plan;
    x = create(kTensor);
    EXPECT_EQ(cudnnBackendSetAttribute(x, 902, kInt64, 1, &shape), 0);
    EXPECT_EQ(cudnnBackendFinalize(x), 0);
    EXPECT_EQ(make(&y, kTensor, {}), 0);
    EXPECT_EQ(make(&operation, kConvolution, {x, y}), 0);
    EXPECT_EQ(make(&graph, kGraph, {operation}), 0);
    EXPECT_EQ(make(&heuristics, kHeuristicsOfCudnn, {graph}), 0);
    const std::vector<int64_t> said = read(heuristics);
    void* configuration = create(kConfiguration);
    int64_t count = 0;
    EXPECT_EQ(cudnnBackendGetAttribute(heuristics, kResults, kObjects, 1, &count, &configuration),
              0);
    EXPECT_EQ(make(&plan, kPlan, {configuration}), 0);
    number(plan, kWorkspace);
    void* pack = create(kPack);
    const int64_t ids[] = {1, 2};
    void* pointers[] = {reinterpret_cast<void*>(world().memory),
                        reinterpret_cast<void*>(world().memory + 4096)};
    void* workspace = reinterpret_cast<void*>(world().memory + 8192);
    EXPECT_EQ(cudnnBackendSetAttribute(pack, kUniqueIds, kInt64, 2, ids), 0);
    EXPECT_EQ(cudnnBackendSetAttribute(pack, kPointers, kPointer, 2, pointers), 0);
    EXPECT_EQ(cudnnBackendSetAttribute(pack, kPackWorkspace, kPointer, 1, &workspace), 0);
    EXPECT_EQ(cudnnBackendFinalize(pack), 0);
    EXPECT_EQ(cudnnBackendExecute(handle, plan, pack), 0);
    return said;
  };
  convolve(1);
  convolve(2);
  uint64_t before = trips();
  const std::vector<int64_t> third = convolve(3);
  EXPECT_EQ(trips() - before, 3u);
  before = trips();
  EXPECT_EQ(convolve(3), third);
  EXPECT_EQ(trips() - before, 0u) << "all of it is known";
  EXPECT_EQ(cudnnDestroy(handle), 0);
}

TEST_F(Looking, WhatIsMadeOfARefusedDescriptorIsRefusedWithItsStatus) {
  void *tensor, *operation, *graph, *heuristics;
  EXPECT_EQ(make(&tensor, kTensor, {}, 2007), 0);
  EXPECT_EQ(make(&operation, kConvolution, {tensor}), 0);
  EXPECT_EQ(make(&graph, kGraph, {operation}), 0);
  // again, and not as what was made before
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(make(&heuristics, kHeuristics, {graph}), 2007);
    int64_t value = 0, count = 0;
    EXPECT_EQ(cudnnBackendGetAttribute(heuristics, kIndex, kInt64, 1, &count, &value), 2004);
  }
  int64_t value = 0, count = 0;
  for (const int32_t name : {800, 801, 801})  // a new question, and one that is known
    EXPECT_EQ(cudnnBackendGetAttribute(operation, name, kInt64, 1, &count, &value), 2007);
  void* target = create(kTensor);
  EXPECT_EQ(cudnnBackendGetAttribute(graph, 802, kObjects, 1, &count, &target), 2007);
  EXPECT_EQ(make(&graph, kGraph, {target}), 2004) << "it is not finalized";
  // The session is as it was.
  EXPECT_EQ(make(&tensor, kTensor, {}), 0);
  EXPECT_EQ(make(&heuristics, kHeuristics, {tensor}), 0);
  number(heuristics, kIndex);
  destroy_all();
  drain();
  EXPECT_EQ(on_node(), 1);
  // A worker of before is asked each time.
  looks(false);
  EXPECT_EQ(make(&tensor, kTensor, {}, 2007), 2007);
}

// The plans of one model say tens of thousands of things; where these filled the table of calls'
// answers, the sizes of batch normalizations were forgotten with them, and asked again.
TEST_F(Looking, WhatDescriptorsSayIsBoundedAndNoCallsAnswerGoesWithIt) {
  void *handle, *tensor;
  ASSERT_EQ(cudnnCreate(&handle), 0);
  ASSERT_EQ(cudnnCreateTensorDescriptor(&tensor), 0);
  ASSERT_EQ(cudnnSetTensor4dDescriptor(tensor, 0, 0, 64, 64, 56, 56), 0);
  const auto ask = [&] {
    size_t bytes = 0;
    EXPECT_EQ(
        cudnnGetBatchNormalizationTrainingExReserveSpaceSize(handle, 1, 0, nullptr, tensor, &bytes),
        0);
  };
  ask();
  auto& said = State::get().said;
  {
    std::lock_guard lock(State::get().mutex);
    for (uint64_t i = 0; said.size() < 1 << 18; ++i) {
      Key key;
      key.add(i);
      said.emplace(key, std::vector<std::byte>(16));
    }
  }
  number(build(71), kIndex);
  EXPECT_LT(said.size(), 100u);
  const uint64_t before = trips();
  ask();
  EXPECT_EQ(trips(), before);
  EXPECT_EQ(cudnnDestroyTensorDescriptor(tensor), 0);
  EXPECT_EQ(cudnnDestroy(handle), 0);
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
