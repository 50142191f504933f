// SPDX-License-Identifier: Apache-2.0
// Every function of every forwarding library: exported stub, wire, worker, stand-in of NVIDIA's
// library. What is passed arrives, what is returned and written comes back, and how often anybody
// waits is what the function's class says.
#include <dlfcn.h>

#include <optional>

#include "client/library/object.h"
#include "tests/native/libraries/arguments.h"

namespace sluice::worker {
void PrintTo(const LibraryTable& table, std::ostream* out) { *out << table.spec->name; }
}  // namespace sluice::worker

namespace sluice::test {
namespace {

using client::library::State;
using wire::CallClass;
using wire::CallState;
using wire::FunctionSpec;

constexpr int kRounds = 30;
constexpr int64_t kRefused = 3;  // a status that is no success, of every library

class Forwarding : public RoundTrip, public ::testing::WithParamInterface<worker::LibraryTable> {
 protected:
  void SetUp() override {
    RoundTrip::SetUp();
    FakeLibraries::get();
    forget();
    random_.seed(next());
  }
  void TearDown() override {
    {
      std::lock_guard lock(State::get().mutex);
      State::get().kept.clear(client::Session::get());
    }
    FakeLibraries::get().clear();
    RoundTrip::TearDown();
  }

  // As if nothing had been called in this process.
  static void forget() {
    std::lock_guard lock(State::get().mutex);
    State::get().learned.clear();
    State::get().answers.clear();
  }
  const wire::LibrarySpec& library() { return *GetParam().spec; }
  std::unique_ptr<Arguments> arguments(const FunctionSpec& f) {
    return std::make_unique<Arguments>(library(), f, world(), random_);
  }

  // What one call led to.
  struct Seen {
    int64_t returned = 0;
    std::optional<FakeCall> call;  // at the library
    uint64_t waited = 0;
  };
  // Calls the exported function with the application's words.
  Seen call(const FunctionSpec& f, uint64_t* words) {
    FakeLibraries& fake = FakeLibraries::get();
    fake.calls.clear();
    const uint64_t before = world().channel->answered;
    const auto index = static_cast<size_t>(&f - library().functions);
    void* stub = dlsym(RTLD_DEFAULT, f.name);
    Seen seen;
    if (!stub) {
      ADD_FAILURE() << "the client's library does not export it";
      return seen;
    }
    seen.returned = GetParam().thunks[index](stub, words);
    seen.waited = world().channel->answered - before;
    // Before it an object may be told what had waited, after it one too many may be ended.
    EXPECT_LE(fake.calls.size(), may_wait(f) ? 2u : 1u);
    for (const FakeCall& c : fake.calls)
      if (c.function == &f) seen.call = c;
    return seen;
  }
  void expect_arrived(const Seen& seen, const FunctionSpec& f, const Arguments& a) {
    ASSERT_TRUE(seen.call) << "it did not reach the library";
    EXPECT_EQ(seen.call->function->id, f.id);
    EXPECT_EQ(a.problem(*seen.call), "");
  }
  void drop_created(const FunctionSpec& f, const Arguments& a) {
    if (f.state != CallState::kCreates) return;
    FurnishedObject made{a.created(), 0};
    worker::LibraryObject object;
    const client::library::Object* mine = State::get().objects.find(made.id);
    ASSERT_NE(mine, nullptr) << "no object came back";
    EXPECT_EQ(mine->recipe != nullptr, f.kept_end >= 0);
    if (mine->recipe) return void(State::get().objects.destroy(made.id));
    ASSERT_TRUE(worker::Libraries::get().objects.get(made.id, &object));
    EXPECT_TRUE(FakeLibraries::get().objects.contains(reinterpret_cast<uint64_t>(object.pointer)));
    drop(made);
  }
  // Once it is known to be good it waits until somebody needs it: kept_test.cc.
  static bool may_wait(const FunctionSpec& f) { return f.kept_end >= 0 || f.deferred; }
  // What it writes is as wide as a type that it writes too: beside_tables_test.cc.
  static bool is_narrower(const FunctionSpec& f) {
    return std::string(f.name) == "cudnnGetRNNDataDescriptor" ||
           std::string(f.name) == "cudnnGetSeqDataDescriptor";
  }
  void check(const FunctionSpec& f);
  void check_text(const FunctionSpec& f);
  void check_refusal(const FunctionSpec& f, Arguments& a);
  void check_a_repeated_call(const FunctionSpec& f, Arguments& a, const FakeCall& first);

