// SPDX-License-Identifier: Apache-2.0
// What no client of ours sends to a library, beyond what hostile_frames_test.cc does to every
// command: lengths that are wrong, counts that contradict them, objects of another kind, answers
// too large to be given. Each must end the session and must not reach the library.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "library/objects.h"
#include "tests/native/roundtrip/fake_libraries.h"
#include "tests/native/roundtrip/library_frames.h"
#include "wire/curand.h"
#include "wire/library_sizes.h"

namespace sluice::test {
namespace {

using wire::FunctionSpec;
using wire::kCarried;
using wire::ParamKind;
using wire::ParamSpec;

struct Outcome {
  bool accepted;
  std::string reason;
  size_t calls;
  std::vector<std::string> violations;
};

// One frame of a session of its own, after `change` had its way with it.
template <class Change>
Outcome send(const FunctionSpec& f, Change&& change) {
  FurnishedRig rig;
  ValidFrame frame = library_frame(rig, f);
  change(frame, rig);
  Answer answer;
  Outcome o;
  o.accepted = rig.dispatch(frame.header(), frame.body(), &answer);
  o.reason = rig.session().reason();
  o.calls = FakeLibraries::get().calls.size();
  o.violations = Recording::get().violations;
  return o;
}

template <class Change>
void expect_refused(const FunctionSpec& f, const std::string& what, Change&& change) {
  const Outcome o = send(f, change);
  EXPECT_FALSE(o.accepted) << f.name << ", " << what << ", was accepted";
  EXPECT_FALSE(o.reason.empty()) << f.name << ", " << what << ": no reason was given";
  EXPECT_EQ(o.calls, 0u) << f.name << ", " << what << ", reached the library";
  EXPECT_TRUE(o.violations.empty()) << f.name << ", " << what << ": " << o.violations[0];
}

// Whether the length of what travels follows from the other parameters.
bool is_counted(const ParamSpec& p) {
  switch (p.kind) {
    case ParamKind::kIn:
    case ParamKind::kOut:
    case ParamKind::kInOut:
    case ParamKind::kInHandles:
    case ParamKind::kInAddresses:
    case ParamKind::kAttribute:
      return true;
    default:
      return false;
  }
}

bool is_scalar(const ParamSpec& p) {
  return p.kind == ParamKind::kScalar || p.kind == ParamKind::kResult;
}

template <class F>
void for_each_param(F&& visit) {
  for (const FunctionSpec* f : library_functions())
    for (int i = 0; i < f->params; ++i) visit(*f, static_cast<size_t>(i), f->param[i]);
}

std::string ordinal(size_t index) { return "parameter " + std::to_string(index + 1); }

TEST(HostileLibraryFrames, LengthsThatAreWrong) {
  for_each_param([](const FunctionSpec& f, size_t i, const ParamSpec& p) {
    const auto set = [&](uint64_t n) {
      expect_refused(f, ordinal(i) + " of " + std::to_string(n) + " bytes",
                     [&](ValidFrame& frame, FurnishedRig&) { frame.words[i] = kCarried | n; });
    };
    if (is_counted(p)) {
      uint64_t own = 0;
      send(f, [&](ValidFrame& frame, FurnishedRig&) { own = frame.words[i] & ~kCarried; });
      for (uint64_t n : {own + 1, own - 1, own + 8, uint64_t{0}, own + (uint64_t{1} << 32),
                         uint64_t{kCarried - 1}})
        set(n);
    }
    if (is_scalar(p))
      for (uint64_t n : {uint64_t{0}, uint64_t{33}, uint64_t{1} << 31, uint64_t{kCarried - 1}})
        set(n);
    if (p.kind == ParamKind::kString)
      for (uint64_t n : {uint64_t{0}, uint64_t{4}, uint64_t{4096}, uint64_t{kCarried - 1}}) set(n);
    if (p.kind == ParamKind::kOutAddress || p.kind == ParamKind::kOutHandle)
      for (uint64_t n : {uint64_t{0}, uint64_t{7}, uint64_t{16}, uint64_t{kCarried - 1}}) set(n);
  });
}

TEST(HostileLibraryFrames, CountsThatContradict) {
  for_each_param([](const FunctionSpec& f, size_t i, const ParamSpec& p) {
    if (!is_counted(p)) return;
    for (const int8_t by : p.count) {
      if (by < 0) continue;
      for (uint64_t count : {uint64_t{0}, uint64_t{2}, uint64_t{4}, uint64_t{0x7fffffff},
                             uint64_t{0x80000000}, uint64_t{1} << 33, ~uint64_t{0}}) {
        expect_refused(f, ordinal(i) + " counted " + std::to_string(count),
                       [&](ValidFrame& frame, FurnishedRig&) {
                         uint64_t& word = frame.words[static_cast<size_t>(by)];
                         word = count == word ? count + 1 : count;
                       });
      }
    }
  });
}

// Consistent, and more than an answer holds.
TEST(HostileLibraryFrames, AnswersThatAreTooLarge) {
  for_each_param([](const FunctionSpec& f, size_t i, const ParamSpec& p) {
    const bool back = p.kind == ParamKind::kOut || p.kind == ParamKind::kInOut;
    if (!back || p.count[0] < 0) return;
    expect_refused(f, ordinal(i) + ", huge", [&](ValidFrame& frame, FurnishedRig&) {
      const uint64_t many = wire::kMaxAnswer / p.bytes + 1;
      for (int k = 0; k < f.params; ++k) {
        const ParamSpec& other = f.param[k];
        if (!is_counted(other) || other.count[0] != p.count[0] || k == static_cast<int>(i))
          continue;
        frame.words[static_cast<size_t>(k)] = 0;  // whatever else it counts is left out
      }
      frame.words[static_cast<size_t>(p.count[0])] = many;
      const uint64_t n = wire::elements(f, p, frame.words.data()) * p.bytes;
      frame.words[i] = kCarried | n;
      frame.words.resize(frame.words.size() + n / 8 + 1);
    });
  });
}

TEST(HostileLibraryFrames, ObjectsOfAnotherKindOrNone) {
  for_each_param([](const FunctionSpec& f, size_t i, const ParamSpec& p) {
    if (p.kind != ParamKind::kHandle) return;
    const uint8_t other = p.object == 1 ? 2 : static_cast<uint8_t>(p.object - 1);
    expect_refused(f, ordinal(i) + ", of another kind", [&](ValidFrame& frame, FurnishedRig&) {
      frame.words[i] = library_object(other);
    });
    if (!p.nullable && i == 0)
      expect_refused(f, ordinal(i) + ", none",
                     [&](ValidFrame& frame, FurnishedRig&) { frame.words[i] = 0; });
  });
}

// A word that neither announces a piece nor is empty, where only that is meant.
TEST(HostileLibraryFrames, PointersOfTheClients) {
  for_each_param([](const FunctionSpec& f, size_t i, const ParamSpec& p) {
    if (!is_counted(p) && !is_scalar(p) && p.kind != ParamKind::kString &&
        p.kind != ParamKind::kOutAddress && p.kind != ParamKind::kOutHandle)
      return;
    for (uint64_t address : {uint64_t{1}, uint64_t{0x7fff12345678}})
      expect_refused(f, ordinal(i) + ", a pointer",
                     [&](ValidFrame& frame, FurnishedRig&) { frame.words[i] = address; });
  });
}

// The library gets 32 bits of an attribute's number: what is above them must hide no address.
TEST(HostileLibraryFrames, AddressesBehindAttributesThatAreTooWide) {
  int attributes = 0;
  for_each_param([&](const FunctionSpec& f, size_t i, const ParamSpec& p) {
    if (p.kind != ParamKind::kAttribute || !p.attributes) return;
    const wire::AttributeSpec* address = p.attributes;
    while (address->bytes && !address->address) ++address;
    if (!address->bytes) return;
    ++attributes;
    expect_refused(f, ordinal(i), [&](ValidFrame& frame, FurnishedRig&) {
      const auto by = static_cast<size_t>(p.by);
      ASSERT_EQ(frame.words[by], address->name) << f.name;
      frame.words[by] |= uint64_t{1} << 32;
      frame.words.back() = 0x7fff12345678;
    });
  });
  EXPECT_GT(attributes, 0);
}

TEST(HostileLibraryFrames, TextsWithoutAnEnd) {
  for_each_param([](const FunctionSpec& f, size_t i, const ParamSpec& p) {
    if (p.kind != ParamKind::kString) return;
    expect_refused(f, ordinal(i), [](ValidFrame& frame, FurnishedRig&) {
      for (size_t k = frame.words.size(); k-- > 0;)
        if (frame.words[k] == 0x0074786574) frame.words[k] = ~0ull;
    });
  });
}

// Destroyed is destroyed, and a new object takes no other's place.
TEST(HostileLibraryFrames, ObjectsThatAreGone) {
  for (const FunctionSpec* f : library_functions()) {
    if (f->state == wire::CallState::kNone || f->state == wire::CallState::kSets) continue;
    FurnishedRig rig;
    const ValidFrame frame = library_frame(rig, *f);
    Answer answer;
    EXPECT_TRUE(rig.dispatch(frame.header(), frame.body(), &answer)) << f->name;
    EXPECT_FALSE(rig.dispatch(frame.header(), frame.body(), &answer)) << f->name << ", twice";
  }
}

// A generator that is none in host memory, more than an answer or a table holds, a distribution
// that was never made.
TEST(HostileLibraryFrames, CurandBesideItsTable) {
  namespace ids = sluice::library;
  const auto accepted = [](uint16_t function, auto body) {
    FurnishedRig rig;
    ValidFrame f;
    f.function = function;
    f.answered = true;
    f.words.resize(sizeof body / 8);
    std::memcpy(f.words.data(), &body, sizeof body);
    Answer answer;
    const bool good = rig.dispatch(f.header(), f.body(), &answer);
    EXPECT_TRUE(good || !rig.session().reason().empty());
    return good;
  };
  using wire::CurandHost;
  using wire::CurandMakes;
  const uint64_t device = library_object(ids::k_curand), room = FurnishedRig::kStreamId;
  for (const auto& h : {CurandHost{device, 0, 0, 0, 0, CurandMakes::kSeeds, 0},
                        CurandHost{room, 0, 0, 0, 0, CurandMakes::kSeeds, 0},
                        CurandHost{host_generator(), 0, 4, 0, 0, CurandMakes::kBits, 0},
                        CurandHost{host_generator(), 0, ~0ull, 0, 0, CurandMakes::kBits, 0},
                        CurandHost{host_generator(), 0, 0, 0, 0, CurandMakes{11}, 0}})
    EXPECT_FALSE(accepted(ids::id_sluiceCurandHost, h));
  EXPECT_TRUE(accepted(ids::id_sluiceCurandHost,
                       CurandHost{host_generator(), 0, 0, 0, 0, CurandMakes::kSeeds, 0}));
  EXPECT_FALSE(accepted(ids::id_sluiceCurandDistribution, wire::CurandDistribution{0, 4096}));
  EXPECT_TRUE(accepted(ids::id_sluiceCurandTable, wire::CurandTable{0, 101, 64, 64}));
  for (const auto& t :
       {wire::CurandTable{4, 101, 0, 8}, wire::CurandTable{0, 101, 20000 * 128 - 8, 16},
        wire::CurandTable{0, 101, ~0ull, 8}, wire::CurandTable{1, 101, 0, 5 << 20}})
    EXPECT_FALSE(accepted(ids::id_sluiceCurandTable, t));
}

// A generator in host memory is not given to a function that writes to the device.
TEST(HostileLibraryFrames, HostGeneratorsDoNotWriteToTheDevice) {
  for (const FunctionSpec* f : library_functions()) {
    if (std::string(f->name).rfind("curandGenerate", 0) != 0) continue;
    expect_refused(*f, "with a generator in host memory",
                   [](ValidFrame& frame, FurnishedRig&) { frame.words[0] = host_generator(); });
  }
}

// Whatever the words are: accepted or refused with a reason, and the library gets only what the
// session owns.
TEST(HostileLibraryFrames, AnyWords) {
  const char* given = std::getenv("SLUICE_TEST_SEED");
  const uint64_t seed = given ? std::strtoull(given, nullptr, 0) : std::random_device{}();
  SCOPED_TRACE("SLUICE_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (const FunctionSpec* f : library_functions()) {
    if (f->params == 0) continue;
    for (int round = 0; round < 20; ++round) {
      const Outcome o = send(*f, [&](ValidFrame& frame, FurnishedRig& rig) {
        for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
          const uint64_t choices[] = {random(),
                                      random() % 64,
                                      kCarried | random() % 64,
                                      kCarried | random(),
                                      rig.address() + random() % 65536,
                                      library_object(static_cast<uint8_t>(random() % 40)),
                                      FurnishedRig::kStreamId,
                                      0};
          frame.words[random() % frame.words.size()] = choices[random() % std::size(choices)];
        }
        frame.answered = random() % 2 || f->call == wire::CallClass::kAnswered;
      });
      EXPECT_TRUE(o.violations.empty()) << f->name << ": " << o.violations[0];
      EXPECT_TRUE(o.accepted || !o.reason.empty()) << f->name;
    }
  }
}

}  // namespace
}  // namespace sluice::test
