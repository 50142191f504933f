// SPDX-License-Identifier: Apache-2.0
// The text messages of worker, relay and doorbell: what a packet becomes, and what odd packets and
// lost servers do.
#include "process/control.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

namespace sluice::process {
namespace {

class ControlSocket : public ::testing::Test {
 protected:
  void SetUp() override {
    address_.sun_family = AF_UNIX;
    std::snprintf(address_.sun_path + 1, sizeof address_.sun_path - 1, "sluice-test-%d-%p",
                  getpid(), static_cast<void*>(this));
    ASSERT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address_), sizeof address_), 0);
    ASSERT_EQ(listen(listener_, 4), 0);
    server_ = connect_server();
    control_.accept();
    ASSERT_GE(control_.connection(), 0);
  }
  ~ControlSocket() override {
    ::close(server_);
    ::close(listener_);
  }
  int connect_server() const {
    const int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(s, reinterpret_cast<const sockaddr*>(&address_), sizeof address_), 0);
    return s;
  }
  void say(const std::string& text) {
    ASSERT_EQ(send(server_, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }
  static std::string hear(int s) {
    char text[4096];
    const ssize_t n = recv(s, text, sizeof text, MSG_DONTWAIT);
    return n > 0 ? std::string(text, static_cast<size_t>(n)) : "";
  }

  sockaddr_un address_{};
  int listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  int server_ = -1;
  static constexpr wire::MessageSpec kAny[] = {{"session", {}, nullptr, nullptr, {}},
                                               {"status", {}, nullptr, nullptr, {}},
                                               {"end", {}, nullptr, nullptr, {}}};
  Control control_{listener_, kAny};
};

TEST(Message, DescriptorsHaveNames) {
  Message m{"session", {{"descriptors", "region,client_pidfd,code"}}, {7, 8}};
  EXPECT_EQ(m.descriptor("region"), 7);
  EXPECT_EQ(m.descriptor("client_pidfd"), 8);
  EXPECT_EQ(m.descriptor("code"), -1) << "it did not come";
  EXPECT_EQ(m.descriptor("client"), -1);
  EXPECT_EQ(m.descriptor(""), -1);
  m.values["descriptors"] = "region,";
  EXPECT_EQ(m.descriptor("client_pidfd"), -1);
  m.values.clear();
  EXPECT_EQ(m.descriptor("region"), -1);
}

TEST_F(ControlSocket, ADescriptorGoesAlong) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  ASSERT_TRUE(control_.send("code", {{"name", "x"}}, pipe_ends[0]));
  char text[64];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  iovec io{text, sizeof text};
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  const ssize_t n = recvmsg(server_, &m, 0);
  ASSERT_GT(n, 0);
  EXPECT_EQ(std::string(text, static_cast<size_t>(n)), "code\nname=x\n");
  const cmsghdr* c = CMSG_FIRSTHDR(&m);
  ASSERT_TRUE(c && c->cmsg_type == SCM_RIGHTS);
  int got = -1;
  std::memcpy(&got, CMSG_DATA(c), sizeof got);
  EXPECT_EQ(write(pipe_ends[1], "!", 1), 1);
  EXPECT_EQ(read(got, text, 1), 1);
  for (int fd : {got, pipe_ends[0], pipe_ends[1]}) ::close(fd);
}

TEST_F(ControlSocket, APacketBecomesVerbAndValues) {
  say("session\nid=12ab\nempty=\nmessage=a=b c\nno equal sign\nlast=1");
  Message m;
  ASSERT_TRUE(control_.receive(&m));
  EXPECT_EQ(m.verb, "session");
  EXPECT_EQ(m.values.size(), 4u);
  EXPECT_EQ(m.text("id"), "12ab");
  EXPECT_EQ(m.text("empty"), "");
  EXPECT_EQ(m.text("message"), "a=b c");
  EXPECT_EQ(m.text("last"), "1");
  EXPECT_EQ(m.text("missing"), "");
  EXPECT_TRUE(m.descriptors.empty());
}

TEST_F(ControlSocket, OddPacketsAreNoHarm) {
  for (const std::string text : {"\n", "\n\n\n", "=", "verb\n=\n==x", "a\nb\nc"}) {
    say(text);
    Message m;
    EXPECT_FALSE(control_.receive(&m)) << text;
    EXPECT_EQ(hear(server_),
              "error\nmessage=unknown verb: " + text.substr(0, text.find('\n')) + "\n");
  }
  say("end\n=\n==x");
  Message m;
  EXPECT_TRUE(control_.receive(&m));
  EXPECT_EQ(m.verb, "end");
}

