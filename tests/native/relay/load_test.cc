// SPDX-License-Identifier: Apache-2.0
// The relay under load, for ThreadSanitizer to look at (`make test-threads`): sessions of many
// threads, each with the client's own channel, both directions of a pump, a guest's doorbell where
// it is one, and a node behind a real connection that answers out of order, in all sizes, and
// slowly. They are ended in the midst of it from every side, and the next begins at once. Both ends
// of a slot use one mapping, so that what orders them is seen as well.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "channel/futex.h"
#include "channel/region_stream.h"
#include "client/core/stream_channel.h"
#include "relay/pump.h"
#include "tests/native/channel/shared_slot.h"
#include "wire/frame.h"

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using channel::SlotState;

constexpr uint16_t kThreads = 8;
constexpr uint16_t kAsk = wire::kPing, kPost = wire::kFillDevice;
constexpr uint32_t kMostBody = 120'000;

struct Question {
  uint32_t answer_bytes, seed;
};

std::byte pattern(uint32_t seed, size_t i) {
  return static_cast<std::byte>(seed + i * 13 + (i >> 8));
}

// Two ends of a connection that holds little, so that whoever sends much waits for the other.
void connect_pair(int ends[2]) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1, small = 16 << 10;
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t n = sizeof at;
  auto* address = reinterpret_cast<sockaddr*>(&at);
  setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  ASSERT_EQ(bind(listener, address, n), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, address, &n), 0);
  ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  ASSERT_EQ(connect(ends[0], address, n), 0);
  ends[1] = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  ASSERT_GE(ends[1], 0);
  for (int i = 0; i < 2; ++i) setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  ::close(listener);
}

// The GPU node's side: one thread reads, another answers what was put off.
class Node {
 public:
  Node(int socket, bool slow)
      : socket_(socket), slow_(slow), reads_([this] { read(); }), answers_([this] { answer(); }) {}
  ~Node() {
    go(false);
    reads_.join();
    answers_.join();
    ::close(socket_);
  }
  // With a reset, where the connection breaks off.
  void go(bool reset) {
    const linger now{1, 0};
    if (reset) setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    shutdown(socket_, SHUT_RDWR);
  }
  uint32_t posts() const { return posts_; }
  const char* wrong() const { return wrong_; }

 private:
  struct Due {
    wire::FrameHeader header;
    Question question;
  };

  bool take(void* to, size_t n) {
    return recv(socket_, to, n, MSG_WAITALL) == static_cast<ssize_t>(n);
  }
  void reply(const Due& due) {
    const uint32_t body = wire::round_up(due.question.answer_bytes, 8);
    std::vector<std::byte> frame(sizeof(wire::FrameHeader) + body);
    const wire::FrameHeader h{static_cast<uint32_t>(frame.size()), wire::kReply, due.header.lane,
                              due.header.sequence, 0};
    std::memcpy(frame.data(), &h, sizeof h);
    for (size_t i = 0; i < body; ++i) frame[sizeof h + i] = pattern(due.question.seed, i);
    std::lock_guard lock(send_);
    for (size_t at = 0; at < frame.size();) {
      const ssize_t n = send(socket_, frame.data() + at, frame.size() - at, MSG_NOSIGNAL);
      if (n <= 0) return;
      at += static_cast<size_t>(n);
    }
  }
  void read() {
    std::vector<std::byte> body(kMostBody + 64);
    Due due{};
    for (uint32_t count = 0; take(&due.header, sizeof due.header); ++count) {
      const wire::FrameHeader& h = due.header;
      const size_t n = h.size - sizeof h;
      if (h.function == wire::kClose) break;
      if (h.size < sizeof h + sizeof due.question || n > body.size()) {
        wrong_ = "a frame came that nobody sent";
        break;
      }
      if (!take(body.data(), n)) break;
      std::memcpy(&due.question, body.data(), sizeof due.question);
      for (size_t i = sizeof due.question; i < n; ++i)
        if (body[i] != pattern(due.question.seed, i)) wrong_ = "a frame came with other bytes";
      if (slow_ && count % 16 == 0) std::this_thread::sleep_for(2ms);
      if (h.lane == wire::kNoLane) {
        ++posts_;
      } else if (count % 3) {
        reply(due);
      } else {
        std::lock_guard lock(mutex_);
        due_.push_back(due);
        changed_.notify_one();
      }
    }
    shutdown(socket_, SHUT_RDWR);
    std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_one();
  }
  void answer() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return over_ || !due_.empty(); });
      if (over_) return;
      const std::vector<Due> due = std::exchange(due_, {});
      lock.unlock();
      for (const Due& d : due) reply(d);
      lock.lock();
    }
  }

  const int socket_;
  const bool slow_;
  std::atomic<uint32_t> posts_{0};
  std::atomic<const char*> wrong_{nullptr};
  std::mutex send_, mutex_;
  std::condition_variable changed_;
  std::vector<Due> due_;
  bool over_ = false;
  std::thread reads_, answers_;
};

