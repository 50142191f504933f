// SPDX-License-Identifier: Apache-2.0
#include "client/core/session_record.h"

#include <cstring>

namespace sluice::client {

bool read_session_record(std::span<const std::byte> reply, SessionRecord* record,
                         std::string* error) {
  wire::SessionRecord& session = record->session;
  constexpr size_t kHead = sizeof(wire::OpenReply) + sizeof session;
  if (reply.size() < kHead) {
    *error = "the session's record is cut short";
    return false;
  }
  std::memcpy(&session, reply.data() + sizeof(wire::OpenReply), sizeof session);
  session.driver_name[sizeof session.driver_name - 1] = 0;
  if (session.device_count == 0 || session.device_count > wire::kMaxDevices ||
      session.device_bytes < sizeof(wire::DeviceRecord) ||
      reply.size() < kHead + size_t{session.device_bytes} * session.device_count) {
    *error =
        "the session's record does not fit this client: bring client and server to one release";
    return false;
  }
  record->devices.resize(session.device_count);
  const std::byte* at = reply.data() + kHead;
  for (wire::DeviceRecord& d : record->devices) {
    std::memcpy(&d, at, sizeof d);
    d.name[sizeof d.name - 1] = 0;
    d.pci_bus_id[sizeof d.pci_bus_id - 1] = 0;
    at += session.device_bytes;
  }
  return true;
}

}  // namespace sluice::client
