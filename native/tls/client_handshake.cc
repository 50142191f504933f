// SPDX-License-Identifier: Apache-2.0
#include "tls/client_handshake.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string_view>

namespace sluice::tls {

namespace {

// Constants of OpenSSL's headers and of the protocol.
constexpr int kSetMinimum = 123, kSetName = 55, kHostName = 0, kTls12 = 0x0303, kVerifyPeer = 1;
constexpr int kErrorWantRead = 2, kErrorWantWrite = 3, kErrorClosed = 6;
constexpr size_t kRecordHeader = 5, kMostRecord = (16 << 10) + 2048;

bool is_address(const std::string& name) {
  unsigned char room[16];
  return inet_pton(AF_INET, name.c_str(), room) == 1 ||
         inet_pton(AF_INET6, name.c_str(), room) == 1;
}

}  // namespace

std::unique_ptr<Client> Client::connect(int socket, const Peer& peer, Deadline deadline,
                                        std::string* error) {
  const OpenSsl* o = OpenSsl::get(error);
  if (!o) return nullptr;
  std::unique_ptr<Client> c(new Client(*o, socket));
  o->ERR_clear_error();
  const bool ok = c->start(peer, error) && c->shake(deadline, error);
  o->ERR_clear_error();  // the program may use the same library, and reads its own errors
  return ok ? std::move(c) : nullptr;
}

Client::~Client() {
  if (ssl_) o_.SSL_free(ssl_);
  if (context_) o_.SSL_CTX_free(context_);
  for (std::string* s : {&in_secret_, &out_secret_}) o_.OPENSSL_cleanse(s->data(), s->size());
}

bool Client::start(const Peer& peer, std::string* error) {
  name_ = peer.name;
  context_ = o_.SSL_CTX_new(o_.TLS_client_method());
  if (!context_) {
    *error = "OpenSSL: " + last_error(o_);
    return false;
  }
  o_.SSL_CTX_ctrl(context_, kSetMinimum, kTls12, nullptr);
  o_.SSL_CTX_set_ciphersuites(context_, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384");
  o_.SSL_CTX_set_verify(context_, kVerifyPeer, nullptr);
  o_.SSL_CTX_set_keylog_callback(context_, note_secret);
  if (!trust(peer)) {
    *error = "the CA file " + peer.ca_file + " cannot be used (" + last_error(o_) +
             "): SLUICE_CA or `ca` in client.conf names a PEM file";
    return false;
  }
  ssl_ = o_.SSL_new(context_);
  in_ = o_.BIO_new(o_.BIO_s_mem());
  out_ = o_.BIO_new(o_.BIO_s_mem());
  if (!ssl_ || !in_ || !out_) {
    *error = "OpenSSL: " + last_error(o_);
    return false;
  }
  o_.SSL_set_bio(ssl_, in_, out_);
  o_.SSL_set_ex_data(ssl_, 0, this);
  bool named;
  if (is_address(peer.name)) {
    named = o_.X509_VERIFY_PARAM_set1_ip_asc(o_.SSL_get0_param(ssl_), peer.name.c_str()) == 1;
  } else {
    named = o_.SSL_set1_host(ssl_, peer.name.c_str()) == 1 &&
            o_.SSL_ctrl(ssl_, kSetName, kHostName, const_cast<char*>(peer.name.c_str())) == 1;
  }
  if (!named || peer.name.empty()) *error = "\"" + peer.name + "\" is no name that can be checked";
  return named && !peer.name.empty();
}

bool Client::trust(const Peer& peer) {
  if (peer.ca.empty())
    return peer.ca_file.empty()
               ? o_.SSL_CTX_set_default_verify_paths(context_)
               : o_.SSL_CTX_load_verify_locations(context_, peer.ca_file.c_str(), nullptr);
  void* text = o_.BIO_new(o_.BIO_s_mem());
  const int n = static_cast<int>(peer.ca.size());
  bool any = false;
  if (text && o_.BIO_write(text, peer.ca.data(), n) == n) {
    while (void* certificate = o_.PEM_read_bio_X509(text, nullptr, nullptr, nullptr)) {
      any |= o_.X509_STORE_add_cert(o_.SSL_CTX_get_cert_store(context_), certificate) == 1;
      o_.X509_free(certificate);
    }
  }
  if (text) o_.BIO_free(text);
  return any;
}

bool Client::shake(Deadline deadline, std::string* error) {
  for (;;) {
    const int result = o_.SSL_connect(ssl_);
    const int wanted = result == 1 ? 0 : o_.SSL_get_error(ssl_, result);
    const bool failed = result != 1 && wanted != kErrorWantRead && wanted != kErrorWantWrite;
    const std::string trouble = failed ? why(last_error(o_)) : "";
    // what the other side should know of a failure, too
    std::string ignored;
    if (!flush(deadline, failed ? &ignored : error) && !failed) return false;
    if (failed) {
      *error = trouble;
      return false;
    }
    if (result == 1) return true;
    if (wanted == kErrorWantRead && !feed(deadline, error)) {
      *error = (heard_ ? "the TLS handshake broke off: " : "it does not speak TLS here: ") + *error;
      return false;
    }
  }
}

std::string Client::why(const std::string& trouble) {
  const long verdict = o_.SSL_get_verify_result(ssl_);
  if (verdict != 0)
    return "its certificate is not accepted as " + name_ +
           "'s: " + o_.X509_verify_cert_error_string(verdict) +
           " (SLUICE_CA or `ca` in client.conf names the CA)";
  return (heard_ ? "the TLS handshake failed: " : "it does not speak TLS here: ") +
         (trouble.empty() ? "no reason given" : trouble);
}

bool Client::flush(Deadline deadline, std::string* error) {
  char buffer[4096];
  for (int n; (n = o_.BIO_read(out_, buffer, sizeof buffer)) > 0;)
    if (!send_by(socket_, buffer, static_cast<size_t>(n), deadline, error)) return false;
  return true;
}

bool Client::feed(Deadline deadline, std::string* error) {
  uint8_t record[kRecordHeader + kMostRecord];
  if (!receive_all_by(socket_, record, kRecordHeader, deadline, error)) return false;
  const size_t length = static_cast<size_t>(record[3]) << 8 | record[4];
  // Types 20 to 23 of version 3.x: all else is another protocol.
  if (record[0] < 20 || record[0] > 23 || record[1] != 3 || length > kMostRecord) {
    *error = "what it sends is no TLS";
    return false;
  }
  heard_ = true;
  if (!receive_all_by(socket_, record + kRecordHeader, length, deadline, error)) return false;
  const int all = static_cast<int>(kRecordHeader + length);
  if (o_.BIO_write(in_, record, all) == all) return true;
  *error = "OpenSSL: " + last_error(o_);
  return false;
}

bool Client::send(const void* data, size_t n, Deadline deadline, std::string* error) {
  const int written = o_.SSL_write(ssl_, data, static_cast<int>(n));
  if (written != static_cast<int>(n)) {
    *error = why(last_error(o_));
    return false;
  }
  return flush(deadline, error);
}

long Client::receive_record(void* data, size_t n, Deadline deadline, std::string* error) {
  for (bool fed = false;; fed = true) {
    const int got = o_.SSL_read(ssl_, data, static_cast<int>(std::min<size_t>(n, 1 << 30)));
    if (got > 0) return got;
    const int wanted = o_.SSL_get_error(ssl_, got);
    if (wanted == kErrorClosed) return 0;
    if (wanted != kErrorWantRead) {
      *error = why(last_error(o_));
      return -1;
    }
    if (fed) return kNothingYet;
    if (!flush(deadline, error) || !feed(deadline, error)) return -1;
  }
}

// "LABEL client_random secret", for each secret as it comes to be.
void Client::note_secret(const void* ssl, const char* line) {
  OpenSsl const* o = nullptr;
  std::string ignored;
  if (!(o = OpenSsl::get(&ignored))) return;
  auto* self = static_cast<Client*>(o->SSL_get_ex_data(ssl, 0));
  const std::string_view text(line);
  const size_t label = text.find(' '), last = text.rfind(' ');
  if (!self || last == std::string_view::npos || last <= label) return;
  const std::string_view secret = text.substr(last + 1);
  if (text.substr(0, label) == "CLIENT_TRAFFIC_SECRET_0") self->out_secret_ = secret;
  if (text.substr(0, label) == "SERVER_TRAFFIC_SECRET_0") self->in_secret_ = secret;
}

bool Client::take_session(Session* session, std::string* error) {
  const uint16_t suite = o_.SSL_CIPHER_get_protocol_id(o_.SSL_get_current_cipher(ssl_));
  session->suite = static_cast<Suite>(suite);
  const bool known = session->suite == Suite::kAes128 || session->suite == Suite::kAes256;
  if (known && parse_secret(in_secret_, session->suite, &session->in) &&
      parse_secret(out_secret_, session->suite, &session->out))
    return true;
  *error = "it speaks no TLS 1.3";
  return false;
}

}  // namespace sluice::tls
