// SPDX-License-Identifier: Apache-2.0
// The real sluice-doorbell with a region in a file, and both of its sides: a guest and the server.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

// Behind the socket's headers, which it needs.
#include <linux/sockios.h>

#include <cstring>
#include <deque>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include "channel/futex.h"
#include "channel/region.h"
#include "wire/frame.h"

extern char** environ;

namespace sluice::test {

using channel::SlotState;

// A guest's view of one slot.
struct GuestSlot {
  channel::MappedSlot map;
  GuestSlot(const std::string& path, size_t region_bytes, uint32_t slots, uint32_t index) {
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    std::string error;
    EXPECT_TRUE(map.map(fd, channel::slot_bytes_of(region_bytes, slots), index, 0, &error))
        << error;
    close(fd);
  }
  SlotState state() const { return static_cast<SlotState>(map.header().state.load()); }
  void set(SlotState s) { map.header().state.store(static_cast<uint32_t>(s)); }
  bool becomes(SlotState s) const {
    for (int i = 0; i < 60'000 && state() != s; ++i) channel::sleep_ns(1'000'000);
    return state() == s;
  }
  bool claim() {
    uint32_t expected = static_cast<uint32_t>(SlotState::kFree);
    return map.header().state.compare_exchange_strong(expected,
                                                      static_cast<uint32_t>(SlotState::kClaimed));
  }
  void open_session(const char* program = "guest") {
    EXPECT_TRUE(claim());
    wire::OpenSession request{};
    request.header = {sizeof request, wire::kOpenSession, wire::kNoLane, 0, 0};
    request.magic = wire::kOpenMagic;
    std::strcpy(request.program, program);
    std::memcpy(map.mailbox().data(), &request, sizeof request);
    set(SlotState::kOpening);
    map.header().doorbell.store(1);
  }
  wire::OpenReply reply() const {
    wire::OpenReply r;
    std::memcpy(&r, map.mailbox().data(), sizeof r);
    return r;
  }
};

class DoorbellProcess : public ::testing::Test {
 protected:
  static constexpr uint32_t kSlots = 3;
  static constexpr size_t kRegion = (16 << 20) + channel::kPage;

  void SetUp() override {
    char pattern[] = "/tmp/sluice-doorbell-XXXXXX";
    folder_ = mkdtemp(pattern);
    region_ = folder_ + "/region";
    make_region(region_, kRegion);
    start();
  }
  ~DoorbellProcess() override {
    stop();
    std::filesystem::remove_all(folder_);
  }

  static void make_region(const std::string& path, size_t bytes) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
    close(fd);
  }
  void start() {
    const std::string socket_path = folder_ + "/doorbell.sock";
    unlink(socket_path.c_str());
    const char* argv[] = {SLUICE_DOORBELL, "--control", socket_path.c_str(), nullptr};
    ASSERT_EQ(
        posix_spawn(&pid_, SLUICE_DOORBELL, nullptr, nullptr, const_cast<char**>(argv), environ),
        0);
    connect_server();
  }
  void stop() {
    if (server_ >= 0) close(server_);
    server_ = -1;
    heard_.clear();
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void connect_server() {
    if (server_ >= 0) close(server_);
    heard_.clear();
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, (folder_ + "/doorbell.sock").c_str());
    server_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    for (int i = 0; i < 5000; ++i) {
      if (connect(server_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return;
      channel::sleep_ns(1'000'000);
    }
    FAIL() << "the doorbell does not listen";
  }
  void say(const std::string& text) {
    ASSERT_EQ(send(server_, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }
  // Gives the region a bell; what comes back is the guest's end of it.
  int give_bell(const std::string& id = "vm1") {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    give("bell\nid=" + id, ends[1]);
    close(ends[1]);
    return ends[0];
  }
  // Says it, with a copy of the descriptor.
  void give(const std::string& text, int descriptor) {
    iovec io{const_cast<char*>(text.data()), text.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
    msghdr m{};
    m.msg_iov = &io;
    m.msg_iovlen = 1;
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &descriptor, sizeof(int));
    EXPECT_EQ(sendmsg(server_, &m, 0), static_cast<ssize_t>(text.size()));
  }
  // Whether the other side has closed it within some seconds.
  static bool hung_up(int bell) {
    pollfd p{bell, POLLIN, 0};
    char said;
    return poll(&p, 1, 60'000) == 1 && recv(bell, &said, 1, 0) == 0;
  }
  static bool all_heard(int bell) {
    int unheard = 1;
    for (int i = 0; i < 60'000 && ioctl(bell, SIOCOUTQ, &unheard) == 0 && unheard > 0; ++i)
      channel::sleep_ns(1'000'000);
    return unheard == 0;
  }
  // The next message whose verb is `verb`; the others are kept for later questions.
  std::optional<std::string> hear(const std::string& verb, int timeout_ms = 60'000) {
    const uint64_t end = channel::now_ns() + static_cast<uint64_t>(timeout_ms) * 1'000'000;
    for (;;) {
      for (auto it = heard_.begin(); it != heard_.end(); ++it) {
        if (!it->starts_with(verb + "\n")) continue;
        std::string found = *it;
        heard_.erase(it);
        return found;
      }
      const uint64_t now = channel::now_ns();
      if (now >= end) return std::nullopt;
      pollfd p{server_, POLLIN, 0};
      if (poll(&p, 1, static_cast<int>((end - now) / 1'000'000 + 1)) <= 0) continue;
      char text[65536];
      const ssize_t n = recv(server_, text, sizeof text, 0);
      if (n <= 0) return std::nullopt;
      heard_.emplace_back(text, static_cast<size_t>(n));
    }
  }
  static std::string value(const std::string& message, const std::string& key) {
    const size_t at = message.find("\n" + key + "=");
    if (at == std::string::npos) return "(none)";
    const size_t from = at + key.size() + 2;
    return message.substr(from, message.find('\n', from) - from);
  }
  void watch(const std::string& slots = std::to_string(kSlots)) {
    say("watch\nid=vm1\npath=" + region_ + "\nslots=" + slots);
    ASSERT_TRUE(hear("watching"));
  }
  GuestSlot guest(uint32_t index) const { return GuestSlot(region_, kRegion, kSlots, index); }

  std::string folder_, region_;
  pid_t pid_ = 0;
  int server_ = -1;
  std::deque<std::string> heard_;
};

}  // namespace sluice::test