enum class End { kNone, kClientCloses, kClientDies, kServerEnds, kNodeGoes, kNodeResets };

struct Case {
  bool guest, slow;
  End end;
};

// What the pump's threads use lives as long as the process, as they do.
struct Session {
  Session(const Case& c, const channel::MappedSlot& slot) : header(slot.header()) {
    int ends[2] = {-1, -1};
    connect_pair(ends);
    node = std::make_unique<Node>(ends[1], c.slow);
    pump = std::make_unique<relay::Pump>(slot.alias(), "node-a", [this](const process::End& why) {
      std::lock_guard lock(mutex);
      ++times_ended;
      reason = why.reason;
      changed.notify_all();
    });
    pump->carry(std::make_unique<channel::PlainStream>(ends[0]), ends[0]);
    const std::vector<std::byte> record(600, std::byte{1});
    std::string error;
    EXPECT_TRUE(pump->open(record, &error)) << error;
    client = std::make_unique<client::StreamChannel>(
        -1, std::make_unique<channel::RegionStream>(slot.alias(), !c.guest, -1, -1), record);
    EXPECT_TRUE(pump->start());
    if (c.guest) doorbell = std::thread([this] { ring(); });
  }
  void ring() {
    while (!quiet) {
      std::this_thread::sleep_for(200us);
      if (!header.doorbell.exchange(0)) continue;
      header.wake.fetch_add(1);
      channel::futex_wake(header.wake);
    }
  }
  bool send(uint16_t function, uint16_t lane, uint32_t sequence, const Question& q, size_t body) {
    const size_t size = wire::round_up(sizeof(wire::FrameHeader) + std::max(body, sizeof q), 8);
    std::byte* at = client->reserve(size);
    if (!at) return false;
    const wire::FrameHeader h{static_cast<uint32_t>(size), function, lane, sequence, 1};
    std::memcpy(at, &h, sizeof h);
    at += sizeof h;
    std::memcpy(at, &q, sizeof q);
    for (size_t i = sizeof q; i < size - sizeof h; ++i) at[i] = pattern(q.seed, i);
    client->commit(size, lane != wire::kNoLane);
    return true;
  }
  // A thread of the application: until the session is over, or it has asked `most` times.
  void calls(uint16_t lane, uint32_t most) {
    std::mt19937 random(lane);
    for (uint32_t i = 1; i <= most; ++i) {
      for (uint32_t n = random() % 4; n > 0; --n) {
        if (!send(kPost, wire::kNoLane, 0, {0, i}, random() % 100)) return;
        ++posted;
      }
      if (i % 40 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
      const bool much = random() % 32 == 0, asks_much = random() % 32 == 0;
      const Question q{static_cast<uint32_t>(random() % (much ? kMostBody : 200)),
                       lane * 1000u + i};
      if (!send(kAsk, lane, i, q, random() % (asks_much ? kMostBody : 60))) return;
      client::Reply reply;
      if (!client->wait(lane, i, &reply)) return;
      bool good = reply.status == 0 && reply.body.size() == wire::round_up(q.answer_bytes, 8);
      for (size_t k = 0; good && k < reply.body.size(); ++k)
        good = reply.body[k] == pattern(q.seed, k);
      ++(good ? answered : wrong);
    }
  }
  std::string ended() {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, 30s, [this] { return times_ended > 0; });
    return reason;
  }

  channel::SlotHeader& header;
  std::unique_ptr<Node> node;
  std::unique_ptr<relay::Pump> pump;
  std::unique_ptr<client::StreamChannel> client;
  std::thread doorbell;
  std::atomic<bool> quiet{false};
  std::atomic<uint32_t> posted{0}, answered{0}, wrong{0};
  std::mutex mutex;
  std::condition_variable changed;
  int times_ended = 0;
  std::string reason;
};

const char* expected_reason(End end) {
  switch (end) {
    case End::kServerEnds:
      return "the server ended it";
    case End::kNodeGoes:
    case End::kNodeResets:
      return "the connection to node-a was lost";
    default:
      return "the client closed its session";
  }
}

