// SPDX-License-Identifier: Apache-2.0
// A stream under TLS 1.3 after its handshake, with records made and opened here (RFC 8446, section
// 5) and OpenSSL's AES-GCM. Reading and writing share nothing, so one thread may do each. Keys are
// renewed after kRecordsPerKey records, and whenever the other side says so.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "channel/stream.h"
#include "tls/key_schedule.h"

namespace sluice::tls {

// AES-GCM is good for 24 million full records under one key (RFC 8446, section 5.5).
inline constexpr uint64_t kRecordsPerKey = 1 << 24;

// How much of what is sent goes into the next record. One that has not come whole is worth nothing,
// so a connection begins with small ones: however early it is cut, something has come.
class RecordSizes {
 public:
  static constexpr size_t kFull = 16 << 10, kSmall = 1 << 10, kSmallAtFirst = 16 << 10;  // bytes

  size_t next() const { return small_left_ > 0 ? kSmall : kFull; }
  void sent(size_t n) { small_left_ -= std::min(n, small_left_); }

 private:
  size_t small_left_ = kSmallAtFirst;
};

// The first type of a record's true content, behind its encryption.
enum class Content : uint8_t { kAlert = 21, kHandshake = 22, kData = 23 };

// The stream of a session: the kernel's where it can carry all that is wanted of it, else a
// RecordStream. nullptr with `error`: what the handshake left cannot be used.
std::unique_ptr<channel::Stream> open_stream(int socket, const Session& session,
                                             std::string* error);

// What a record of type handshake may say once the handshake is over.
enum class Notice { kNothing, kRenew, kRenewBoth, kBad };
Notice read_notice(const uint8_t* message, size_t n);
// The record's content that tells the other side of new keys: it is told, never asked.
inline constexpr uint8_t kKeyUpdate[5] = {24, 0, 0, 1, 0};

class RecordStream : public channel::Stream {
 public:
  static std::unique_ptr<RecordStream> open(int socket, const Session& session, std::string* error,
                                            uint64_t records_per_key = kRecordsPerKey);
  ~RecordStream() override;

  ssize_t read(const iovec* parts, int count) override;
  bool write(iovec* parts, int count) override;
  void try_write(const void* data, size_t n) override;
  bool pending() const override { return lacks_.load(std::memory_order_relaxed) == 0; }
  // Whether a whole record has come, or the end: of a part nothing can be read.
  bool readable() const override;
  bool wait_readable(int milliseconds) override;

 private:
  // One direction's cipher and the nonce of its next record.
  struct Direction {
    Traffic traffic;
    Keys keys;
    void* cipher = nullptr;
  };
  struct Record {  // in the buffer, checked for length only
    const uint8_t* header;
    size_t data;  // what it may hold at most
    size_t all;
  };

  RecordStream(const OpenSsl& o, int socket, const Session& session, uint64_t records_per_key);
  bool ready(Direction* d, bool sends);
  bool new_keys(Direction* d, bool sends);
  static void nonce(const Direction& d, uint8_t out[kIvBytes]);

  ssize_t read_records(const iovec* parts, int count);
  ssize_t take_in(int flags);  // what has come
  bool fill(Record* record);   // until a whole record lies in the buffer
  bool whole(Record* record, bool* broken) const;
  void count_lacking();
  bool decrypt(const Record& record, uint8_t* to, size_t* n, Content* content);
  bool take_notice(Content content, const uint8_t* message, size_t n);

  uint8_t* seal(uint8_t* at, const iovec* parts, size_t first_offset, size_t n, Content content);
  bool renew_out();

  const OpenSsl& o_;
  Suite suite_;
  uint64_t records_per_key_;
  Direction in_, out_;
  std::atomic<bool> renewal_asked_{false};
  bool over_ = false;   // read side: told so
  bool ended_ = false;  // read side: nothing more is taken, whether it was told or broken

  std::vector<uint8_t> buffer_;  // as received
  size_t begin_ = 0, end_ = 0;
  // Bytes that have to come before anything can be read, as far as the buffer tells; 0: nothing
  // has. Also for those who do not read.
  static constexpr size_t kARecord = SIZE_MAX;  // of which it tells nothing
  std::atomic<size_t> lacks_{kARecord};
  std::vector<uint8_t> plain_;  // of a record that was larger than the room for it
  size_t plain_begin_ = 0, plain_end_ = 0;
  std::vector<uint8_t> sealed_;
  RecordSizes sizes_;  // of what is written
};

}  // namespace sluice::tls
