#include "pool/tls/certificates.h"

#include <arpa/inet.h>
#include <openssl/rand.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>

#include "pool/key_file.h"
#include "pool/tls/openssl.h"

namespace cenote::pool::tls {
namespace {

constexpr long kClockSkewSeconds = 300;  // a holder's clock may lag the authority's
constexpr long kAuthoritySeconds = 3650L * 24 * 3600;

template <class Write>
Result<std::string> to_pem(const std::string& stage, Write write) {
  const Bio out(BIO_new(BIO_s_mem()));
  if (!out || write(out.get()) != 1) return fail(openssl_error(ErrorCode::internal, stage));
  char* data = nullptr;
  const auto size = BIO_get_mem_data(out.get(), &data);
  return std::string(data, static_cast<std::size_t>(size));
}

bool add_name(X509_NAME* name, const char* field, std::string_view text) {
  return X509_NAME_add_entry_by_txt(name, field, MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(text.data()),
                                    static_cast<int>(text.size()), -1, 0) == 1;
}

bool set_serial(X509* certificate) {
  std::array<unsigned char, 16> random{};
  if (RAND_bytes(random.data(), random.size()) != 1) return false;
  random[0] &= 0x7fU;  // positive, as RFC 5280 asks
  random[0] |= 0x40U;
  const std::unique_ptr<BIGNUM, Freer<BN_free>> number(BN_bin2bn(random.data(), random.size(), nullptr));
  return number && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool add_extension(X509* certificate, X509* issuer, int id, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509V3_set_ctx_nodb(&context);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str()));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

/// A certificate with everything but its extensions and signature.
Certificate blank(EVP_PKEY* key, const X509_NAME* issuer, long valid_seconds) {
  Certificate certificate(X509_new());
  const bool good = certificate && X509_set_version(certificate.get(), X509_VERSION_3) == 1 &&
                    set_serial(certificate.get()) &&
                    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kClockSkewSeconds) != nullptr &&
                    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), valid_seconds) != nullptr &&
                    X509_set_pubkey(certificate.get(), key) == 1 &&
                    (issuer == nullptr || X509_set_issuer_name(certificate.get(), issuer) == 1);
  return good ? std::move(certificate) : nullptr;
}

bool is_address(const std::string& host) {
  std::array<unsigned char, 16> address{};
  return inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= 63 && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
}

bool is_host(std::string_view host) {  // nothing that OpenSSL's extension syntax would read as another entry
  return !host.empty() && std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '.' || c == ':' || c == '*' || c == '_';
  });
}

std::string alternative_names(const Identity& identity, const std::vector<std::string>& hosts) {
  std::string names = "DNS:" + identity.dns_name() + ",DNS:localhost,IP:127.0.0.1,IP:::1";
  for (const auto& host : hosts) names += (is_address(host) ? ",IP:" : ",DNS:") + host;
  return names;
}

struct Authority {
  Certificate certificate;
  Key key;
};

Result<Authority> load_authority(const std::filesystem::path& dir) {
  const auto stage = "load the authority in " + dir.string();
  CENOTE_ASSIGN(const auto certificate_pem, read_file(dir / "ca.pem"));
  CENOTE_ASSIGN(const auto key_pem, read_file(dir / "ca.key"));
  Authority authority{parse_certificate(certificate_pem), parse_private_key(key_pem)};
  if (!authority.certificate || !authority.key) return fail(openssl_error(ErrorCode::protocol_error, stage));
  if (X509_check_private_key(authority.certificate.get(), authority.key.get()) != 1) {
    ERR_clear_error();
    return fail(ErrorCode::permission_denied, stage, "ca.key is not the key of ca.pem");
  }
  return authority;
}

Result<Certificate> make_certificate(const Authority& authority, EVP_PKEY* key, const Identity& identity,
                                     const IssueOptions& options) {
  const auto stage = "issue a certificate for " + identity.text();
  auto certificate = blank(key, X509_get_subject_name(authority.certificate.get()),
                           static_cast<long>(options.valid_for.count()));
  if (!certificate) return fail(openssl_error(ErrorCode::internal, stage));
  auto* raw = certificate.get();
  auto* issuer = authority.certificate.get();
  auto* subject = X509_get_subject_name(raw);
  const bool good =
      add_name(subject, "O", "Cenote") && add_name(subject, "OU", to_string(identity.role)) &&
      add_name(subject, "CN", identity.name) &&
      add_extension(raw, issuer, NID_basic_constraints, "critical,CA:FALSE") &&
      add_extension(raw, issuer, NID_key_usage, "critical,digitalSignature") &&
      add_extension(raw, issuer, NID_ext_key_usage,
                    identity.role == Role::client ? "clientAuth" : "serverAuth,clientAuth") &&
      add_extension(raw, issuer, NID_authority_key_identifier, "keyid:always") &&
      add_extension(raw, issuer, NID_subject_alt_name, alternative_names(identity, options.hosts)) &&
      X509_sign(raw, authority.key.get(), EVP_sha256()) > 0;
  if (!good) return fail(openssl_error(ErrorCode::internal, stage));
  return certificate;
}