// "" or what is wrong with it.
std::string fault(std::span<const wire::MessageSpec> expected, const char* verb,
                  std::map<std::string, std::string> values) {
  Message m;
  m.verb = verb;
  m.values = std::move(values);
  return fault_of(expected, m);
}

TEST(Message, IsHeldAgainstTheRegistry) {
  const std::map<std::string, std::string> good = {{"id", "12ab"},
                                                   {"channel", "shm"},
                                                   {"vgpus", "2"},
                                                   {"vgpu.0.device", "GPU-0"},
                                                   {"vgpu.0.memory_mib", "64"},
                                                   {"vgpu.1.device", "GPU-1"},
                                                   {"vgpu.1.memory_mib", "64"},
                                                   {"newer", "than this"}};
  EXPECT_EQ(fault(wire::kWorkerReceived, "session", good), "");
  struct Case {
    std::string key, value, said;
  };
  for (const Case& c : {
           Case{"id", "", "session: id is missing"},
           Case{"id", "mine",
                "session: id is \"mine\"; an even number of hexadecimal digits is wanted"},
           Case{"channel", "smoke",
                "session: channel is \"smoke\"; one of shm, ivshmem, vsock, tcp, rdma is wanted"},
           Case{"vgpus", "65", "session: vgpus is \"65\"; a number from 1 to 64 is wanted"},
           Case{"vgpus", "18446744073709551617",
                "session: vgpus is \"18446744073709551617\"; a number from 1 to 64 is wanted"},
           Case{"vgpus", "3", "session: vgpu.2.memory_mib is missing"},
           Case{"vgpu.1.memory_mib", "0",
                "session: vgpu.1.memory_mib is \"0\"; a number from 1 to 1073741824 is wanted"},
           Case{"slot", "-1", "session: slot is \"-1\"; a number from 0 to 4095 is wanted"},
           Case{"request", "0",
                "session: request is \"0\"; an even number of hexadecimal digits is wanted"},
           Case{"request", std::string(1000, 'g'),
                "session: request is \"" + std::string(40, 'g') +
                    "\"; an even number of hexadecimal digits is wanted"},
       }) {
    auto values = good;
    values[c.key] = c.value;
    EXPECT_EQ(fault(wire::kWorkerReceived, "session", values), c.said);
  }
  EXPECT_EQ(fault(wire::kWorkerReceived, "compute", {{"vgpu.0.compute_percent", "50"}}), "");
  EXPECT_EQ(fault(wire::kWorkerReceived, "compute", {{"vgpu.0.compute_percent", "500"}}),
            "compute: vgpu.0.compute_percent is \"500\"; a number from 1 to 100 is wanted");
  EXPECT_EQ(fault(wire::kRelayReceived, "status", {}), "");
  EXPECT_EQ(fault(wire::kRelayReceived, "hold", {}), "unknown verb: hold");
  EXPECT_EQ(fault(wire::kWorkerSent, "status", {{"held", "2"}}),
            "status: held is \"2\"; 0 or 1 is wanted");
}

TEST_F(ControlSocket, WhatIsWrongIsAnsweredAndItsDescriptorsAreClosed) {
  static constexpr wire::MessageField kNeeded[] = {
      {"number", wire::FieldType::kNumber, true, 1, 5, {}},
  };
  static constexpr wire::MessageSpec kStrict[] = {{"take", kNeeded, nullptr, nullptr, {}}};
  Control strict(listener_, kStrict);
  const int server = connect_server();
  strict.accept();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  char text[] = "take\nid=a7\nnumber=6";
  iovec io{text, sizeof text - 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr m{};
  m.msg_iov = &io, m.msg_iovlen = 1, m.msg_control = control, m.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(c), &ends[1], sizeof(int));
  ASSERT_GT(sendmsg(server, &m, 0), 0);
  ::close(ends[1]);
  Message got;
  EXPECT_FALSE(strict.receive(&got));
  EXPECT_TRUE(got.descriptors.empty());
  EXPECT_EQ(hear(server),
            "error\nid=a7\nmessage=take: number is \"6\"; a number from 1 to 5 is wanted\n");
  char x;
  EXPECT_EQ(read(ends[0], &x, 1), 0) << "the writing end is closed";
  for (int fd : {ends[0], server, strict.connection()}) ::close(fd);
}

