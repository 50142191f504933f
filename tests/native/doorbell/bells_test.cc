// SPDX-License-Identifier: Apache-2.0
// What a guest may ring beside its slot's word: a connection, or its device's eventfd.
#include <sys/eventfd.h>

#include "tests/native/doorbell/doorbell_process.h"

namespace sluice::test {
namespace {

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
    for (int i = 0; i < 60'000 && poll(&p, 1, 0) == 1; ++i) channel::sleep_ns(1'000'000);
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

}  // namespace
}  // namespace sluice::test
