// SPDX-License-Identifier: Apache-2.0
// A network of a certain length and width, for one TCP port of this host:
//
//     delaying_network ADDRESS PORT DELAY_US [GBIT_S]
//
// Connections to ADDRESS:PORT go on to 127.0.0.1:PORT. Each byte arrives DELAY_US later than it was
// sent, in either direction, and all of a direction's together no faster than GBIT_S (0: as fast as
// this host is). The threads that pass them on spin while there is traffic, so the delay is exact
// to a few microseconds where there are processors enough: two for each busy connection. What is
// not imitated: losses, and the time that a connection takes to open. Prints a line when it
// listens, and ends with its standard input.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>

namespace {

constexpr size_t kPieceBytes = 64 << 10;
constexpr size_t kMostUnderWay = 64 << 20;  // bytes of a direction of a connection
constexpr int64_t kSpinsNs = 200'000'000;   // after the last byte
constexpr timespec kNap = {0, 50'000};      // from then on

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000ll + t.tv_nsec;
}

// One direction, shared by all connections.
class Wire {
 public:
  Wire(int64_t delay_ns, double bytes_per_ns) : delay_ns_(delay_ns), width_(bytes_per_ns) {}
  // When so many bytes that are sent now have arrived.
  int64_t arrival(size_t bytes) {
    const int64_t now = now_ns();
    if (width_ == 0) return now + delay_ns_;
    const auto takes = static_cast<int64_t>(static_cast<double>(bytes) / width_);
    int64_t busy = busy_until_.load(), until;
    do until = std::max(now, busy) + takes;
    while (!busy_until_.compare_exchange_weak(busy, until));
    return until + delay_ns_;
  }

 private:
  const int64_t delay_ns_;
  const double width_;
  std::atomic<int64_t> busy_until_{0};
};

struct Piece {
  std::unique_ptr<char[]> bytes;
  size_t size, sent;
  int64_t arrives;
};

// Both sockets; the last direction to end closes them.
struct Connection {
  Connection(int n, int f) : near(n), far(f) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  const int near, far;
  ~Connection() {
    close(near);
    close(far);
  }
};

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

void pass_on(int from, int to, Wire& wire) {
  std::deque<Piece> under_way;
  size_t bytes = 0;
  bool ended = false;
  int64_t busy_at = now_ns();
  std::unique_ptr<char[]> spare;
  for (;;) {
    bool moved = false;
    if (!ended && bytes < kMostUnderWay) {
      if (!spare) spare.reset(new char[kPieceBytes]);
      const ssize_t n = recv(from, spare.get(), kPieceBytes, MSG_DONTWAIT);
      if (n > 0) {
        const auto size = static_cast<size_t>(n);
        under_way.push_back({std::move(spare), size, 0, wire.arrival(size)});
        bytes += size;
        moved = true;
      } else if (n == 0 || !would_block()) {
        under_way.push_back({nullptr, 0, 0, wire.arrival(0)});
        ended = true;
      }
    }
    while (!under_way.empty() && under_way.front().arrives <= now_ns()) {
      Piece& piece = under_way.front();
      if (piece.size == 0) {
        shutdown(to, SHUT_WR);
        return;
      }
      const ssize_t n = send(to, piece.bytes.get() + piece.sent, piece.size - piece.sent,
                             MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && would_block()) break;
      if (n < 0) {  // the other side has gone: so has this
        shutdown(from, SHUT_RD);
        return;
      }
      moved = true;
      piece.sent += static_cast<size_t>(n);
      bytes -= static_cast<size_t>(n);
      if (piece.sent < piece.size) break;
      spare = std::move(piece.bytes);
      under_way.pop_front();
    }
    if (moved || !under_way.empty())
      busy_at = now_ns();
    else if (now_ns() - busy_at > kSpinsNs)
      nanosleep(&kNap, nullptr);
  }
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "delaying_network: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

[[noreturn]] void usage() {
  std::fprintf(stderr, "usage: delaying_network ADDRESS PORT DELAY_US [GBIT_S]\n");
  std::exit(2);
}

double number(const char* text, double most) {
  char* end;
  const double value = std::strtod(text, &end);
  if (end == text || *end || !(value >= 0 && value <= most)) usage();
  return value;
}

void set_up(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4 || argc > 5) usage();
  sockaddr_in here{}, there{};
  here.sin_family = there.sin_family = AF_INET;
  here.sin_port = there.sin_port = htons(static_cast<uint16_t>(number(argv[2], 65535)));
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (inet_pton(AF_INET, argv[1], &here.sin_addr) != 1) usage();
  const auto delay = static_cast<int64_t>(number(argv[3], 10e6) * 1000);
  const double width = argc == 5 ? number(argv[4], 10e3) / 8 : 0;
  Wire forth(delay, width), back(delay, width);

  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener, reinterpret_cast<sockaddr*>(&here), sizeof here) != 0) fail(argv[1]);
  if (listen(listener, 512) != 0) fail("listen");
  std::printf("delays %s:%s by %s us\n", argv[1], argv[2], argv[3]);
  std::fflush(stdout);
  pollfd ends[2] = {{listener, POLLIN, 0}, {0, POLLIN, 0}};
  for (;;) {
    if (poll(ends, 2, -1) < 0 && errno != EINTR) fail("poll");
    char byte;
    if (ends[1].revents && read(0, &byte, 1) <= 0) _exit(0);
    if (!(ends[0].revents & POLLIN)) continue;
    const int near = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (near < 0) continue;
    const int far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    auto connection = std::make_shared<Connection>(near, far);
    if (connect(far, reinterpret_cast<sockaddr*>(&there), sizeof there) != 0) continue;
    set_up(near);
    set_up(far);
    std::thread([connection, &forth] {
      pass_on(connection->near, connection->far, forth);
    }).detach();
    std::thread([connection, &back] { pass_on(connection->far, connection->near, back); }).detach();
  }
}
