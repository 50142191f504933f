// SPDX-License-Identifier: Apache-2.0
#include "process/control.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "channel/packet.h"
#include "wire/protocol.h"

namespace sluice::process {

namespace {
constexpr size_t kPacket = 64 << 10;
constexpr size_t kDescriptors = 8;
constexpr size_t kShown = 40;  // of what is wrong
}  // namespace

const std::string& Message::text(const std::string& key) const {
  static const std::string none;
  const auto it = values.find(key);
  return it == values.end() ? none : it->second;
}

bool Message::number(const std::string& key, uint64_t* value) const {
  const std::string& t = text(key);
  if (t.empty() || t.find_first_not_of("0123456789") != std::string::npos || t.size() > 19)
    return false;
  *value = std::strtoull(t.c_str(), nullptr, 10);
  return true;
}

int Message::descriptor(std::string_view name) const {
  std::string_view names = text("descriptors");
  for (const int fd : descriptors) {
    const size_t comma = std::min(names.find(','), names.size());
    if (names.substr(0, comma) == name) return fd;
    names.remove_prefix(std::min(comma + 1, names.size()));
  }
  return -1;
}

End End::ordered(const Message& m) {
  uint64_t cause = 0;
  m.number("cause", &cause);
  const std::string& reason = m.text("reason");
  return {static_cast<wire::EndCause>(cause), reason.empty() ? "the server ended it" : reason};
}

void End::write(std::map<std::string, std::string>& values) const {
  values["state"] = "ended";
  values["reason"] = reason;
  values["cause"] = std::to_string(static_cast<uint32_t>(cause));
}

namespace {

// What a value should have been; empty when it is that.
std::string wanted_of(const wire::MessageField& f, const std::string& key, const Message& m) {
  const std::string& value = m.text(key);
  switch (f.type) {
    case wire::FieldType::kNumber: {
      uint64_t n = 0;
      if (m.number(key, &n) && n >= f.least && n <= f.most) return {};
      return "a number from " + std::to_string(f.least) + " to " + std::to_string(f.most);
    }
    case wire::FieldType::kFlag:
      return value == "0" || value == "1" ? "" : "0 or 1";
    case wire::FieldType::kHex:
      if (value.size() % 2 == 0 && value.find_first_not_of("0123456789abcdef") == std::string::npos)
        return {};
      return "an even number of hexadecimal digits";
    case wire::FieldType::kText:
      break;
  }
  std::string all;
  for (const std::string_view choice : f.choices) {
    if (value == choice) return {};
    all += (all.empty() ? "one of " : ", ") + std::string(choice);
  }
  return all;
}

std::string fault_of(const wire::MessageField& f, const std::string& key, const Message& m) {
  if (m.text(key).empty()) return f.needed ? key + " is missing" : "";
  const std::string wanted = wanted_of(f, key, m);
  return wanted.empty()
             ? ""
             : key + " is \"" + m.text(key).substr(0, kShown) + "\"; " + wanted + " is wanted";
}

// The fields of a list, "vgpu.0.device" and the rest.
std::string fault_of_list(const wire::MessageSpec& spec, const Message& m) {
  uint64_t most = wire::kMaxDevices;
  if (spec.count && !m.number(spec.count, &most)) most = 0;
  for (uint64_t i = 0; i < most; ++i) {
    const std::string start = std::string(spec.list) + "." + std::to_string(i) + ".";
    bool any = spec.count != nullptr;
    for (const wire::MessageField& f : spec.each) any = any || m.values.contains(start + f.name);
    if (!any) break;
    for (const wire::MessageField& f : spec.each)
      if (std::string fault = fault_of(f, start + f.name, m); !fault.empty()) return fault;
  }
  return {};
}

}  // namespace

std::string fault_of(std::span<const wire::MessageSpec> expected, const Message& message) {
  for (const wire::MessageSpec& spec : expected) {
    if (message.verb != spec.verb) continue;
    std::string fault;
    for (const wire::MessageField& f : spec.fields)
      if (fault = fault_of(f, f.name, message); !fault.empty()) break;
    if (fault.empty() && spec.list) fault = fault_of_list(spec, message);
    return fault.empty() ? "" : message.verb + ": " + fault;
  }
  return "unknown verb: " + message.verb.substr(0, kShown);
}

void Control::accept() {
  const int c = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (c < 0) return;
  std::lock_guard lock(send_mutex_);
  if (connection_ >= 0) ::close(connection_);
  connection_ = c;
}

void Control::disconnect() {
  std::lock_guard lock(send_mutex_);
  if (connection_ >= 0) ::close(connection_);
  connection_ = -1;
}

bool Control::receive(Message* message) {
  std::string packet(kPacket, '\0');
  int descriptors[kDescriptors];
  const channel::Received got = channel::receive_packet(
      connection_, std::as_writable_bytes(std::span(packet)), descriptors, MSG_DONTWAIT);
  message->descriptors.insert(message->descriptors.end(), descriptors,
                              descriptors + got.descriptors);
  // poll() may have spoken of the connection before this one.
  if (got.bytes < 0 && errno == EAGAIN) return false;
  if (got.bytes <= 0) {
    disconnect();
    return false;
  }
  packet.resize(static_cast<size_t>(got.bytes));
  size_t at = 0;
  for (bool first = true; at < packet.size(); first = false) {
    size_t end = packet.find('\n', at);
    if (end == std::string::npos) end = packet.size();
    const std::string line = packet.substr(at, end - at);
    at = end + 1;
    const size_t equal = line.find('=');
    if (first)
      message->verb = line;
    else if (equal != std::string::npos)
      message->values[line.substr(0, equal)] = line.substr(equal + 1);
  }
  const std::string fault = fault_of(expected_, *message);
  if (fault.empty()) return true;
  for (const int fd : message->descriptors) ::close(fd);
  message->descriptors.clear();
  std::map<std::string, std::string> answer{{"message", fault}};
  if (const std::string& id = message->text("id"); !id.empty()) answer["id"] = id;
  send("error", answer);
  return false;
}

bool Control::send(const std::string& verb, const std::map<std::string, std::string>& values,
                   std::span<const int> descriptors) {
  std::string packet = verb + "\n";
  for (const auto& [key, value] : values) {
    std::string line = value;
    for (char& c : line)
      if (c == '\n') c = ' ';
    packet += key + "=" + line + "\n";
  }
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptors * sizeof(int))] = {};
  iovec io{packet.data(), packet.size()};
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const size_t bytes = std::min(descriptors.size(), kDescriptors) * sizeof(int);
    m.msg_control = control;
    m.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(c), descriptors.data(), bytes);
  }
  std::lock_guard lock(send_mutex_);
  return connection_ >= 0 && sendmsg(connection_, &m, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

}  // namespace sluice::process
