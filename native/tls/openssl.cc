// SPDX-License-Identifier: Apache-2.0
#include "tls/openssl.h"

#include <dlfcn.h>
#include <stdlib.h>

namespace sluice::tls {

namespace {

// Sanitizers do not work with libraries that bind to themselves first.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kDeep = 0;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr int kDeep = 0;
#else
constexpr int kDeep = RTLD_DEEPBIND;
#endif
#else
constexpr int kDeep = RTLD_DEEPBIND;
#endif

constexpr uint64_t kNoAtExit = 0x00080000;  // a session's last words come after other exit handlers

struct Loaded {
  OpenSsl functions{};
  std::string error;
};

Loaded load() {
  Loaded l;
  const char* named = secure_getenv("SLUICE_LIBSSL");
  const char* names[] = {"libssl.so.3", "libssl.so.1.1"};
  void* library = nullptr;
  if (named && *named) {
    library = dlopen(named, RTLD_NOW | RTLD_LOCAL | kDeep);
  } else {
    for (const char* name : names)
      if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL | kDeep);
  }
  if (!library) {
    l.error =
        "TLS is wanted, and there is no OpenSSL here (libssl.so.3 or libssl.so.1.1): install it, "
        "or name its libssl in SLUICE_LIBSSL";
    return l;
  }
  const auto find = [&](const char* name, auto* to) {
    *to = reinterpret_cast<std::remove_pointer_t<decltype(to)>>(dlsym(library, name));
    if (!*to && l.error.empty())
      l.error = std::string("TLS is wanted, and the OpenSSL here is too old (it lacks ") + name +
                "): install OpenSSL 1.1.1 or later";
  };
  OpenSsl& o = l.functions;
#define SLUICE_FIND(name) find(#name, &o.name)
  SLUICE_FIND(TLS_client_method);
  SLUICE_FIND(SSL_CTX_new);
  SLUICE_FIND(SSL_CTX_free);
  SLUICE_FIND(SSL_CTX_ctrl);
  SLUICE_FIND(SSL_CTX_set_ciphersuites);
  SLUICE_FIND(SSL_CTX_set_keylog_callback);
  SLUICE_FIND(SSL_CTX_load_verify_locations);
  SLUICE_FIND(SSL_CTX_set_default_verify_paths);
  SLUICE_FIND(SSL_CTX_get_cert_store);
  SLUICE_FIND(SSL_CTX_set_verify);
  SLUICE_FIND(SSL_new);
  SLUICE_FIND(SSL_free);
  SLUICE_FIND(SSL_set_bio);
  SLUICE_FIND(SSL_connect);
  SLUICE_FIND(SSL_read);
  SLUICE_FIND(SSL_write);
  SLUICE_FIND(SSL_get_error);
  SLUICE_FIND(SSL_ctrl);
  SLUICE_FIND(SSL_set1_host);
  SLUICE_FIND(SSL_get0_param);
  SLUICE_FIND(SSL_get_verify_result);
  SLUICE_FIND(SSL_get_current_cipher);
  SLUICE_FIND(SSL_CIPHER_get_protocol_id);
  SLUICE_FIND(SSL_set_ex_data);
  SLUICE_FIND(SSL_get_ex_data);
  SLUICE_FIND(X509_VERIFY_PARAM_set1_ip_asc);
  SLUICE_FIND(X509_verify_cert_error_string);
  SLUICE_FIND(PEM_read_bio_X509);
  SLUICE_FIND(X509_STORE_add_cert);
  SLUICE_FIND(X509_free);
  SLUICE_FIND(BIO_new);
  SLUICE_FIND(BIO_free);
  SLUICE_FIND(BIO_s_mem);
  SLUICE_FIND(BIO_read);
  SLUICE_FIND(BIO_write);
  SLUICE_FIND(ERR_get_error);
  SLUICE_FIND(ERR_reason_error_string);
  SLUICE_FIND(ERR_clear_error);
  SLUICE_FIND(EVP_CIPHER_CTX_new);
  SLUICE_FIND(EVP_CIPHER_CTX_free);
  SLUICE_FIND(EVP_CIPHER_CTX_ctrl);
  SLUICE_FIND(EVP_aes_128_gcm);
  SLUICE_FIND(EVP_aes_256_gcm);
  SLUICE_FIND(EVP_sha256);
  SLUICE_FIND(EVP_sha384);
  SLUICE_FIND(EVP_EncryptInit_ex);
  SLUICE_FIND(EVP_EncryptUpdate);
  SLUICE_FIND(EVP_EncryptFinal_ex);
  SLUICE_FIND(EVP_DecryptInit_ex);
  SLUICE_FIND(EVP_DecryptUpdate);
  SLUICE_FIND(EVP_DecryptFinal_ex);
  SLUICE_FIND(HMAC);
  SLUICE_FIND(OPENSSL_init_crypto);
  SLUICE_FIND(OPENSSL_cleanse);
#undef SLUICE_FIND
  if (l.error.empty()) o.OPENSSL_init_crypto(kNoAtExit, nullptr);
  return l;
}

}  // namespace

const OpenSsl* OpenSsl::get(std::string* error) {
  static const Loaded loaded = load();  // stays for the process's life
  if (loaded.error.empty()) return &loaded.functions;
  *error = loaded.error;
  return nullptr;
}

std::string last_error(const OpenSsl& o) {
  const unsigned long code = o.ERR_get_error();
  const char* reason = code ? o.ERR_reason_error_string(code) : nullptr;
  o.ERR_clear_error();
  return reason ? reason : "";
}

}  // namespace sluice::tls
