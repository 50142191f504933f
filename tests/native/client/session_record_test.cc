// SPDX-License-Identifier: Apache-2.0
// The session's record: a newer worker's longer devices are read, and what is cut short, empty or
// of another release is refused before anything of it is used.
#include "client/core/session_record.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace sluice::client {
namespace {

struct Written {
  wire::SessionRecord session{};
  std::vector<wire::DeviceRecord> devices{2};
  size_t more = 0;  // bytes that a newer worker has behind each device

  Written() {
    session.device_count = 2;
    session.driver_version = 13000;
    devices[0].window_begin = 1;
    devices[1].window_begin = 2;
  }
  std::vector<std::byte> bytes() const {
    wire::SessionRecord head = session;
    if (head.device_bytes == 0) head.device_bytes = sizeof(wire::DeviceRecord) + more;
    std::vector<std::byte> all(sizeof(wire::OpenReply));
    const auto add = [&all](const auto& what) {
      const auto* at = reinterpret_cast<const std::byte*>(&what);
      all.insert(all.end(), at, at + sizeof what);
    };
    add(head);
    for (const auto& d : devices) {
      add(d);
      all.resize(all.size() + more, std::byte{0xff});
    }
    return all;
  }
};

std::string refused(const std::vector<std::byte>& bytes) {
  SessionRecord record;
  std::string error;
  return read_session_record(bytes, &record, &error) ? "" : error;
}

TEST(TheSessionsRecord, IsRead) {
  for (const size_t more : {0, 64}) {
    Written w;
    w.more = more;
    std::memset(w.devices[1].name, 'x', sizeof w.devices[1].name);
    std::memset(w.session.driver_name, 'x', sizeof w.session.driver_name);
    SessionRecord record;
    std::string error;
    ASSERT_TRUE(read_session_record(w.bytes(), &record, &error)) << error;
    EXPECT_EQ(record.session.driver_version, 13000u);
    ASSERT_EQ(record.devices.size(), 2u);
    EXPECT_EQ(record.devices[0].window_begin, 1u);
    EXPECT_EQ(record.devices[1].window_begin, 2u);
    EXPECT_EQ(std::strlen(record.devices[1].name), sizeof w.devices[1].name - 1);
    EXPECT_EQ(std::strlen(record.session.driver_name), sizeof w.session.driver_name - 1);
  }
}

TEST(TheSessionsRecord, CutShortIsRefused) {
  const std::vector<std::byte> all = Written().bytes();
  for (size_t n = 0; n < all.size(); n += 7)
    EXPECT_NE(refused({all.begin(), all.begin() + static_cast<ptrdiff_t>(n)}), "") << n;
  EXPECT_NE(refused({all.begin(), all.end() - 1}), "");
  EXPECT_EQ(refused(all), "");
}

TEST(TheSessionsRecord, OfAnotherReleaseIsRefusedAndSaysWhatToDo) {
  Written none, many, small, huge;
  none.session.device_count = 0;
  many.session.device_count = wire::kMaxDevices + 1;
  small.session.device_bytes = sizeof(wire::DeviceRecord) - 1;
  huge.session.device_bytes = ~0u;
  for (const Written& w : {none, many, small, huge})
    EXPECT_NE(refused(w.bytes()).find("bring client and server to one release"), std::string::npos);
}

}  // namespace
}  // namespace sluice::client