TEST(Message, NumbersAreWhole) {
  Message m;
  m.values = {{"n", "42"},
              {"zero", "0"},
              {"minus", "-1"},
              {"plus", "+1"},
              {"hex", "0x10"},
              {"blank", ""},
              {"tail", "42 "},
              {"long", "99999999999999999999"},
              {"top", "9999999999999999999"}};
  uint64_t v = 7;
  EXPECT_TRUE(m.number("n", &v));
  EXPECT_EQ(v, 42u);
  EXPECT_TRUE(m.number("zero", &v));
  EXPECT_EQ(v, 0u);
  for (const char* key : {"minus", "plus", "hex", "blank", "tail", "long", "missing"})
    EXPECT_FALSE(m.number(key, &v)) << key;
  EXPECT_TRUE(m.number("top", &v));
  EXPECT_EQ(v, 9999999999999999999ull);
}

TEST_F(ControlSocket, DescriptorsComeWithTheirMessageAndAreNotInherited) {
  int pair[2];
  ASSERT_EQ(pipe(pair), 0);
  char text[] = "session\ndescriptors=region,client_pidfd";
  iovec io{text, sizeof text - 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof pair)] = {};
  msghdr m{};
  m.msg_iov = &io, m.msg_iovlen = 1, m.msg_control = control, m.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof pair);
  std::memcpy(CMSG_DATA(c), pair, sizeof pair);
  ASSERT_GT(sendmsg(server_, &m, 0), 0);
  Message got;
  ASSERT_TRUE(control_.receive(&got));
  ASSERT_EQ(got.descriptors.size(), 2u);
  EXPECT_NE(fcntl(got.descriptors[0], F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(write(got.descriptors[1], "x", 1), 1);
  char x = 0;
  EXPECT_EQ(read(got.descriptors[0], &x, 1), 1);
  EXPECT_EQ(x, 'x');
  for (int fd : {got.descriptors[0], got.descriptors[1], pair[0], pair[1]}) ::close(fd);
}

TEST_F(ControlSocket, WhatIsSentIsOneLinePerValue) {
  EXPECT_TRUE(control_.send("ended", {{"reason", "two\nlines"}, {"state", "ended"}}));
  EXPECT_EQ(hear(server_), "ended\nreason=two lines\nstate=ended\n");
}

TEST_F(ControlSocket, WhatDoesNotFitIsSaidToBeLost) {
  const std::map<std::string, std::string> values{{"request", std::string(1024, 'x')}};
  int sent = 0;
  while (sent < 100'000 && control_.send("open", values)) ++sent;
  ASSERT_LT(sent, 100'000) << "the socket has no end";
  for (int i = 0; i < sent; ++i) ASSERT_NE(hear(server_), "");
  EXPECT_TRUE(control_.send("open", values)) << "there is room again";
}

TEST_F(ControlSocket, ANewServerReplacesTheOldOne) {
  const int newer = connect_server();
  control_.accept();
  EXPECT_TRUE(control_.send("ready", {}));
  EXPECT_EQ(hear(newer), "ready\n");
  EXPECT_EQ(recv(server_, nullptr, 0, MSG_DONTWAIT), 0) << "the old connection is closed";
  ::close(newer);
}

TEST_F(ControlSocket, ALostServerIsNotWaitedFor) {
  ::close(server_);
  Message m;
  EXPECT_FALSE(control_.receive(&m));
  EXPECT_LT(control_.connection(), 0);
  EXPECT_FALSE(control_.send("status", {}));
  server_ = connect_server();
  control_.accept();
  say("status");
  EXPECT_TRUE(control_.receive(&m));
}

// A poll() that tells of the old connection's end and of a new connection at once: receive() must
// not sit on the new one.
TEST_F(ControlSocket, ReceivingFromASilentServerDoesNotWait) {
  Message m;
  alarm(20);
  EXPECT_FALSE(control_.receive(&m));
  alarm(0);
  EXPECT_GE(control_.connection(), 0) << "silence is no end";
  say("status");
  EXPECT_TRUE(control_.receive(&m));
  EXPECT_EQ(m.verb, "status");
}

}  // namespace
}  // namespace sluice::process
