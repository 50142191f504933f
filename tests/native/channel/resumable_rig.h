// SPDX-License-Identifier: Apache-2.0
// Both ends of a resumable stream over pairs of sockets, and whoever cuts these and brings others.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "channel/futex.h"
#include "channel/resumable_stream.h"
#include "wire/protocol.h"

namespace sluice::channel::resumable {

using Connection = ResumableStream::Connection;
constexpr int64_t kSecond = 1'000'000'000;

inline std::unique_ptr<Connection> over(int socket) {
  return std::make_unique<Connection>(socket, std::make_unique<PlainStream>(socket));
}

// How each end's bytes go over a socket: as they are, or under TLS.
using Opens = std::unique_ptr<Connection> (*)(int socket, bool client);
inline std::unique_ptr<Connection> plainly(int socket, bool) { return over(socket); }

// A way between two sockets that passes so many bytes on in each direction, and is cut then. One
// direction does not wait for the other, as on a network.
class Way {
 public:
  Way(int a, int b, size_t forth, size_t back)
      : a_(a),
        b_(b),
        threads_{std::thread([this, forth] { run(a_, b_, forth); }),
                 std::thread([this, back] { run(b_, a_, back); })} {}
  ~Way() {
    cut_now();
    for (std::thread& thread : threads_) thread.join();
    close(a_);
    close(b_);
  }
  bool cut() const { return over_; }
  static bool has_cut(const std::unique_ptr<Way>& way) { return way->cut(); }

 private:
  void run(int from, int to, size_t left) {
    std::array<char, 4096> piece;
    while (!over_ && left > 0) {
      const ssize_t got = recv(from, piece.data(), std::min(left, piece.size()), 0);
      if (got <= 0 || send(to, piece.data(), static_cast<size_t>(got), MSG_NOSIGNAL) != got) break;
      left -= static_cast<size_t>(got);
    }
    cut_now();
  }
  void cut_now() {
    over_ = true;
    shutdown(a_, SHUT_RDWR);
    shutdown(b_, SHUT_RDWR);
  }

