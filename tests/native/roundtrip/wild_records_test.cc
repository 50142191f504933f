// SPDX-License-Identifier: Apache-2.0
// A worker that was taken over, and a client that profiles: whatever is answered in place of the
// node's records, the profiler is handed whole records or none, memory stays bounded, and what was
// wrong is said once. The client's session and libcupti are the real ones; the answers are made
// here.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/cupti/activities.h"
#include "client/cupti/clock.h"
#include "client/cupti/recorder.h"
#include "client/cupti/session.h"
#include "cupti_abi.h"
#include "tests/native/roundtrip/loopback_session.h"

extern "C" {
int cuptiActivityRegisterCallbacks(sluice::cupti::BufferRequested requested,
                                   sluice::cupti::BufferCompleted completed);
int cuptiActivityEnable(uint32_t kind);
int cuptiActivityDisable(uint32_t kind);
int cuptiActivityFlushAll(uint32_t flags);
int cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, const uint8_t** record);
int cuptiActivityGetNumDroppedRecords(void* context, uint32_t stream, size_t* dropped);
}

namespace sluice::cupti {

namespace {
std::mutex said_mutex;
std::multiset<std::string> said;
}  // namespace

// This process's own, in place of libcuda.so.1's and of the screen.
const client::ProfileInterface* session() { return sluice_profile_session(); }
void say_once(const char* text) {
  std::lock_guard lock(said_mutex);
  said.insert(text);
}

}  // namespace sluice::cupti

namespace sluice::test {
namespace {

using Bytes = std::vector<std::byte>;

// What the profiler was given.
struct Told {
  std::vector<cupti::KernelRecord> kernels;
  std::vector<cupti::CopyRecord> copies;
  std::vector<cupti::PeerCopyRecord> peers;
  std::vector<cupti::FillRecord> fills;
  std::set<std::string> names;
  size_t all() const { return kernels.size() + copies.size() + peers.size() + fills.size(); }
};
Told told;

void requested(uint8_t** buffer, size_t* size, size_t* most) {
  *size = 1 << 16;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *size));
  *most = 0;
}

template <class Record>
void keep(const uint8_t* at, std::vector<Record>* to) {
  Record record;
  std::memcpy(&record, at, sizeof record);
  EXPECT_LE(record.start, record.end);
  EXPECT_LT(record.device, 2u);
  to->push_back(record);
}

void completed(void*, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  const uint8_t* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == cupti::kSuccess) {
    uint32_t kind = 0;
    std::memcpy(&kind, record, sizeof kind);
    if (kind == cupti::kMemcpy) {
      keep(record, &told.copies);
      EXPECT_LE(told.copies.back().copy_kind, cupti::kPeer);
      EXPECT_LE(told.copies.back().to_kind, cupti::kManagedStatic);
    } else if (kind == cupti::kMemcpyPeer) {
      keep(record, &told.peers);
      EXPECT_LT(told.peers.back().to_device, 2u);
    } else if (kind == cupti::kMemset) {
      keep(record, &told.fills);
    } else {
      ASSERT_TRUE(kind == cupti::kConcurrentKernel || kind == cupti::kKernel) << kind;
      keep(record, &told.kernels);
      const cupti::KernelRecord& k = told.kernels.back();
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(k.grid[i] > 0 && k.block[i] > 0);
      ASSERT_NE(k.name, nullptr);
      const std::string name = k.name;  // reads all of it
      EXPECT_LE(name.size(), wire::kProfileOneName);
      told.names.insert(name);
    }
  }
  std::free(buffer);
}

