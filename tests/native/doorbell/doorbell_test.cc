// SPDX-License-Identifier: Apache-2.0
// The real sluice-doorbell with a region in a file: this process plays the server on one side and
// the guest, which maps the same file, on the other.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
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
#include "wire/open_session.h"

extern char** environ;

namespace sluice::test {
namespace {

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
    for (int i = 0; i < 4000 && state() != s; ++i) channel::sleep_ns(1'000'000);
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
    return poll(&p, 1, 4000) == 1 && recv(bell, &said, 1, 0) == 0;
  }
  static bool all_heard(int bell) {
    int unheard = 1;
    for (int i = 0; i < 4000 && ioctl(bell, SIOCOUTQ, &unheard) == 0 && unheard > 0; ++i)
      channel::sleep_ns(1'000'000);
    return unheard == 0;
  }
  // The next message whose verb is `verb`; the others are kept for later questions.
  std::optional<std::string> hear(const std::string& verb, int timeout_ms = 4000) {
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

TEST_F(DoorbellProcess, FormatsABlankRegionAndCountsWhileItLives) {
  watch();
  const int fd = open(region_.c_str(), O_RDWR | O_CLOEXEC);
  void* page = mmap(nullptr, channel::kPage, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  ASSERT_NE(page, MAP_FAILED);
  const auto& header = *static_cast<channel::RegionHeader*>(page);
  std::string error;
  EXPECT_EQ(channel::check_region(header, kRegion, &error), channel::slot_bytes_of(kRegion, kSlots))
      << error;
  for (uint32_t i = 0; i < kSlots; ++i) {
    EXPECT_EQ(guest(i).state(), SlotState::kFree);
    EXPECT_EQ(guest(i).map.header().magic, channel::kSlotMagic);
    EXPECT_EQ(guest(i).map.header().index, i);
  }
  const uint64_t beat = header.host_beat.load();
  for (int i = 0; i < 4000 && header.host_beat.load() < beat + 2; ++i) channel::sleep_ns(1'000'000);
  EXPECT_GE(header.host_beat.load(), beat + 2);
  munmap(page, channel::kPage);
}

TEST_F(DoorbellProcess, ReportsAnOpenAndWritesTheRefusal) {
  watch();
  GuestSlot slot = guest(1);
  slot.open_session("torch");
  const auto open_message = hear("open");
  ASSERT_TRUE(open_message);
  EXPECT_EQ(value(*open_message, "id"), "vm1");
  EXPECT_EQ(value(*open_message, "slot"), "1");
  const std::string request = value(*open_message, "request");
  EXPECT_EQ(request.size(), 1024u);
  EXPECT_EQ(request.substr(32, 8), "534c4943") << "the magic, little endian";
  EXPECT_EQ(request.substr(400, 10), "746f726368") << "the program's name";
  EXPECT_FALSE(hear("open", 100)) << "once";

  say("wait\nid=vm1\nslot=1\nmessage=place 2 of 3");
  for (int i = 0; i < 4000 && slot.reply().status != 600; ++i) channel::sleep_ns(1'000'000);
  EXPECT_STREQ(slot.reply().message, "place 2 of 3");
  EXPECT_EQ(slot.state(), SlotState::kOpening);

  say("refuse\nid=vm1\nslot=1\nstatus=2\nmessage=" + std::string(1000, 'm'));
  ASSERT_TRUE(slot.becomes(SlotState::kRefused));
  EXPECT_EQ(slot.reply().header.function, wire::kOpenReply);
  EXPECT_EQ(slot.reply().status, 2u);
  EXPECT_EQ(std::string(slot.reply().message), std::string(479, 'm')) << "cut, and ended by a NUL";
  slot.set(SlotState::kFree);
  channel::sleep_ns(50'000'000);
  slot.open_session();
  EXPECT_TRUE(hear("open")) << "the slot serves again";
}

TEST_F(DoorbellProcess, ALateAnswerDoesNotOverwriteAGrant) {
  watch();
  GuestSlot slot = guest(0);
  slot.open_session();
  ASSERT_TRUE(hear("open"));
  std::memset(slot.map.mailbox().data(), 0x77, 512);  // the worker's grant
  slot.set(SlotState::kReady);
  say("refuse\nid=vm1\nslot=0\nstatus=2\nmessage=too late");
  say("wait\nid=vm1\nslot=0\nmessage=too late");
  say("list\nid=x");
  ASSERT_TRUE(hear("regions"));
  EXPECT_EQ(slot.state(), SlotState::kReady);
  EXPECT_EQ(slot.map.mailbox()[40], std::byte{0x77});
}

TEST_F(DoorbellProcess, ReportsTheEndAndReleasesTheSlot) {
  watch();
  GuestSlot slot = guest(2);
  slot.open_session();
  ASSERT_TRUE(hear("open"));
  slot.set(SlotState::kReady);
  slot.map.header().tail = 4096;
  channel::sleep_ns(50'000'000);
  slot.set(SlotState::kClosed);
  const auto closed = hear("closed");
  ASSERT_TRUE(closed);
  EXPECT_EQ(value(*closed, "slot"), "2");
  EXPECT_FALSE(hear("closed", 100)) << "once";
  const uint32_t generation = slot.map.header().generation.load();
  say("release\nid=vm1\nslot=2");
  ASSERT_TRUE(slot.becomes(SlotState::kFree));
  EXPECT_EQ(slot.map.header().generation.load(), generation + 1);
  EXPECT_EQ(slot.map.header().tail.load(), 0u);
}

TEST_F(DoorbellProcess, NonsenseInTheStateWordIsAnEnd) {
  watch();
  for (uint32_t i = 0; i < kSlots; ++i)
    guest(i).map.header().state = i == 0 ? 7u : i == 1 ? 0x80000000u : ~0u;
  for (uint32_t i = 0; i < kSlots; ++i) {
    const auto closed = hear("closed");
    ASSERT_TRUE(closed);
    EXPECT_NE(closed->find("nonsense"), std::string::npos) << *closed;
  }
  say("release\nid=vm1\nslot=0");
  EXPECT_TRUE(guest(0).becomes(SlotState::kFree));
}

TEST_F(DoorbellProcess, WakesASleepingWorkerWhoseGuestRings) {
  watch();
  GuestSlot slot = guest(0);
  auto& h = slot.map.header();
  for (int i = 0; i < 50; ++i) {
    const uint32_t seen = h.wake.load();
    std::thread ring([&] {
      channel::sleep_ns(i % 10 * 1'000'000);
      h.doorbell.store(1);
    });
    const uint64_t since = channel::now_ns();
    while (h.wake.load() == seen && channel::now_ns() - since < 10'000'000'000)
      channel::futex_wait(h.wake, seen, 1'000'000'000);
    ring.join();
    ASSERT_NE(h.wake.load(), seen) << "round " << i;
    EXPECT_EQ(h.doorbell.load(), 0u);
  }
}

TEST_F(DoorbellProcess, ABellIsHeardForAsLongAsThereIsItsRegion) {
  watch();
  const int bell = give_bell(), other = give_bell();
  auto slot = guest(0);
  for (int i = 0; i < 20; ++i) {
    const uint32_t before = slot.map.header().wake.load();
    slot.map.header().doorbell.store(1);
    ASSERT_EQ(send(bell, "", 1, MSG_NOSIGNAL), 1);
    for (int k = 0; k < 4000 && slot.map.header().wake.load() == before; ++k)
      channel::sleep_ns(1'000'000);
    EXPECT_NE(slot.map.header().wake.load(), before);
  }
  const std::string much(100'000, 'x');
  ASSERT_EQ(send(bell, much.data(), much.size(), MSG_NOSIGNAL), static_cast<ssize_t>(much.size()));
  EXPECT_TRUE(all_heard(bell));
  close(bell);  // as a guest's program that ends does
  ASSERT_EQ(send(other, "", 1, MSG_NOSIGNAL), 1);
  EXPECT_TRUE(all_heard(other));
  watch();  // a server that came back
  ASSERT_EQ(send(other, "", 1, MSG_NOSIGNAL), 1);
  EXPECT_TRUE(all_heard(other));
  say("forget\nid=vm1");
  EXPECT_TRUE(hung_up(other));
  close(other);
  const int nobodys = give_bell("vm2");
  EXPECT_TRUE(hung_up(nobodys));
  close(nobodys);
}

TEST_F(DoorbellProcess, TheBellOfADeviceIsAnEventfdAndTheNewestOne) {
  watch();
  const int first = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
            second = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const auto heard = [](int bell) {
    pollfd p{bell, POLLIN, 0};
    for (int i = 0; i < 4000 && poll(&p, 1, 0) == 1; ++i) channel::sleep_ns(1'000'000);
    return poll(&p, 1, 0) == 0;
  };
  give("bell\nid=vm1\ndevice=yes", first);
  auto slot = guest(0);
  for (int i = 0; i < 20; ++i) {
    const uint32_t before = slot.map.header().wake.load();
    slot.map.header().doorbell.store(1);
    ASSERT_EQ(eventfd_write(first, 1), 0);
    for (int k = 0; k < 4000 && slot.map.header().wake.load() == before; ++k)
      channel::sleep_ns(1'000'000);
    EXPECT_NE(slot.map.header().wake.load(), before);
    EXPECT_TRUE(heard(first));
  }
  give("bell\nid=vm1\ndevice=yes", second);
  ASSERT_EQ(eventfd_write(second, 1), 0);
  EXPECT_TRUE(heard(second));
  ASSERT_EQ(eventfd_write(first, 1), 0);
  channel::sleep_ns(50'000'000);
  pollfd p{first, POLLIN, 0};
  EXPECT_EQ(poll(&p, 1, 0), 1);  // of a guest that is gone
  close(first);
  close(second);
}

TEST_F(DoorbellProcess, AGuestHasSoManyBellsAndNoMore) {
  watch();
  std::vector<int> bells;
  for (int i = 0; i < 65; ++i) bells.push_back(give_bell());
  EXPECT_TRUE(hung_up(bells[0]));
  for (const int bell : {bells[1], bells[64]}) {
    ASSERT_EQ(send(bell, "", 1, MSG_NOSIGNAL), 1);
    EXPECT_TRUE(all_heard(bell));
  }
  for (const int bell : bells) close(bell);
}

TEST_F(DoorbellProcess, AGuestThatFlickersIsNotReportedOften) {
  watch();
  GuestSlot slot = guest(0);
  for (const uint64_t end = channel::now_ns() + 1'000'000'000; channel::now_ns() < end;) {
    slot.set(SlotState::kOpening);
    channel::sleep_ns(100'000);
    slot.set(SlotState::kClosed);
    channel::sleep_ns(100'000);
  }
  slot.set(SlotState::kFree);
  int reports = 0;
  while (hear("open", 50) || hear("closed", 50)) ++reports;
  EXPECT_GT(reports, 0);
  EXPECT_LE(reports, 60);
}

TEST_F(DoorbellProcess, ANewServerHearsWhatHasNoAnswerAndSessionsGoOn) {
  watch();
  GuestSlot waiting = guest(0), running = guest(1);
  waiting.open_session();
  ASSERT_TRUE(hear("open"));
  running.set(SlotState::kReady);
  running.map.header().tail = 640;
  connect_server();
  const auto again = hear("open");
  ASSERT_TRUE(again);
  EXPECT_EQ(value(*again, "slot"), "0");
  watch();
  say("list\nid=x");
  const auto list = hear("regions");
  ASSERT_TRUE(list);
  EXPECT_EQ(value(*list, "vm1"), region_);
  EXPECT_EQ(running.state(), SlotState::kReady);
  EXPECT_EQ(running.map.header().tail.load(), 640u);
}

TEST_F(DoorbellProcess, ANewDoorbellKeepsSessionsAndHearsTheEndsItMissed) {
  watch();
  GuestSlot waiting = guest(0), running = guest(1), ended = guest(2);
  running.set(SlotState::kReady);
  running.map.header().tail = 640;
  stop();
  waiting.open_session();
  ended.set(SlotState::kClosed);
  start();
  watch();
  const auto open_message = hear("open");
  ASSERT_TRUE(open_message);
  EXPECT_EQ(value(*open_message, "slot"), "0");
  const auto closed = hear("closed");
  ASSERT_TRUE(closed);
  EXPECT_EQ(value(*closed, "slot"), "2");
  EXPECT_EQ(running.state(), SlotState::kReady);
  EXPECT_EQ(running.map.header().tail.load(), 640u);
}

TEST_F(DoorbellProcess, ARegionThatTheGuestWroteOverStartsAnew) {
  watch();
  GuestSlot slot = guest(0);
  slot.set(SlotState::kReady);
  stop();
  const int fd = open(region_.c_str(), O_RDWR | O_CLOEXEC);
  const std::string junk(channel::kPage, '\xa5');
  ASSERT_EQ(pwrite(fd, junk.data(), junk.size(), 0), static_cast<ssize_t>(junk.size()));
  close(fd);
  start();
  watch();
  EXPECT_EQ(slot.state(), SlotState::kFree);
}

TEST_F(DoorbellProcess, SaysWhatItCannotWatch) {
  const std::string small = folder_ + "/small";
  make_region(small, 1 << 20);
  ASSERT_EQ(symlink(region_.c_str(), (folder_ + "/link").c_str()), 0);
  struct Case {
    std::string message, reason;
  };
  for (const Case& c :
       {Case{"watch\nid=a\npath=" + folder_ + "/missing\nslots=1", "No such file"},
        Case{"watch\nid=a\npath=" + folder_ + "\nslots=1", "directory"},
        Case{"watch\nid=a\npath=" + folder_ + "/link\nslots=1", "symbolic link"},
        Case{"watch\nid=a\npath=" + small + "\nslots=1", "too few"},
        Case{"watch\nid=a\npath=" + region_ + "\nslots=0", "slots from 1 to 4096"},
        Case{"watch\nid=a\npath=" + region_ + "\nslots=4097", "slots from 1 to 4096"},
        Case{"watch\npath=" + region_ + "\nslots=1", "watch needs id"},
        Case{"release\nid=none\nslot=0", "no such region or slot"},
        Case{"sing\nid=a", "no such region or slot"}}) {
    say(c.message);
    const auto error = hear("error");
    ASSERT_TRUE(error) << c.message;
    EXPECT_NE(value(*error, "message").find(c.reason), std::string::npos) << *error;
  }
  watch();
  for (const std::string slot : {"3", "-1", "x", ""}) {
    say("refuse\nid=vm1\nslot=" + slot + "\nstatus=2\nmessage=m");
    EXPECT_TRUE(hear("error")) << slot;
  }
}

TEST_F(DoorbellProcess, AForgottenRegionIsLeftAlone) {
  watch();
  say("forget\nid=vm1");
  say("list\nid=x");
  const auto list = hear("regions");
  ASSERT_TRUE(list);
  EXPECT_EQ(value(*list, "vm1"), "(none)");
  guest(0).open_session();
  EXPECT_FALSE(hear("open", 200));
}

TEST_F(DoorbellProcess, AFileOfTheSameNameIsAnotherRegion) {
  watch();
  guest(0).set(SlotState::kReady);
  std::filesystem::remove(region_);
  make_region(region_, kRegion);
  watch();
  EXPECT_EQ(guest(0).state(), SlotState::kFree);
  guest(0).open_session();
  EXPECT_TRUE(hear("open")) << "it is the new file that is watched";
}

// The doorbell tells of silence after thirty seconds without a heartbeat.
TEST_F(DoorbellProcess, TellsOfAGuestWithoutAHeartbeat) {
  watch();
  GuestSlot silent = guest(0), lively = guest(1);
  silent.set(SlotState::kReady);
  lively.set(SlotState::kReady);
  std::optional<std::string> told;
  for (int i = 0; i < 350 && !told; ++i) {
    lively.map.header().heartbeat.fetch_add(1);
    told = hear("silent", 100);
  }
  ASSERT_TRUE(told);
  EXPECT_EQ(value(*told, "slot"), "0");
  EXPECT_GE(std::stoi(value(*told, "seconds")), 30);
  EXPECT_FALSE(hear("silent", 500)) << "and not the other, nor again at once";
}

}  // namespace
}  // namespace sluice::test
