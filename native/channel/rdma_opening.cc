// SPDX-License-Identifier: Apache-2.0
#include "channel/rdma_opening.h"

#include <algorithm>
#include <cstring>

#include "channel/dial.h"
#include "channel/futex.h"
#include "channel/rdma_connection.h"
#include "wire/frame.h"

namespace sluice::channel {

namespace {

constexpr uint32_t kNotSupported = 801;  // CUresult
constexpr int kAnswerSeconds = 10;       // the client may have to load libibverbs first
constexpr int kGreetingMs = 5'000;       // longer than the adapter tries
constexpr int kVerdictSeconds = 15;

bool say(Stream* over, wire::RdmaTerms terms, uint16_t function) {
  terms.header = {sizeof terms, function, wire::kNoLane, 0, 0};
  iovec part{&terms, sizeof terms};
  return over->write(&part, 1);
}

// The other side's next words, within so many seconds in all. False: it said something else, or
// nothing.
bool hear(Stream* over, int socket, int seconds, uint16_t function, wire::RdmaTerms* terms) {
  const uint64_t until = now_ns() + static_cast<uint64_t>(seconds) * 1'000'000'000;
  auto* to = reinterpret_cast<std::byte*>(terms);
  for (size_t have = 0; have < sizeof *terms;) {
    const uint64_t now = now_ns();
    if (now >= until) return false;
    set_patience(socket, static_cast<int>((until - now) / 1'000'000'000) + 1);
    const iovec part{to + have, sizeof *terms - have};
    const ssize_t got = over->read(&part, 1);
    if (got <= 0) return false;
    have += static_cast<size_t>(got);
  }
  set_patience(socket, 0);
  terms->message[sizeof terms->message - 1] = 0;
  return terms->header.function == function && terms->header.size == sizeof *terms;
}

std::string gid_text(const uint8_t* gid) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (int i = 0; i < 16; ++i) {
    if (i > 0 && i % 2 == 0) text += ':';
    text += kDigits[gid[i] >> 4];
    text += kDigits[gid[i] & 15];
  }
  return text;
}

// Where the offer stands in an opening reply, if there is one; 0: it is no such reply.
size_t end_of_devices(std::span<const std::byte> reply) {
  wire::SessionRecord record;
  const size_t at = sizeof(wire::OpenReply) + sizeof record;
  if (reply.size() < at) return 0;
  std::memcpy(&record, reply.data() + sizeof(wire::OpenReply), sizeof record);
  if (record.device_count > wire::kMaxDevices || record.device_bytes > reply.size()) return 0;
  return at + size_t{record.device_count} * record.device_bytes;
}

std::string reason_of(RdmaConnection& end) {
  const std::string why = end.why();
  return why.empty() ? "" : " (" + why + ")";
}

}  // namespace

wire::RdmaTerms no_rdma(const std::string& why) {
  wire::RdmaTerms terms{};
  terms.status = kNotSupported;
  std::memcpy(terms.message, why.data(), std::min(why.size(), sizeof terms.message - 1));
  return terms;
}

wire::RdmaTerms offer_rdma(const std::shared_ptr<RdmaDevice>& device, const std::string& why_none,
                           std::shared_ptr<RdmaConnection>* end) {
  std::string why = why_none;
  end->reset();
  if (device && !device->is_up())
    why = "the port " + std::to_string(device->port()) + " of " + device->name() + " is down";
  else if (device)
    *end = RdmaConnection::make(device, &why);
  wire::RdmaTerms terms = *end ? (*end)->terms() : no_rdma(why);
  terms.header = {sizeof terms, wire::kRdmaOffer, wire::kNoLane, 0, 0};
  return terms;
}

bool say_rdma_offer(Stream* over, const wire::RdmaTerms& offer) {
  return say(over, offer, wire::kRdmaOffer);
}

bool hear_rdma_offer(Stream* over, int socket, wire::RdmaTerms* offer) {
  return hear(over, socket, kAnswerSeconds, wire::kRdmaOffer, offer);
}

bool settle_rdma_offer(Stream* over, int socket, std::shared_ptr<RdmaConnection>* end,
                       std::string* why) {
  wire::RdmaTerms answer{};
  if (!hear(over, socket, kAnswerSeconds, wire::kRdmaAnswer, &answer)) return false;
  const auto without = [&](const std::string& reason) {
    *why = reason;
    end->reset();
  };
  std::string error;
  if (answer.status != 0)
    without(std::string("its client says: ") + answer.message);
  else if (!(*end)->connect(answer, &error))
    without(error);
  else if (!(*end)->greet() || !(*end)->await_greeting(kGreetingMs))
    without("nothing comes through between " + describe_rdma(**end) + " and " +
            gid_text(answer.gid) + reason_of(**end));
  if (*end) (*end)->offer_parts();  // answers' data, for which a client may have a place
  return say(over, *end ? wire::RdmaTerms{} : no_rdma(*why), wire::kRdmaVerdict);
}

bool find_rdma_offer(std::span<const std::byte> reply, wire::RdmaTerms* offer) {
  const size_t at = end_of_devices(reply);
  if (at == 0 || reply.size() < at + sizeof *offer) return false;
  std::memcpy(offer, reply.data() + at, sizeof *offer);
  offer->message[sizeof offer->message - 1] = 0;
  return offer->header.function == wire::kRdmaOffer && offer->header.size == sizeof *offer;
}

void remove_rdma_offer(std::vector<std::byte>* reply) {
  wire::RdmaTerms offer;
  if (!find_rdma_offer(*reply, &offer)) return;
  wire::SessionRecord record;
  std::byte* const at = reply->data() + sizeof(wire::OpenReply);
  std::memcpy(&record, at, sizeof record);
  record.record_bytes = static_cast<uint32_t>(end_of_devices(*reply) - sizeof(wire::OpenReply));
  std::memcpy(at, &record, sizeof record);
  reply->resize(sizeof(wire::OpenReply) + record.record_bytes);
}

bool answer_rdma_offer(Stream* over, int socket, const wire::RdmaTerms& offer,
                       const std::shared_ptr<RdmaDevice>& device, const std::string& why_none,
                       std::shared_ptr<RdmaConnection>* end, std::string* why) {
  end->reset();
  if (offer.status != 0) {
    *why = std::string("the node has none: ") + offer.message;
    return true;  // it waits for no answer
  }
  *why = why_none;
  if (device) *end = RdmaConnection::make(device, why);
  if (*end && !(*end)->connect(offer, why)) end->reset();
  if (!say(over, *end ? (*end)->terms() : no_rdma(*why), wire::kRdmaAnswer)) return false;
  // Where nothing comes the worker is in the same case, and says so.
  if (*end && (*end)->await_greeting(kGreetingMs)) (*end)->greet();
  wire::RdmaTerms verdict{};
  if (!hear(over, socket, kVerdictSeconds, wire::kRdmaVerdict, &verdict)) return false;
  if (verdict.status == 0) return *end != nullptr;
  if (*end) *why = verdict.message;
  end->reset();
  return true;
}

std::unique_ptr<Stream> rdma_stream(int socket, std::shared_ptr<RdmaConnection> end,
                                    RdmaLook* looking) {
  auto stream = std::make_unique<RdmaStream>(socket, std::move(end));
  if (looking) *looking = stream->looking();
  return stream;
}

int rdma_descriptor(const RdmaConnection& end) { return end.descriptor(); }
void rdma_arm(RdmaConnection* end) { end->arm(); }
void rdma_flush(RdmaConnection* end) { end->flush(); }

bool rdma_grant(RdmaConnection* end, std::byte* at, size_t bytes) { return end->grant(at, bytes); }

std::string describe_bulk(const RdmaConnection& end) {
  const uint64_t got = end.read_in_place(), sent = end.straight_bytes();
  if (got == 0 && sent == 0) return "";
  return "bulk over RDMA: " + std::to_string(got) + " bytes received in their place, " +
         std::to_string(sent) + " sent from where they lay, of these " +
         std::to_string(end.placed_bytes()) + " to their place";
}

std::string describe_rdma(const RdmaConnection& end) {
  const RdmaDevice& device = end.device();
  return device.name() + " port " + std::to_string(device.port()) + " (" + gid_text(device.gid()) +
         ")";
}

}  // namespace sluice::channel
