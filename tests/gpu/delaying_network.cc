// SPDX-License-Identifier: Apache-2.0
// A network of a certain length and width, for one TCP port of this host:
//
//     delaying_network ADDRESS PORT DELAY_US [GBIT_S]
//
// Connections to ADDRESS:PORT go on to 127.0.0.1:PORT. Each byte arrives DELAY_US later than it was
// sent, in either direction, and all of a direction's together no faster than GBIT_S (0: as fast as
// this host is). One thread for each direction passes on what all connections have, and spins while
// there is traffic, so the delay is exact to a few microseconds where there are processors enough,
// and who sends wakes nobody, as with a real adapter. What an idle session says each second is no
// traffic: behind that it sleeps again at once, so that others can be measured meanwhile. (A thread
// for each connection, which naps when it has nothing to do, costs the programs a third of their
// speed on a virtual machine of 16 cores: each nap sets a timer of the hypervisor.) What is not
// imitated: losses, and the time that a connection takes to open. Prints a line when it listens,
// and ends with its standard input.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

namespace {

constexpr size_t kPieceBytes = 256 << 10;
constexpr size_t kMostUnderWay = 64 << 20;  // bytes of a direction of a connection
constexpr int64_t kSpinsNs = 200'000'000;  // after the last byte; then it sleeps until there is one
constexpr int64_t kSpinsForOneNs = 2'000'000;  // … after one that came so long after the one before
constexpr int kMostEvents = 64;

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000ll + t.tv_nsec;
}

struct Piece {
  std::unique_ptr<char[]> bytes;
  size_t size, sent;  // 0: the sender has no more
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

// One direction of a connection.
struct Flow {
  std::shared_ptr<Connection> connection;
  int from, to;
  std::deque<Piece> under_way;
  size_t bytes = 0;
  bool readable = false, ended = false;
};

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "delaying_network: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

// One direction of all connections, and the thread that passes it on.
class Wire {
 public:
  Wire(int64_t delay_ns, double bytes_per_ns) : delay_ns_(delay_ns), width_(bytes_per_ns) {
    if (events_ < 0) fail("epoll_create1");
    std::thread([this] { run(); }).detach();
  }

  void add(std::shared_ptr<Connection> connection, int from, int to) {
    std::lock_guard lock(mutex_);
    flows_.push_back({std::move(connection), from, to, {}});
    epoll_event event{};
    // Told once for each arrival: a flow stays readable until a read says otherwise.
    event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
    event.data.ptr = &flows_.back();
    if (epoll_ctl(events_, EPOLL_CTL_ADD, from, &event) != 0) fail("epoll_ctl");
  }

 private:
  // When so many bytes that are sent now have arrived.
  int64_t arrival(size_t bytes) {
    const int64_t now = now_ns();
    if (width_ == 0) return now + delay_ns_;
    busy_until_ =
        std::max(now, busy_until_) + static_cast<int64_t>(static_cast<double>(bytes) / width_);
    return busy_until_ + delay_ns_;
  }

  bool take(Flow& flow) {
    if (!flow.readable || flow.ended || flow.bytes >= kMostUnderWay) return false;
    if (!spare_) spare_.reset(new char[kPieceBytes]);
    const ssize_t n = recv(flow.from, spare_.get(), kPieceBytes, MSG_DONTWAIT);
    if (n > 0) {
      const auto size = static_cast<size_t>(n);
      flow.under_way.push_back({std::move(spare_), size, 0, arrival(size)});
      flow.bytes += size;
    } else if (n < 0 && would_block()) {
      flow.readable = false;
      return false;
    } else {
      flow.under_way.push_back({nullptr, 0, 0, arrival(0)});
      flow.ended = true;
    }
    return true;
  }

  // What has arrived goes out; false: this direction of it is over.
  bool give(Flow& flow, bool* moved) {
    while (!flow.under_way.empty() && flow.under_way.front().arrives <= now_ns()) {
      Piece& piece = flow.under_way.front();
      if (piece.size == 0) {
        shutdown(flow.to, SHUT_WR);
        return false;
      }
      const ssize_t n = send(flow.to, piece.bytes.get() + piece.sent, piece.size - piece.sent,
                             MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && would_block()) return true;
      if (n < 0) {  // the other side has gone: so has this
        shutdown(flow.from, SHUT_RD);
        return false;
      }
      *moved = true;
      piece.sent += static_cast<size_t>(n);
      flow.bytes -= static_cast<size_t>(n);
      if (piece.sent < piece.size) return true;
      spare_ = std::move(piece.bytes);
      flow.under_way.pop_front();
    }
    return true;
  }

  void look(int wait_ms) {
    epoll_event found[kMostEvents];
    const int n = epoll_wait(events_, found, kMostEvents, wait_ms);
    for (int i = 0; i < n; ++i) static_cast<Flow*>(found[i].data.ptr)->readable = true;
  }

  [[noreturn]] void run() {
    int64_t busy_at = now_ns(), spins = kSpinsNs;
    for (;;) {
      bool moved = false, waits = false;
      const int64_t idle_at = now_ns();
      const bool sleeps = idle_at - busy_at > spins;
      look(sleeps ? -1 : 0);
      if (sleeps) spins = now_ns() - idle_at > kSpinsNs ? kSpinsForOneNs : kSpinsNs;
      {
        std::lock_guard lock(mutex_);
        for (auto flow = flows_.begin(); flow != flows_.end();) {
          moved |= take(*flow);
          if (!give(*flow, &moved)) {
            epoll_ctl(events_, EPOLL_CTL_DEL, flow->from, nullptr);
            flow = flows_.erase(flow);
            continue;
          }
          waits |= !flow->under_way.empty() || (flow->readable && flow->bytes < kMostUnderWay);
          ++flow;
        }
      }
      if (moved || waits) busy_at = now_ns();
    }
  }

  const int64_t delay_ns_;
  const double width_;
  const int events_ = epoll_create1(EPOLL_CLOEXEC);
  int64_t busy_until_ = 0;
  std::mutex mutex_;
  std::list<Flow> flows_;
  std::unique_ptr<char[]> spare_;
};

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
    forth.add(connection, near, far);
    back.add(connection, far, near);
  }
}
