// SPDX-License-Identifier: Apache-2.0
// The machine's OpenSSL (3, or 1.1.1), loaded at the first connection that wants TLS and never
// before: a program that does not use TLS carries nothing of it. It is loaded locally and binds to
// itself first, so that another TLS library in the program neither sees it nor is mistaken for it.
// Only functions that both versions export are used, declared here: no header of OpenSSL is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sluice::tls {

struct OpenSsl {
  // libssl
  const void* (*TLS_client_method)();
  void* (*SSL_CTX_new)(const void* method);
  void (*SSL_CTX_free)(void*);
  long (*SSL_CTX_ctrl)(void*, int command, long number, void* pointer);
  int (*SSL_CTX_set_ciphersuites)(void*, const char*);
  void (*SSL_CTX_set_keylog_callback)(void*, void (*)(const void* ssl, const char* line));
  int (*SSL_CTX_load_verify_locations)(void*, const char* file, const char* folder);
  int (*SSL_CTX_set_default_verify_paths)(void*);
  void* (*SSL_CTX_get_cert_store)(const void*);
  void (*SSL_CTX_set_verify)(void*, int mode, void* callback);
  void* (*SSL_new)(void* context);
  void (*SSL_free)(void*);
  void (*SSL_set_bio)(void*, void* in, void* out);
  int (*SSL_connect)(void*);
  int (*SSL_read)(void*, void*, int);
  int (*SSL_write)(void*, const void*, int);
  int (*SSL_get_error)(const void*, int);
  long (*SSL_ctrl)(void*, int command, long number, void* pointer);
  int (*SSL_set1_host)(void*, const char*);
  void* (*SSL_get0_param)(void*);
  long (*SSL_get_verify_result)(const void*);
  const void* (*SSL_get_current_cipher)(const void*);
  uint16_t (*SSL_CIPHER_get_protocol_id)(const void*);
  int (*SSL_set_ex_data)(void*, int, void*);
  void* (*SSL_get_ex_data)(const void*, int);
  // libcrypto, which libssl brings
  int (*X509_VERIFY_PARAM_set1_ip_asc)(void*, const char*);
  const char* (*X509_verify_cert_error_string)(long);
  void* (*PEM_read_bio_X509)(void* bio, void* into, void* ask, void* of);
  int (*X509_STORE_add_cert)(void* store, void* certificate);
  void (*X509_free)(void*);
  void* (*BIO_new)(const void*);
  int (*BIO_free)(void*);
  const void* (*BIO_s_mem)();
  int (*BIO_read)(void*, void*, int);
  int (*BIO_write)(void*, const void*, int);
  unsigned long (*ERR_get_error)();
  const char* (*ERR_reason_error_string)(unsigned long);
  void (*ERR_clear_error)();
  void* (*EVP_CIPHER_CTX_new)();
  void (*EVP_CIPHER_CTX_free)(void*);
  int (*EVP_CIPHER_CTX_ctrl)(void*, int command, int number, void* pointer);
  const void* (*EVP_aes_128_gcm)();
  const void* (*EVP_aes_256_gcm)();
  const void* (*EVP_sha256)();
  const void* (*EVP_sha384)();
  int (*EVP_EncryptInit_ex)(void*, const void*, void*, const uint8_t* key, const uint8_t* iv);
  int (*EVP_EncryptUpdate)(void*, uint8_t*, int*, const uint8_t*, int);
  int (*EVP_EncryptFinal_ex)(void*, uint8_t*, int*);
  int (*EVP_DecryptInit_ex)(void*, const void*, void*, const uint8_t* key, const uint8_t* iv);
  int (*EVP_DecryptUpdate)(void*, uint8_t*, int*, const uint8_t*, int);
  int (*EVP_DecryptFinal_ex)(void*, uint8_t*, int*);
  uint8_t* (*HMAC)(const void* hash, const void* key, int key_bytes, const uint8_t* data,
                   size_t bytes, uint8_t* out, unsigned* out_bytes);
  int (*OPENSSL_init_crypto)(uint64_t options, const void* settings);
  void (*OPENSSL_cleanse)(void*, size_t);

  // The one of this process; nullptr with `error` where there is none. SLUICE_LIBSSL names another
  // file than libssl.so.3 or libssl.so.1.1.
  static const OpenSsl* get(std::string* error);
};

// What OpenSSL says went wrong last on this thread, which forgets it: "" when nothing.
std::string last_error(const OpenSsl& o);

}  // namespace sluice::tls
