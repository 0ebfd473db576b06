// OpenSSL's objects with owners, for the two files that make and load certificates.
#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/result.h"

namespace cenote::pool::tls {

template <auto Free>
struct Freer {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freer<X509_EXTENSION_free>>;
using Bio = std::unique_ptr<BIO, Freer<BIO_free_all>>;

/// The first reason in OpenSSL's queue of this thread; empties the queue.
inline Error openssl_error(ErrorCode code, std::string stage) {
  std::array<char, 256> text{};
  const auto number = ERR_get_error();
  ERR_error_string_n(number, text.data(), text.size());
  ERR_clear_error();
  return Error{code, std::move(stage), number == 0 ? "OpenSSL gave no reason" : text.data()};
}

inline Bio reading(std::string_view text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

/// Null, with the reason in the queue, when `pem` holds none. Never asks for a pass phrase.
inline int no_pass_phrase(char*, int, int, void*) { return -1; }
inline Certificate parse_certificate(std::string_view pem) {
  return Certificate(PEM_read_bio_X509(reading(pem).get(), nullptr, no_pass_phrase, nullptr));
}
inline Key parse_private_key(std::string_view pem) {
  return Key(PEM_read_bio_PrivateKey(reading(pem).get(), nullptr, no_pass_phrase, nullptr));
}

}  // namespace cenote::pool::tls