Result<void> write_pair(const Files& files, X509* certificate, EVP_PKEY* key) {
  const auto stage = "write " + files.certificate.string();
  CENOTE_ASSIGN(const auto certificate_pem,
                to_pem(stage, [&](BIO* out) { return PEM_write_bio_X509(out, certificate); }));
  CENOTE_ASSIGN(auto key_pem, to_pem(stage, [&](BIO* out) {
                  return PEM_write_bio_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr);
                }));
  auto written = write_private_file(files.key, key_pem);
  OPENSSL_cleanse(key_pem.data(), key_pem.size());
  CENOTE_TRY(std::move(written));
  return write_private_file(files.certificate, certificate_pem);
}

}  // namespace

std::string_view to_string(Role role) {
  switch (role) {
    case Role::broker:
      return "broker";
    case Role::agent:
      return "agent";
    case Role::client:
      return "client";
  }
  return "unknown role";
}

Result<Role> role_from(std::string_view text) {
  for (const auto role : {Role::broker, Role::agent, Role::client}) {
    if (text == to_string(role)) return role;
  }
  return fail(ErrorCode::invalid_argument, "read a role",
              "\"" + std::string(text) + "\" is none of broker, agent, client");
}

std::string Identity::text() const { return std::string(to_string(role)) + " " + name; }

std::string Identity::dns_name() const {
  return role == Role::broker ? "broker.cenote" : name + "." + std::string(to_string(role)) + ".cenote";
}

Files files_of(const std::filesystem::path& dir, std::string_view name, Role role) {
  const auto stem = std::string(to_string(role)) + "-" + std::string(name);
  return {dir / "ca.pem", dir / (stem + ".pem"), dir / (stem + ".key")};
}

Result<void> create_authority(const std::filesystem::path& dir) {
  const auto stage = "create an authority in " + dir.string();
  std::error_code failed;
  if (std::filesystem::exists(dir / "ca.key", failed) || std::filesystem::exists(dir / "ca.pem", failed)) {
    return fail(Error{ErrorCode::already_exists, stage, "there is one already"}.fix(
        "issue from it, or choose another folder: replacing it would cut off everyone it certified"));
  }
  std::filesystem::create_directories(dir, failed);
  if (failed) return fail(system_error(stage, failed.value()));
  ::chmod(dir.c_str(), 0700);

  const Key key(EVP_EC_gen("P-256"));
  if (!key) return fail(openssl_error(ErrorCode::internal, stage));
  const auto certificate = blank(key.get(), nullptr, kAuthoritySeconds);
  if (!certificate) return fail(openssl_error(ErrorCode::internal, stage));
  auto* raw = certificate.get();
  auto* subject = X509_get_subject_name(raw);
  const bool good = add_name(subject, "O", "Cenote") && add_name(subject, "CN", "Cenote pool authority") &&
                    X509_set_issuer_name(raw, subject) == 1 &&
                    add_extension(raw, raw, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
                    add_extension(raw, raw, NID_key_usage, "critical,keyCertSign,cRLSign") &&
                    add_extension(raw, raw, NID_subject_key_identifier, "hash") &&
                    X509_sign(raw, key.get(), EVP_sha256()) > 0;
  if (!good) return fail(openssl_error(ErrorCode::internal, stage));
  return write_pair({.authority = {}, .certificate = dir / "ca.pem", .key = dir / "ca.key"}, raw, key.get());
}

Result<Files> issue(const std::filesystem::path& dir, std::string_view name, Role role,
                    const IssueOptions& options) {
  const auto stage =
      "issue a certificate for " + std::string(to_string(role)) + " \"" + std::string(name) + "\"";
  if (!is_name(name)) {
    return fail(ErrorCode::invalid_argument, stage, "a name is 1 to 63 letters, digits, '-', '_' or '.'");
  }
  for (const auto& host : options.hosts) {
    if (!is_host(host))
      return fail(ErrorCode::invalid_argument, stage, "\"" + host + "\" is no host name or address");
  }
  CENOTE_ASSIGN(const auto authority, load_authority(dir));
  const Key key(EVP_EC_gen("P-256"));
  if (!key) return fail(openssl_error(ErrorCode::internal, stage));
  const Identity identity{role, std::string(name)};
  CENOTE_ASSIGN(const auto certificate, make_certificate(authority, key.get(), identity, options));
  auto files = files_of(dir, name, role);
  CENOTE_TRY(write_pair(files, certificate.get(), key.get()));
  return files;
}

}  // namespace cenote::pool::tls
