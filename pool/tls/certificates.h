// The pool's own certificates: one authority, and a certificate for each broker, agent and client that says
// which of the three its holder is. Files are PEM, mode 0600; keys are ECDSA P-256.
//
// A name is proven by role, not by host: the certificate of agent "b" carries the DNS name "b.agent.cenote",
// and who connects to that agent expects exactly this name. So an endpoint may move to another address, and
// neither an agent nor a client can pass for the broker.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/result.h"

namespace cenote::pool::tls {

enum class Role : std::uint8_t { broker, agent, client };
std::string_view to_string(Role role);
Result<Role> role_from(std::string_view text);

/// Who a certificate's holder is.
struct Identity {
  Role role = Role::client;
  std::string name;
  friend bool operator==(const Identity&, const Identity&) = default;
  /// "agent b"
  [[nodiscard]] std::string text() const;
  /// The DNS name that proves it: "b.agent.cenote"; for every broker "broker.cenote".
  [[nodiscard]] std::string dns_name() const;
};

/// The three files of one holder: the authority's certificate, its own, and its key.
struct Files {
  std::filesystem::path authority;
  std::filesystem::path certificate;
  std::filesystem::path key;
};

struct IssueOptions {
  std::vector<std::string>
      hosts;  ///< further names and addresses; localhost, 127.0.0.1 and ::1 are always there
  std::chrono::seconds valid_for = std::chrono::hours(24 * 825);
};

/// Makes `dir`/ca.pem and ca.key. Errors: already_exists rather than replacing an authority.
Result<void> create_authority(const std::filesystem::path& dir);

/// Issues `dir`/<role>-<name>.pem and .key, signed by the authority in `dir`. Replaces an earlier one of that
/// name. Errors: invalid_argument (a name is 1 to 63 letters, digits, '-', '_' or '.'), not_found (no
/// authority).
Result<Files> issue(const std::filesystem::path& dir, std::string_view name, Role role,
                    const IssueOptions& options = {});

/// Where issue() puts the files of that holder.
Files files_of(const std::filesystem::path& dir, std::string_view name, Role role);

}  // namespace cenote::pool::tls
