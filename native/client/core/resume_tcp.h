// SPDX-License-Identifier: Apache-2.0
// Going on with a session over another connection to its server: the session is named, both sides
// prove that they know its key without saying it, and the stream says the rest
// (channel/resumable_stream.h). Tried again and again, for as long as the session allows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "channel/resumable_stream.h"

namespace sluice::client {

// Where a session is, and what proves that it is ours.
struct SessionAddress {
  uint64_t session_id = 0;
  std::string address, port;
  bool tls = false;
  std::string tls_name, ca_file;
  std::string key;  // the one-time key with which it was opened
};

// A connection as the ticket wants it: plain, or under TLS. nullptr with `error`; `seconds` is how
// long it may take.
std::unique_ptr<channel::ResumableStream::Connection> connect_to(const SessionAddress& where,
                                                                 int seconds, std::string* error);

enum class Resumed { kYes, kNotNow, kNever };
// kNever: `error` is why the session is over.
Resumed resume_tcp(const SessionAddress& where, channel::ResumableStream* stream,
                   std::string* error);

}  // namespace sluice::client
