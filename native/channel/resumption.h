// SPDX-License-Identifier: Apache-2.0
// What the first frames of another connection say (docs/protocol.md, "When a connection breaks"):
// the session is named, and both sides prove that they know its key without saying it. Used by
// whoever dials: the client over TCP or vsock, the relay for a client that has a slot.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "channel/stream.h"

namespace sluice::channel {

using SessionKey = std::array<uint8_t, 32>;

// Before a thread begins that dials: at the end of the process none of what is here uses OpenSSL
// any more, which is gone then.
void expect_the_end();

// What both sides prove that they know: from the one-time key that opened the session, never said,
// and good for this session alone. False: the machine has no OpenSSL, or the process ends.
bool make_session_key(std::string_view one_time_key, uint64_t session_id, SessionKey* key,
                      std::string* error);

// kNever: `error` is why the session is over.
enum class Resumed { kYes, kNotNow, kNever };

// What it is to be: that subflow of the connection which has the epoch; or the next connection, if
// RDMA is agreed beside it (rdma_opening.h). With either kNever is no end of the session.
struct ResumeAs {
  std::optional<uint32_t> subflow = {};
  bool rdma = false;
};

// Over a connection that is new. After kYes come both sides' StreamRecords, or first an RdmaOffer.
Resumed ask_to_resume(Stream* stream, const SessionKey& key, uint64_t session_id, uint32_t epoch,
                      std::string* error, const ResumeAs& as = {});

}  // namespace sluice::channel