class WildRecords : public RoundTrip {
 protected:
  void SetUp() override {
    RoundTrip::SetUp();
    world().channel->tamper = [this](const wire::FrameHeader& header, Answer* answer) {
      change(header, answer);
    };
    ASSERT_EQ(cuptiActivityRegisterCallbacks(requested, completed), cupti::kSuccess);
    for (const uint32_t kind : kAsked) ASSERT_EQ(cuptiActivityEnable(kind), cupti::kSuccess);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);  // calls with numbers, from 1
    ASSERT_EQ(cuptiActivityFlushAll(0), cupti::kSuccess);
    told = {};
    dropped();
    said().clear();
  }

  void TearDown() override {
    for (const uint32_t kind : kAsked) EXPECT_EQ(cuptiActivityDisable(kind), cupti::kSuccess);
    cupti::Activities::get().stop();
    world().channel->tamper = nullptr;
    RoundTrip::TearDown();
  }

  // The worker that was taken over. It is asked by the test and by libcupti's own thread.
  void change(const wire::FrameHeader& header, Answer* answer) {
    std::lock_guard lock(mutex_);
    if (header.function == wire::kProfileSet) {
      wire::ProfileState state{};
      state.now = cupti::real_ns();
      state.activities = ~uint64_t{0};
      state.version = 130001;
      put(answer, &state, sizeof state);
    }
    if (header.function != wire::kProfileFetch) return;
    ++fetches_;
    if (always_) {
      answer->body = *always_;
    } else if (!answers_.empty()) {
      answer->body = std::move(answers_.front());
      answers_.pop_front();
    } else {
      answer->body = pack({});
    }
  }

  static void put(Answer* answer, const void* from, size_t bytes) {
    const auto* at = static_cast<const std::byte*>(from);
    answer->body.assign(at, at + bytes);
  }

  static Bytes pack(const std::vector<wire::ProfileRecord>& records, std::string_view names = {},
                    wire::ProfileRecords head = {}) {
    if (!head.now) head.now = cupti::real_ns();
    if (!head.count) head.count = static_cast<uint32_t>(records.size());
    if (!head.name_bytes) head.name_bytes = static_cast<uint32_t>(names.size());
    const auto* at = reinterpret_cast<const std::byte*>(&head);
    Bytes all(at, at + sizeof head);
    at = reinterpret_cast<const std::byte*>(records.data());
    all.insert(all.end(), at, at + records.size() * sizeof(wire::ProfileRecord));
    at = reinterpret_cast<const std::byte*>(names.data());
    all.insert(all.end(), at, at + names.size());
    return all;
  }

  static wire::ProfileRecord work(uint32_t kind) {
    wire::ProfileRecord r{};
    r.kind = kind;
    r.correlation = 1;
    r.start = cupti::real_ns();
    r.end = r.start + 1000;
    return r;
  }
  static wire::ProfileRecord kernel(uint32_t name = 0) {
    wire::ProfileRecord r = work(cupti::kConcurrentKernel);
    r.name = name;
    for (int i = 0; i < 3; ++i) r.grid[i] = r.block[i] = 1;
    return r;
  }

  void answer(Bytes bytes) {
    std::lock_guard lock(mutex_);
    answers_.push_back(std::move(bytes));
  }
  void answer_always(Bytes bytes) {
    std::lock_guard lock(mutex_);
    always_ = std::move(bytes);
  }
  size_t fetches() {
    std::lock_guard lock(mutex_);
    return fetches_;
  }
  void flush() { ASSERT_EQ(cuptiActivityFlushAll(0), cupti::kSuccess); }
  static size_t dropped() {
    size_t n = 0;
    EXPECT_EQ(cuptiActivityGetNumDroppedRecords(nullptr, 0, &n), cupti::kSuccess);
    return n;
  }
  static std::multiset<std::string>& said() { return cupti::said; }

  // Peer copies too, which nobody of these tests asked for before.
  static constexpr uint32_t kAsked[] = {cupti::kConcurrentKernel, cupti::kMemcpy, cupti::kMemset};

 private:
  std::mutex mutex_;
  std::deque<Bytes> answers_;
  std::optional<Bytes> always_;
  size_t fetches_ = 0;
};

constexpr std::string_view kNames("first\0second\0", 13);

TEST_F(WildRecords, TrueOnesAreTold) {
  wire::ProfileRecord copy = work(cupti::kMemcpy), fill = work(cupti::kMemset);
  copy.copy_kind = cupti::kOnDevice;
  copy.bytes = 77;
  fill.device = 1;
  answer(pack({kernel(0), kernel(6), copy, fill}, kNames));
  flush();
  EXPECT_EQ(told.names, (std::set<std::string>{"first", "second"}));
  ASSERT_EQ(told.copies.size(), 1u);
  EXPECT_EQ(told.copies[0].bytes, 77u);
  ASSERT_EQ(told.fills.size(), 1u);
  EXPECT_EQ(told.fills[0].device, 1u);
  EXPECT_EQ(dropped(), 0u);
  EXPECT_TRUE(said().empty());
}