  std::mt19937_64 random_;
};

void Forwarding::check_text(const FunctionSpec& f) {
  const auto a = arguments(f);
  Seen seen = call(f, a->words());
  expect_arrived(seen, f, *a);
  EXPECT_STREQ(reinterpret_cast<const char*>(seen.returned), text_of(f));
  const int64_t first = seen.returned;
  seen = call(f, a->words());
  EXPECT_EQ(!seen.call, f.cached) << "a text that stays is asked for once, another each time";
  EXPECT_EQ(seen.returned, first);
}

// An error of the library's own reaches the caller, and nothing is learned from it.
void Forwarding::check_refusal(const FunctionSpec& f, Arguments& a) {
  FakeLibraries::get().status = kRefused;
  for (int i = 0; i < 2; ++i) {
    a.scribble();
    const Seen seen = call(f, a.words());
    expect_arrived(seen, f, a);
    EXPECT_EQ(seen.returned, kRefused);
    EXPECT_EQ(seen.waited, 1u) << "a call that failed was sent without waiting";
    if (f.outputs_always && seen.call) {
      EXPECT_EQ(a.output_problem(*seen.call), "");
    } else {
      EXPECT_TRUE(a.untouched()) << "a failed call wrote to the application's memory";
    }
    if (f.state == CallState::kDestroys) break;
  }
  FakeLibraries::get().status = 0;
}

void Forwarding::check_a_repeated_call(const FunctionSpec& f, Arguments& a, const FakeCall& first) {
  a.scribble();
  a.change_the_rest();
  const Seen again = call(f, a.words());
  if (f.cached) {
    EXPECT_FALSE(again.call) << "the answer is known";
    EXPECT_EQ(a.output_problem(first), "");
  } else if (may_wait(f)) {
    EXPECT_FALSE(again.call) << "nobody needs it yet";
  } else {
    expect_arrived(again, f, a);
    if (again.call) {
      EXPECT_EQ(a.output_problem(*again.call), "");
    }
    EXPECT_EQ(again.waited, f.call == CallClass::kAnswered || a.has_outputs() ? 1u : 0u);
  }
  drop_created(f, a);
}

void Forwarding::check(const FunctionSpec& f) {
  if (f.text) return check_text(f);
  auto a = arguments(f);
  const bool waits_once = f.call == CallClass::kLearned && !f.cached;
  forget();
  if (f.returns_status) {
    check_refusal(f, *a);
    if (f.state == CallState::kDestroys) a = arguments(f);
  }
  FakeLibraries::get().status = f.returns_status ? 0 : static_cast<int32_t>(random_());
  a->scribble();
  const Seen seen = call(f, a->words());
  expect_arrived(seen, f, *a);
  if (!seen.call) return;
  EXPECT_EQ(seen.returned, FakeLibraries::get().status);
  if (f.returns_status) {
    EXPECT_EQ(a->output_problem(*seen.call), "");
  }
  EXPECT_EQ(seen.waited, 1u);
  FakeLibraries::get().status = 0;
  drop_created(f, *a);
  if (f.state == CallState::kDestroys || !f.returns_status) return;
  check_a_repeated_call(f, *a, *seen.call);
  if (!waits_once || !a->change_a_value()) return;
  a->scribble();
  const Seen other = call(f, a->words());
  expect_arrived(other, f, *a);
  EXPECT_EQ(other.waited, 1u) << "another call was taken for the same";
  drop_created(f, *a);
}

TEST_P(Forwarding, EveryFunction) {
  for (uint16_t i = 0; i < library().count; ++i) {
    const FunctionSpec& f = library().functions[i];
    SCOPED_TRACE(f.name);
    if (is_narrower(f)) continue;
    for (int round = 0; round < kRounds && !HasFailure(); ++round) {
      check(f);
      world().channel->seen.clear();
      recording().clear();
    }
    if (world().channel->rig.session().rejected()) return;
  }
}

// The library refuses what was sent without waiting: the session says so, as CUDA does after an
// asynchronous error. Destroying is the exception: nobody is hurt.
TEST_P(Forwarding, AFailureThatNobodyWaitedForPoisonsTheSession) {
  for (uint16_t i = 0; i < library().count; ++i) {
    const FunctionSpec& f = library().functions[i];
    if (f.call == CallClass::kAnswered || f.cached || !f.returns_status || may_wait(f)) continue;
    SCOPED_TRACE(f.name);
    auto a = arguments(f);
    ASSERT_EQ(call(f, a->words()).returned, 0);
    drop_created(f, *a);
    if (f.state == CallState::kDestroys) a = arguments(f);
    a->scribble();
    FakeLibraries::get().status = kRefused;
    const Seen seen = call(f, a->words());
    FakeLibraries::get().status = 0;
    EXPECT_EQ(seen.returned, seen.waited ? kRefused : 0);
    if (!seen.waited && f.state != CallState::kDestroys) {
      EXPECT_EQ(call(f, a->words()).returned, library().status.failed) << "after an error";
      expect_poisoned(CUDA_ERROR_UNKNOWN);
    }
    EXPECT_EQ(client::Session::get()->sticky(), CUDA_SUCCESS);
  }
}

// What the client can tell by itself never crosses the wire.
TEST_P(Forwarding, WrongArgumentsStayWithTheClient) {
  for (uint16_t i = 0; i < library().count; ++i) {
    const FunctionSpec& f = library().functions[i];
    if (f.text) continue;
    SCOPED_TRACE(f.name);
    for (int p = 0; p < f.params; ++p) {
      const wire::ParamSpec& param = f.param[p];
      const bool handle = param.kind == wire::ParamKind::kHandle;
      const bool stream = param.kind == wire::ParamKind::kStream;
      const bool address = param.kind == wire::ParamKind::kAddress;
      const bool pointer =
          param.kind == wire::ParamKind::kIn || param.kind == wire::ParamKind::kMint ||
          param.kind == wire::ParamKind::kScalar || param.kind == wire::ParamKind::kOut;
      const auto refused = [&](uint64_t word, int64_t status) {
        auto a = arguments(f);
        // Without the parameter that it goes with, nothing is wrong with it.
        while (param.when >= 0 && a->words()[param.when] == 0) a = arguments(f);
        a->words()[p] = word;
        const Seen seen = call(f, a->words());
        EXPECT_FALSE(seen.call) << "parameter " << p + 1 << " = " << word << " was passed on";
        // A size that a wrong object was to say is missed first.
        if (f.returns_status && seen.returned != status) {
          EXPECT_EQ(seen.returned, library().status.bad_value);
        }
      };
      if (handle && param.bytes == 8)
        for (uint64_t word : wrong_handles()) refused(word, library().status.bad_handle);
      if (handle && param.bytes == 4)
        for (uint64_t word : {uint64_t{0x7ffffff0}, uint64_t{0xffffffff}})
          refused(word, library().status.bad_handle);
      if (handle && !param.nullable) refused(0, library().status.bad_handle);
      if (stream) refused(id(world().event), library().status.bad_value);
      if (address) refused(reinterpret_cast<uint64_t>(&f), library().status.bad_value);
      if (pointer && !param.nullable && param.count[0] < 0) refused(0, library().status.bad_value);
    }
  }
  EXPECT_FALSE(worker_session().rejected());
}

INSTANTIATE_TEST_SUITE_P(All, Forwarding, ::testing::ValuesIn(worker::library_tables()),
                         [](const auto& info) { return std::string(info.param.spec->name); });

}  // namespace
}  // namespace sluice::test
