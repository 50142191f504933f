// SPDX-License-Identifier: Apache-2.0
#include "channel/opening.h"

#include <cstring>

#include "wire/frame.h"

namespace sluice::channel {

namespace {

constexpr uint32_t kNotReady = 600;  // CUresult

}  // namespace

bool read_exact(Stream* stream, void* data, size_t n) {
  char* at = static_cast<char*>(data);
  while (n > 0) {
    const iovec part{at, n};
    const ssize_t got = stream->read(&part, 1);
    if (got <= 0) return false;
    at += got;
    n -= static_cast<size_t>(got);
  }
  return true;
}

bool open_over(Stream* stream, std::span<const std::byte> request, const std::string& server,
               Opened* opened, const std::function<void(const char* line)>& waits) {
  std::vector<std::byte>& reply = opened->reply;
  reply.resize(sizeof(wire::OpenReply));
  auto* head = reinterpret_cast<wire::OpenReply*>(reply.data());
  iovec part{const_cast<std::byte*>(request.data()), request.size()};
  bool heard = stream->write(&part, 1);
  for (;;) {
    heard = heard && read_exact(stream, reply.data(), reply.size()) &&
            head->header.function == wire::kOpenReply;
    if (!heard) {
      opened->error = server + " closed the connection before it answered";
      return false;
    }
    head->message[sizeof head->message - 1] = 0;
    if (head->status != kNotReady || !waits) break;
    waits(head->message);
  }
  if (head->status != 0) {
    opened->error = head->message;
    opened->status = head->status;
    return false;
  }
  wire::SessionRecord record;
  bool ok = read_exact(stream, &record, sizeof record) && record.record_bytes >= sizeof record &&
            record.record_bytes < wire::kMaxRecordBytes;
  if (ok) {
    reply.resize(sizeof(wire::OpenReply) + record.record_bytes);
    std::memcpy(reply.data() + sizeof(wire::OpenReply), &record, sizeof record);
    ok = read_exact(stream, reply.data() + sizeof(wire::OpenReply) + sizeof record,
                    record.record_bytes - sizeof record);
  }
  if (!ok) opened->error = server + " broke off its answer";
  return ok;
}

}  // namespace sluice::channel
