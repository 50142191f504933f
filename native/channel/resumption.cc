// SPDX-License-Identifier: Apache-2.0
#include "channel/resumption.h"

#include <sys/random.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "channel/opening.h"
#include "tls/openssl.h"
#include "wire/frame.h"

namespace sluice::channel {

namespace {

constexpr uint32_t kLater = 600;  // CUDA_ERROR_NOT_READY

// At the end of a process OpenSSL takes itself apart, while threads that dial go on.
struct OpenSslUse {
  std::mutex mutex;
  std::atomic<bool> over{false};
};
OpenSslUse& use() {
  static auto* const one = new OpenSslUse;
  return *one;
}

// A child of fork may have got it locked, by a thread that it does not have.
void end_use() {
  constexpr int kPatienceMs = 500;
  bool locked = use().mutex.try_lock();
  for (int ms = 0; !locked && ms < kPatienceMs; ++ms) {
    usleep(1000);
    locked = use().mutex.try_lock();
  }
  use().over = true;
  if (locked) use().mutex.unlock();
}

bool hmac(const tls::OpenSsl& o, std::string_view key, std::string_view text, SessionKey* made) {
  std::lock_guard lock(use().mutex);
  if (use().over) return false;
  unsigned bytes = 0;
  return o.HMAC(o.EVP_sha256(), key.data(), static_cast<int>(key.size()),
                reinterpret_cast<const uint8_t*>(text.data()), text.size(), made->data(), &bytes) &&
         bytes == made->size();
}

std::string_view bytes_of(const SessionKey& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

// Both are of one length. In a time that says nothing of where they differ.
bool same(const uint8_t* a, const uint8_t* b, size_t n) {
  uint8_t different = 0;
  for (size_t i = 0; i < n; ++i) different |= a[i] ^ b[i];
  return different == 0;
}

std::string to_prove(const char* who, const wire::ResumeSession& asked,
                     const wire::ResumeReply& answer) {
  std::string text = who;
  text.append(reinterpret_cast<const char*>(&asked.session_id), sizeof asked.session_id);
  text.append(reinterpret_cast<const char*>(&asked.epoch), sizeof asked.epoch);
  text.append(reinterpret_cast<const char*>(&asked.flags), sizeof asked.flags);
  if (asked.flags & wire::kSubflow)
    text.append(reinterpret_cast<const char*>(&asked.subflow), sizeof asked.subflow);
  text.append(reinterpret_cast<const char*>(asked.nonce), sizeof asked.nonce);
  text.append(reinterpret_cast<const char*>(answer.nonce), sizeof answer.nonce);
  return text;
}

bool write_all(Stream* stream, const void* data, size_t n) {
  iovec part{const_cast<void*>(data), n};
  return stream->write(&part, 1);
}

}  // namespace

// Handlers run in the reverse of the order in which they were registered: this one is to be before
// OpenSSL's, which comes with its first use by whoever is first, the program or this.
void expect_the_end() {
  static const int at_the_start = std::atexit(end_use);
  (void)at_the_start;
}

bool make_session_key(std::string_view one_time_key, uint64_t session_id, SessionKey* key,
                      std::string* error) {
  const tls::OpenSsl* o = tls::OpenSsl::get(error);
  std::string text = "sluice session ";
  text.append(reinterpret_cast<const char*>(&session_id), sizeof session_id);
  const bool made = o && hmac(*o, one_time_key, text, key);
  static const int behind_openssl = made ? std::atexit(end_use) : 0;
  (void)behind_openssl;
  return made;
}

Resumed ask_to_resume(Stream* stream, const SessionKey& key, uint64_t session_id, uint32_t epoch,
                      std::string* error, const ResumeAs& as) {
  const tls::OpenSsl* o = tls::OpenSsl::get(error);
  if (!o) {
    *error = "its connection broke, and another cannot be made without OpenSSL: install it";
    return Resumed::kNever;
  }
  wire::ResumeSession asked{};
  asked.header = {sizeof asked, wire::kResumeSession, wire::kNoLane, 0, 0};
  asked.magic = wire::kOpenMagic;
  asked.protocol_major = wire::kProtocolMajor;
  asked.protocol_minor = wire::kProtocolMinor;
  asked.session_id = session_id;
  asked.epoch = epoch;
  if (as.subflow) {
    asked.flags = wire::kSubflow;
    asked.subflow = *as.subflow;
  }
  if (as.rdma) asked.flags |= wire::kOverRdma;
  if (getrandom(asked.nonce, sizeof asked.nonce, 0) != sizeof asked.nonce) {
    *error = "the machine has no random numbers yet";
    return Resumed::kNotNow;
  }
  wire::ResumeReply answer{};
  if (!write_all(stream, &asked, sizeof asked) || !read_exact(stream, &answer, sizeof answer)) {
    *error = "the server closed the connection before it answered";
    return Resumed::kNotNow;
  }
  answer.message[sizeof answer.message - 1] = 0;
  *error = answer.message;
  if (answer.status == kLater) return Resumed::kNotNow;
  if (answer.status != 0) return Resumed::kNever;
  SessionKey expected, ours;
  if (answer.header.function != wire::kResumeReply ||
      !hmac(*o, bytes_of(key), to_prove("server", asked, answer), &expected) ||
      !same(expected.data(), answer.proof, sizeof answer.proof)) {
    *error = "who answered does not know this session's key: not its server";
    return Resumed::kNotNow;
  }
  wire::ResumeProof proof{};
  proof.header = {sizeof proof, wire::kResumeProof, wire::kNoLane, 0, 0};
  if (!hmac(*o, bytes_of(key), to_prove("client", asked, answer), &ours)) return Resumed::kNotNow;
  std::memcpy(proof.proof, ours.data(), ours.size());
  *error = "the connection was not taken";
  return write_all(stream, &proof, sizeof proof) ? Resumed::kYes : Resumed::kNotNow;
}

}  // namespace sluice::channel