void end_it(Session& s, const channel::MappedSlot& slot, End end) {
  uint32_t ready = static_cast<uint32_t>(SlotState::kReady);
  switch (end) {
    case End::kServerEnds:
      return s.pump->end({wire::EndCause::kOperator, "the server ended it"}, 802);
    case End::kNodeGoes:
    case End::kNodeResets:
      return s.node->go(end == End::kNodeResets);
    case End::kClientDies:  // its watcher says so
      slot.header().state.compare_exchange_strong(ready, static_cast<uint32_t>(SlotState::kClosed));
      s.header.wake.fetch_add(1);
      channel::futex_wake(s.header.wake);
      return;
    default:
      return s.client->close();
  }
}

void run(const Case& c, uint32_t calls, std::chrono::microseconds end_after) {
  static auto* shared = new std::vector<std::unique_ptr<SharedSlot>>;
  static auto* mapped = new std::vector<std::unique_ptr<channel::MappedSlot>>;
  static auto* sessions = new std::vector<std::unique_ptr<Session>>;
  static auto* all = new std::mutex;
  auto mine = std::make_unique<SharedSlot>();
  auto slot = std::make_unique<channel::MappedSlot>(mine->map(true));
  auto made = std::make_unique<Session>(c, *slot);
  Session& s = *made;
  const channel::MappedSlot& map = *slot;
  {
    std::lock_guard lock(*all);
    shared->push_back(std::move(mine));
    mapped->push_back(std::move(slot));
    sessions->push_back(std::move(made));
  }
  std::vector<std::thread> threads;
  for (uint16_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&s, t, calls] { s.calls(t, calls); });
  // The relay's control thread asks for these while the session runs.
  uint64_t seen = 0;
  const auto until = std::chrono::steady_clock::now() + end_after;
  while (c.end != End::kNone && std::chrono::steady_clock::now() < until) {
    const uint64_t now = s.pump->bytes_in() + s.pump->bytes_out();
    EXPECT_GE(now, seen);
    seen = now;
    std::this_thread::sleep_for(500us);
  }
  if (c.end != End::kNone) end_it(s, map, c.end);
  for (auto& t : threads) t.join();
  if (c.end == End::kNone) {
    EXPECT_EQ(s.answered, uint32_t{kThreads} * calls);
    s.client->close();
  }
  EXPECT_NE(s.ended().find(expected_reason(c.end)), std::string::npos)
      << s.ended() << " instead of: " << expected_reason(c.end);
  if (c.end == End::kNone) {
    EXPECT_EQ(s.node->posts(), s.posted) << "what was sent before the end is carried";
  }
  s.quiet = true;
  if (s.doorbell.joinable()) s.doorbell.join();
  s.client.reset();
  std::this_thread::sleep_for(5ms);
  std::lock_guard lock(s.mutex);
  EXPECT_EQ(s.times_ended, 1);
  EXPECT_EQ(s.wrong, 0u);
  EXPECT_EQ(s.node->wrong(), nullptr) << s.node->wrong();
  s.node.reset();
}

class RelayLoad : public ::testing::TestWithParam<bool> {};

TEST_P(RelayLoad, ManyThreadsAskAndPostThroughAFastAndASlowNode) {
  run({GetParam(), false, End::kNone}, 400, {});
  run({GetParam(), true, End::kNone}, 60, {});
}

TEST_P(RelayLoad, SessionsEndedFromEverySideInTheMidstOfItAndTheNextBegins) {
  static constexpr End kEnds[] = {End::kClientCloses, End::kClientDies, End::kServerEnds,
                                  End::kNodeGoes, End::kNodeResets};
  // Two guests at once; each one's next session begins where the last one's ended.
  std::vector<std::thread> guests;
  for (unsigned g = 0; g < 2; ++g)
    guests.emplace_back([g] {
      std::mt19937 random(g);
      for (unsigned i = 0; i < 20; ++i)
        run({GetParam(), i % 4 == g, kEnds[(i + g) % 5]}, ~0u,
            std::chrono::microseconds(1000 + random() % 60'000));
    });
  for (auto& g : guests) g.join();
}

INSTANTIATE_TEST_SUITE_P(Futex, RelayLoad, ::testing::Bool(), [](const auto& with) {
  return std::string(with.param ? "of_a_guest" : "of_one_host");
});

}  // namespace
}  // namespace sluice::test