TEST_F(WildRecords, ThoseThatMakeNoSenseAreLeftOutAndCounted) {
  const uint64_t minutes = 120'000'000'000;
  const auto wild = [](wire::ProfileRecord r, auto change) {
    change(r);
    return r;
  };
  using R = wire::ProfileRecord&;
  const std::vector<wire::ProfileRecord> all = {
      wild(kernel(), [](R r) { r.kind = 0; }),
      wild(kernel(), [](R r) { r.kind = 64; }),
      wild(kernel(), [](R r) { r.kind = ~0u; }),
      wild(kernel(), [](R r) { r.kind = cupti::kRuntime; }),     // a call of this process
      wild(kernel(), [](R r) { r.kind = cupti::kMemcpyPeer; }),  // not asked for
      wild(kernel(), [](R r) { r.name = 2; }),                   // within a name
      wild(kernel(), [](R r) { r.name = kNames.size(); }),
      wild(kernel(), [](R r) { r.name = ~0u; }),
      wild(kernel(), [](R r) { r.correlation = 0; }),
      wild(kernel(), [](R r) { r.correlation = 1 << 30; }),  // a call that was not made
      wild(kernel(), [](R r) { r.device = 2; }),
      wild(kernel(), [](R r) { r.device = ~0u; }),
      wild(kernel(), [](R r) { r.end = r.start - 1; }),
      wild(kernel(), [](R r) { r.start = r.end = ~uint64_t{0}; }),
      wild(kernel(), [](R r) { r.start = 0; }),
      wild(kernel(), [&](R r) { r.start -= minutes; }),  // before anybody asked
      wild(kernel(), [&](R r) { r.end += minutes; }),    // yet to come
      wild(kernel(), [](R r) { r.grid[2] = 0; }),
      wild(kernel(), [](R r) { r.block[0] = ~0u; }),
      wild(kernel(), [](R r) { r.cluster[1] = ~0u; }),
      wild(kernel(), [](R r) { r.static_shared = 1u << 31; }),
      wild(kernel(), [](R r) { r.dynamic_shared = ~0u; }),
      wild(kernel(), [](R r) { r.registers = 65536; }),
      wild(work(cupti::kMemcpy), [](R r) { r.bytes = ~uint64_t{0}; }),
      wild(work(cupti::kMemset), [](R r) { r.device = 9; }),
  };
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    told = {};
    answer(pack({all[i], kernel()}, kNames));
    flush();
    EXPECT_EQ(told.all(), 1u) << "its neighbour, and nothing else";
    EXPECT_EQ(dropped(), 1u);
    EXPECT_EQ(said().size(), i + 1);
  }
  EXPECT_NE(said().begin()->find("left out"), std::string::npos);
  EXPECT_EQ(said().count(*said().begin()), all.size()) << "one line, which a process says once";
}

TEST_F(WildRecords, PeerCopiesAreBetweenTheSessionsOwnDevices) {
  ASSERT_EQ(cuptiActivityEnable(cupti::kMemcpyPeer), cupti::kSuccess);
  wire::ProfileRecord good = work(cupti::kMemcpyPeer), wild = good;
  good.grid[1] = 1;
  wild.grid[0] = 2;
  answer(pack({good, wild}));
  flush();
  ASSERT_EQ(told.peers.size(), 1u);
  EXPECT_EQ(told.peers[0].to_device, 1u);
  EXPECT_EQ(dropped(), 1u);
  EXPECT_EQ(cuptiActivityDisable(cupti::kMemcpyPeer), cupti::kSuccess);
}

TEST_F(WildRecords, NumbersWithoutANameAreUnknown) {
  wire::ProfileRecord copy = work(cupti::kMemcpy), launch = kernel();
  copy.copy_kind = 11;
  copy.from_kind = 256 + cupti::kDevice;
  copy.to_kind = ~0u;
  launch.launch_type = 4;
  answer(pack({copy, launch}, kNames));
  flush();
  ASSERT_EQ(told.copies.size(), 1u);
  EXPECT_EQ(told.copies[0].copy_kind, 0);
  EXPECT_EQ(told.copies[0].from_kind, 0);
  EXPECT_EQ(told.copies[0].to_kind, 0);
  ASSERT_EQ(told.kernels.size(), 1u);
  EXPECT_EQ(told.kernels[0].launch_type, 0);
}