  const int a_, b_;
  std::atomic<bool> over_{false};
  std::array<std::thread, 2> threads_;  // last, as they use the others
};

struct Ends {
  int a, b;
};
inline Ends pair() {
  int s[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
  return {s[0], s[1]};
}

// Both ends, and whoever brings them other connections.
class Rig {
 public:
  // `subflows`: beside each connection.
  explicit Rig(const ResumableStream::Terms& terms = {60 * kSecond, 60 * kSecond},
               uint32_t subflows = 0, Opens opens = plainly)
      : subflows_(subflows), opens_(opens) {
    const Ends near = pair(), far = pair();
    way_ = std::make_unique<Way>(near.b, far.a, SIZE_MAX, SIZE_MAX);
    client = std::make_unique<ResumableStream>(opens_(near.a, true), terms);
    server = std::make_unique<ResumableStream>(opens_(far.b, false), terms);
    add_subflows(SIZE_MAX, SIZE_MAX);
  }
  ~Rig() {
    stop();
    client->end();
    server->end();
  }

  // Connections that each carry at most so many bytes each way.
  void cut_after(size_t most, unsigned seed) {
    connect(most, most);
    dialler_ = std::thread([this, most, seed] {
      std::mt19937 random(seed);
      const auto some = [&] { return std::uniform_int_distribution<size_t>(1, most)(random); };
      while (!stopped_) {
        const bool lost = way_->cut() || std::ranges::any_of(subflow_ways_, &Way::has_cut);
        if (!client->wait_for_break(10'000'000) && !lost) continue;
        connect(some(), some());
      }
      connect(SIZE_MAX, SIZE_MAX);
    });
  }
  void connect(size_t forth, size_t back) {
    const Ends near = pair(), far = pair();
    auto way = std::make_unique<Way>(near.b, far.a, forth, back);
    const uint32_t epoch = ++epoch_;
    std::thread other([&] { server->resume(epoch, opens_(far.b, false)); });
    client->resume(epoch, opens_(near.a, true));
    other.join();
    way_ = std::move(way);
    add_subflows(forth, back);
    ++connections;
  }
  void add_subflows(size_t forth, size_t back) {
    std::vector<std::unique_ptr<Way>> ways;
    for (uint32_t i = 0; i < subflows_; ++i) {
      const Ends near = pair(), far = pair();
      ways.push_back(std::make_unique<Way>(near.b, far.a, forth * (i + 1), back));
      server->add_subflow(epoch_, i, opens_(far.b, false));
      client->add_subflow(epoch_, i, opens_(near.a, true));
    }
    subflow_ways_ = std::move(ways);
  }
  void stop() {
    stopped_ = true;
    if (dialler_.joinable()) dialler_.join();
  }

  std::unique_ptr<ResumableStream> client, server;
  std::atomic<int> connections{1};

 private:
  const uint32_t subflows_;
  const Opens opens_;
  std::unique_ptr<Way> way_;
  std::vector<std::unique_ptr<Way>> subflow_ways_;
  std::thread dialler_;
  std::atomic<bool> stopped_{false};
  uint32_t epoch_ = 0;
};

// The byte at a place of a stream.
inline char byte_at(uint64_t place) { return static_cast<char>(place * 2654435761u >> 13); }

using Bytes = std::shared_ptr<std::vector<char>>;

// Memory that was lent and has been settled is used for something else, and freed. What the other
// side has acknowledged the kernel has read, even where the thread that sent it again is not back
// from there yet: sanitizers look at it once more then. So they are not told.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
__attribute__((no_sanitize("thread"))) inline void use_again(const Bytes& bytes) {
  static std::mutex mutex;
  static std::vector<Bytes> all;
  {
    std::lock_guard lock(mutex);
    all.push_back(bytes);
  }
  volatile char* const at = bytes->data();
  for (size_t i = 0, n = bytes->size(); i < n; ++i) at[i] = '\x5a';
}
#else
inline void use_again(const Bytes& bytes) { std::ranges::fill(*bytes, '\x5a'); }
#endif

// Sends so many bytes in pieces of all sizes, copied and lent.
inline void send_all(ResumableStream* stream, uint64_t bytes, unsigned seed,
                     size_t largest = 400'000) {
  std::mt19937 random(seed);
  for (uint64_t at = 0; at < bytes;) {
    const unsigned kind = random() % 8;
    const size_t most = kind == 0 ? largest : kind < 3 ? 60'000 : 300;
    const size_t n = std::min<uint64_t>(1 + random() % most, bytes - at);
    auto piece = std::make_shared<std::vector<char>>(n);
    for (size_t i = 0; i < n; ++i) (*piece)[i] = byte_at(at + i);
    const size_t head = n / 3;
    iovec parts[2] = {{piece->data(), head}, {piece->data() + head, n - head}};
    bool sent;
    if (random() % 2) {
      const bool kept = random() % 2;
      sent = stream->write_lent(parts, 2, kept ? piece : nullptr);
      if (!kept) {
        ASSERT_TRUE(stream->settle());
        use_again(piece);
      }
    } else {
      sent = stream->write(parts, 2);
      std::fill(piece->begin(), piece->end(), '\xa5');
    }
    ASSERT_TRUE(sent);
    at += n;
  }
}

inline void receive_all(ResumableStream* stream, uint64_t bytes, unsigned seed,
                        size_t largest = 300'000) {
  std::mt19937 random(seed);
  std::vector<char> a(largest), b(5'000);
  for (uint64_t at = 0; at < bytes;) {
    const size_t first = 1 + random() % a.size(), second = random() % b.size();
    const iovec parts[2] = {{a.data(), first}, {b.data(), second}};
    const ssize_t got = stream->read(parts, 2);
    ASSERT_GT(got, 0) << "at " << at;
    for (size_t i = 0; i < static_cast<size_t>(got); ++i)
      ASSERT_EQ(i < first ? a[i] : b[i - first], byte_at(at + i)) << "at " << at + i;
    at += static_cast<uint64_t>(got);
  }
}

// As an end does that has all it waited for, and still hears who asks how much it has.
inline void listen(ResumableStream* stream, const std::atomic<int>& sending) {
  char byte;
  const iovec part{&byte, 1};
  while (sending > 0) {
    ASSERT_EQ(stream->read_present(&part, 1), 0);
    sleep_ns(1'000'000);
  }
}

}  // namespace sluice::channel::resumable
