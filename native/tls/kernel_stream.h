// SPDX-License-Identifier: Apache-2.0
// A stream whose TLS 1.3 records the kernel makes and opens (Linux' module `tls`): after the
// handshake the socket is read and written as if it were plain, and large bodies need no copy of
// their own. Keys are renewed as in record_stream.h, which kernels can from Linux 6.14 on.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "channel/stream.h"
#include "tls/key_schedule.h"
#include "tls/record_stream.h"

namespace sluice::tls {

class KernelStream : public channel::Stream {
 public:
  // nullptr where the kernel has no TLS, or could not go on when keys have to be renewed (unless
  // `also_old`): the socket is then as it was. With `error` it is not, and of no use any more.
  static std::unique_ptr<KernelStream> open(int socket, const Session& session, std::string* error,
                                            bool also_old = false);
  ~KernelStream() override;

  ssize_t read(const iovec* parts, int count) override;
  bool write(iovec* parts, int count) override;
  void try_write(const void* data, size_t n) override;

 private:
  KernelStream(const OpenSsl& o, int socket, const Session& session)
      : Stream(socket), o_(o), suite_(session.suite), in_(session.in), out_(session.out) {}
  bool set_keys(int direction, const Traffic& traffic);
  bool renew_out();
  ssize_t take_notice(uint8_t type, const iovec* parts, size_t n);

  const OpenSsl& o_;
  Suite suite_;
  Traffic in_, out_;
  uint64_t sent_records_ = 0;  // under the present key, or some more
  RecordSizes sizes_;          // of what is written
  std::atomic<bool> renewal_asked_{false};
};

}  // namespace sluice::tls
