// SPDX-License-Identifier: Apache-2.0
// The real sluice-doorbell with a region in a file: this process plays the server on one side and
// the guest, which maps the same file, on the other.
#include "tests/native/doorbell/doorbell_process.h"

namespace sluice::test {
namespace {

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
  for (int i = 0; i < 60'000 && header.host_beat.load() < beat + 2; ++i)
    channel::sleep_ns(1'000'000);
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
  for (int i = 0; i < 60'000 && slot.reply().status != 600; ++i) channel::sleep_ns(1'000'000);
  EXPECT_STREQ(slot.reply().message, "place 2 of 3");
  EXPECT_EQ(slot.state(), SlotState::kOpening);

  say("refuse\nid=vm1\nslot=1\nstatus=2\nmessage=" + std::string(1000, 'm'));
  ASSERT_TRUE(slot.becomes(SlotState::kRefused));
  EXPECT_EQ(slot.reply().header.function, wire::kOpenReply);
  EXPECT_EQ(slot.reply().status, 2u);
  EXPECT_EQ(std::string(slot.reply().message), std::string(479, 'm')) << "cut, and ended by a NUL";
  slot.set(SlotState::kFree);
  slot.open_session();  // maybe before the doorbell has looked again
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
  for (const Case& c : {Case{"watch\nid=a\npath=" + folder_ + "/missing\nslots=1", "No such file"},
                        Case{"watch\nid=a\npath=" + folder_ + "\nslots=1", "directory"},
                        Case{"watch\nid=a\npath=" + folder_ + "/link\nslots=1", "symbolic link"},
                        Case{"watch\nid=a\npath=" + small + "\nslots=1", "too few"},
                        Case{"watch\nid=a\npath=" + region_ + "\nslots=0",
                             "slots is \"0\"; a number from 1 to 4096"},
                        Case{"watch\nid=a\npath=" + region_ + "\nslots=4097", "slots is \"4097\""},
                        Case{"watch\npath=" + region_ + "\nslots=1", "watch: id is missing"},
                        Case{"release\nid=none\nslot=0", "no such region or slot"},
                        Case{"sing\nid=a", "unknown verb: sing"}}) {
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

// QEMU's account owns the file.
TEST_F(DoorbellProcess, ARegionThatIsCutShortHarmsNoOther) {
  watch();
  const std::string second = folder_ + "/second";
  make_region(second, kRegion);
  say("watch\nid=vm2\npath=" + second + "\nslots=" + std::to_string(kSlots));
  ASSERT_TRUE(hear("watching"));
  {
    auto slot = guest(0);
    slot.open_session();
    ASSERT_TRUE(hear("open"));
  }
  ASSERT_EQ(truncate(region_.c_str(), 0), 0);
  say("release\nid=vm1\nslot=0");
  say("refuse\nid=vm1\nslot=1\nstatus=2\nmessage=no");
  GuestSlot other(second, kRegion, kSlots, 1);
  for (int i = 0; i < 20; ++i) {
    const uint32_t before = other.map.header().wake.load();
    other.map.header().doorbell.store(1);
    for (int k = 0; k < 60'000 && other.map.header().wake.load() == before; ++k)
      channel::sleep_ns(1'000'000);
    ASSERT_NE(other.map.header().wake.load(), before);
  }
  other.open_session("second");
  const auto open = hear("open");
  ASSERT_TRUE(open);
  EXPECT_EQ(value(*open, "id"), "vm2");
  say("forget\nid=vm1");
  say("list");
  ASSERT_TRUE(hear("regions"));
}

}  // namespace
}  // namespace sluice::test