TEST_F(WildRecords, AnAnswerThatIsNoneEndsTheAsking) {
  const Bytes good = pack({kernel(), kernel()}, kNames);
  const std::string long_name(wire::kProfileOneName + 1, 'x');
  wire::ProfileRecords many{}, longer{}, names{}, late{};
  many.count = wire::kProfileRecords + 1;
  longer.count = 3;
  names.name_bytes = wire::kProfileNameBytes + 1;
  late.now = ~uint64_t{0};
  const std::vector<Bytes> all = {
      {},
      Bytes(good.begin(), good.begin() + sizeof(wire::ProfileRecords) - 1),
      Bytes(good.begin(), good.begin() + sizeof(wire::ProfileRecords)),
      Bytes(good.begin(), good.end() - 1),
      pack({kernel(), kernel()}, kNames, many),
      pack({kernel(), kernel()}, kNames, longer),
      pack({kernel(), kernel()}, kNames, names),
      pack({kernel(), kernel()}, kNames, late),
      pack({kernel()}, "unended"),
      pack({kernel()}, long_name + '\0'),
      pack(std::vector(20'000, kernel()), kNames),  // more than was asked for
  };
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    answer(all[i]);
    flush();
    EXPECT_EQ(told.all(), 0u);
    EXPECT_EQ(said().size(), i + 1);
    // It is not asked again, and more is not recorded, until the profiler is done with it.
    const size_t before = fetches();
    flush();
    EXPECT_EQ(fetches(), before);
    EXPECT_EQ(cuptiActivityEnable(cupti::kMemcpyPeer), cupti::kNotSupported);
    for (const uint32_t kind : kAsked) ASSERT_EQ(cuptiActivityDisable(kind), cupti::kSuccess);
    for (const uint32_t kind : kAsked) ASSERT_EQ(cuptiActivityEnable(kind), cupti::kSuccess);
    // A process says it once, whatever is asked for meanwhile.
    EXPECT_GT(said().erase("the GPU's node answered a profiler with nonsense before: nothing of "
                           "the GPU is recorded"),
              0u);
  }
  EXPECT_EQ(said().count(*said().begin()), all.size()) << "one line, which a process says once";
  answer(good);
  flush();
  EXPECT_EQ(told.kernels.size(), 2u) << "begun again";
}

TEST_F(WildRecords, RecordsWithoutEndFillBoundedRoomAndEndTheAsking) {
  wire::ProfileRecords head{};
  head.more = 1;
  head.dropped = ~uint64_t{0} - 5;
  const std::vector<wire::ProfileRecord> full(wire::kProfileRecords, kernel());
  answer_always(pack(full, kNames, head));
  flush();
  const size_t most = 256 * full.size();
  EXPECT_LE(fetches(), 600u) << "at most 256 answers to each question";
  EXPECT_GT(told.kernels.size(), 0u);
  EXPECT_LT(told.kernels.size() * sizeof(cupti::KernelRecord), size_t{130} << 20);
  EXPECT_LT(told.kernels.size(), most);
  EXPECT_EQ(dropped(), ~size_t{0}) << "as many as can be counted";
  EXPECT_EQ(said().size(), 1u);
  EXPECT_NE(said().begin()->find("without end"), std::string::npos);
}

TEST_F(WildRecords, NamesWithoutEndAreKeptInBoundedRoom) {
  size_t given = 0;
  for (int part = 0; part < 20; ++part) {
    std::string names;
    std::vector<wire::ProfileRecord> records;
    for (uint32_t i = 0; i < wire::kProfileRecords; ++i, ++given) {
      records.push_back(kernel(static_cast<uint32_t>(names.size())));
      names += std::to_string(given) + '\0';
    }
    answer(pack(records, names));
    flush();
  }
  EXPECT_EQ(told.kernels.size(), given);
  EXPECT_LE(told.names.size(), size_t{(1 << 16) + 1});
  EXPECT_TRUE(told.names.contains("(one of too many names)"));
}

TEST_F(WildRecords, NoneAreNone) {
  flush();
  EXPECT_EQ(told.all(), 0u);
  EXPECT_EQ(dropped(), 0u);
  EXPECT_TRUE(said().empty());
}

// Good answers with anything changed in them.
TEST_F(WildRecords, ChangedAnywhereNothingBreaks) {
  size_t told_of = 0;
  for (int i = 0; i < 3000; ++i) {
    wire::ProfileRecord copy = work(cupti::kMemcpy), fill = work(cupti::kMemset);
    Bytes bytes = pack({kernel(0), copy, kernel(6), fill}, kNames);
    for (auto changes = next() % 4; changes > 0; --changes) {
      const uint64_t numbers[] = {0, ~uint64_t{0}, next() % 256, next(), uint64_t{1} << 31};
      const uint64_t number = numbers[next() % std::size(numbers)];
      const size_t size = size_t{1} << next() % 4;
      const size_t at = next() % (bytes.size() - size);
      std::memcpy(bytes.data() + at, &number, size);
    }
    if (next() % 8 == 0) bytes.resize(next() % bytes.size());
    answer(std::move(bytes));
    told = {};
    flush();
    told_of += told.all();
    for (const uint32_t kind : kAsked) ASSERT_EQ(cuptiActivityDisable(kind), cupti::kSuccess);
    for (const uint32_t kind : kAsked) ASSERT_EQ(cuptiActivityEnable(kind), cupti::kSuccess);
  }
  EXPECT_GT(told_of, 3000u);
  EXPECT_FALSE(said().empty());
}

}  // namespace
}  // namespace sluice::test
