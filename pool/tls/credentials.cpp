#include "pool/tls/credentials.h"

#include <sys/stat.h>

#include "pool/key_file.h"
#include "pool/tls/openssl.h"

namespace cenote::pool::tls {
namespace {

std::string subject_field(const X509* certificate, int id) {
  std::array<char, 256> text{};
  const auto size = X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), id, text.data(),
                                              static_cast<int>(text.size()));
  return size < 0 ? std::string() : std::string(text.data(), static_cast<std::size_t>(size));
}

std::string time_text(const ASN1_TIME* time) {
  const Bio out(BIO_new(BIO_s_mem()));
  if (!out || ASN1_TIME_print(out.get(), time) != 1) return "an unreadable time";
  char* data = nullptr;
  const auto size = BIO_get_mem_data(out.get(), &data);
  return {data, static_cast<std::size_t>(size)};
}

Result<Identity> identity_of(const X509* certificate) {
  const auto role = role_from(subject_field(certificate, NID_organizationalUnitName));
  auto name = subject_field(certificate, NID_commonName);
  if (!role || name.empty()) {
    return fail(Error{ErrorCode::permission_denied, "read a certificate's holder",
                      "its subject needs an OU of broker, agent or client, and a CN"}
                    .fix("issue it with: cenote broker --init-tls"));
  }
  return Identity{*role, std::move(name)};
}

Result<void> check_validity(const X509* certificate, const std::string& stage) {
  const auto* begins = X509_get0_notBefore(certificate);
  const auto* ends = X509_get0_notAfter(certificate);
  if (X509_cmp_current_time(begins) > 0) {
    return fail(Error{ErrorCode::permission_denied, stage, "it is not valid before " + time_text(begins)}.fix(
        "set this machine's clock"));
  }
  if (X509_cmp_current_time(ends) < 0) {
    return fail(Error{ErrorCode::permission_denied, stage, "it expired on " + time_text(ends)}.fix(
        "issue a new one from the pool's authority"));
  }
  return {};
}

Result<void> check_key_mode(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};  // reading it names the error
  if ((status.st_mode & 077U) == 0) return {};
  return fail(
      Error{ErrorCode::permission_denied, "load key " + path.string(), "others than its owner may use it"}
          .fix("chmod 600 " + path.string()));
}

}  // namespace

Result<Identity> identity_of(std::string_view certificate_pem) {
  const auto certificate = parse_certificate(certificate_pem);
  if (!certificate) return fail(openssl_error(ErrorCode::protocol_error, "read a certificate"));
  return identity_of(certificate.get());
}

Result<Credentials> load(const Files& files) {
  const auto stage = "load certificate " + files.certificate.string();
  CENOTE_TRY(check_key_mode(files.key));
  CENOTE_ASSIGN(auto authority_pem, read_file(files.authority));
  CENOTE_ASSIGN(auto certificate_pem, read_file(files.certificate));
  CENOTE_ASSIGN(auto key_pem, read_file(files.key));

  const auto authority = parse_certificate(authority_pem);
  if (!authority)
    return fail(openssl_error(ErrorCode::protocol_error, "load authority " + files.authority.string()));
  CENOTE_TRY(check_validity(authority.get(), "load authority " + files.authority.string()));
  const auto certificate = parse_certificate(certificate_pem);
  if (!certificate) return fail(openssl_error(ErrorCode::protocol_error, stage));
  CENOTE_TRY(check_validity(certificate.get(), stage));
  const auto key = parse_private_key(key_pem);
  if (!key) return fail(openssl_error(ErrorCode::protocol_error, "load key " + files.key.string()));
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    ERR_clear_error();
    return fail(ErrorCode::permission_denied, stage, files.key.string() + " is not its key");
  }
  const Key authority_key(X509_get_pubkey(authority.get()));
  if (!authority_key || X509_verify(certificate.get(), authority_key.get()) != 1) {
    ERR_clear_error();
    return fail(Error{ErrorCode::permission_denied, stage,
                      "the authority in " + files.authority.string() + " did not sign it"}
                    .fix("use the certificate and the authority of one pool"));
  }
  auto identity = identity_of(certificate.get());
  if (!identity) {
    identity.error().stage = stage;
    return fail(std::move(identity).error());
  }
  return Credentials{std::move(authority_pem), std::move(certificate_pem), std::move(key_pem),
                     *std::move(identity)};
}

Result<Credentials> load_as(const Files& files, Role role) {
  CENOTE_ASSIGN(auto credentials, load(files));
  if (credentials.identity.role != role) {
    return fail(
        ErrorCode::permission_denied, "load certificate " + files.certificate.string(),
        "it is of " + credentials.identity.text() + ", not of the role " + std::string(to_string(role)));
  }
  return credentials;
}

}  // namespace cenote::pool::tls
