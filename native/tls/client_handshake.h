// SPDX-License-Identifier: Apache-2.0
// The client's end of a TLS connection: the handshake, with the other side's certificate and name
// checked, and then either OpenSSL's own records (the controller's requests) or what is left of the
// handshake, for a stream that needs no OpenSSL connection (record_stream.h, kernel_stream.h).
// One thread; the socket stays the caller's.
#pragma once

#include <memory>
#include <string>

#include "tls/key_schedule.h"
#include "tls/openssl.h"
#include "tls/socket_wait.h"

namespace sluice::tls {

// Whose certificate is good enough.
struct Peer {
  std::string name;     // a name or an IP address that stands in the certificate
  std::string ca_file;  // PEM; "": the machine's own
  std::string ca{};     // instead: what stands in such a file
};

inline constexpr long kNothingYet = -2;

class Client {
 public:
  // Nothing of the other side's is read beyond its last record of the handshake. nullptr: `error`
  // says what is wrong, and what to do where that is known.
  static std::unique_ptr<Client> connect(int socket, const Peer& peer, Deadline deadline,
                                         std::string* error);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool send(const void* data, size_t n, Deadline deadline, std::string* error);
  // What one more record of the other side's brings, or the one before had left: so many bytes, 0
  // at the end, -1 with `error`; kNothingYet if it was not about data.
  long receive_record(void* data, size_t n, Deadline deadline, std::string* error);

  // What is left of the handshake; false with `error` for a version before 1.3. Nothing may have
  // been sent or received meanwhile, and nothing may be through here afterwards.
  bool take_session(Session* session, std::string* error);

 private:
  Client(const OpenSsl& o, int socket) : o_(o), socket_(socket) {}
  bool start(const Peer& peer, std::string* error);
  bool trust(const Peer& peer);
  bool shake(Deadline deadline, std::string* error);
  bool flush(Deadline deadline, std::string* error);
  bool feed(Deadline deadline, std::string* error);  // one record of the other side's
  std::string why(const std::string& trouble);
  static void note_secret(const void* ssl, const char* line);

  const OpenSsl& o_;
  int socket_;
  void* context_ = nullptr;
  void* ssl_ = nullptr;
  void* in_ = nullptr;  // both are the SSL's
  void* out_ = nullptr;
  bool heard_ = false;  // a record of the other side's
  std::string name_;
  std::string in_secret_, out_secret_;  // hexadecimal, as OpenSSL tells them
};

}  // namespace sluice::tls
