#include "pool/client/identity.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <vector>

namespace cenote::pool::client {

namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& dir, tls::Role role) {
  std::vector<std::string> names;
  const auto prefix = std::string(tls::to_string(role)) + "-";
  std::error_code ignored;
  for (auto entry = fs::directory_iterator(dir, ignored); entry != fs::directory_iterator();
       entry.increment(ignored)) {
    const auto file = entry->path().filename().string();
    if (file.starts_with(prefix) && file.ends_with(".pem")) {
      names.push_back(file.substr(prefix.size(), file.size() - prefix.size() - 4));
    }
    if (ignored) break;
  }
  return names;
}

}  // namespace

Result<tls::Files> find_certificate(const Settings& settings, tls::Role role, const std::string& name) {
  const auto& text = settings.text("tls.dir");
  const auto stage = fmt::format("load the certificate of this {}", tls::to_string(role));
  if (text.empty()) {
    return fail(Error{ErrorCode::invalid_argument, stage, "setting tls.dir is empty"}.fix(
        "make certificates with: cenote broker --init-tls --set tls.dir=DIR, and give --set tls.dir=DIR"));
  }
  const fs::path dir(text);
  std::error_code ignored;
  if (name.empty() && fs::exists(dir / "cert.pem", ignored)) {
    return tls::Files{dir / "ca.pem", dir / "cert.pem", dir / "key.pem"};
  }
  if (!name.empty()) return tls::files_of(dir, name, role);
  const auto names = names_in(dir, role);
  if (names.size() == 1) return tls::files_of(dir, names.front(), role);
  if (names.empty()) {
    return fail(
        Error{ErrorCode::not_found, stage,
              fmt::format("there is neither cert.pem nor {}-NAME.pem in {}", tls::to_string(role), text)}
            .fix("on the broker's machine: cenote broker --init-tls, then copy the files it names"));
  }
  return fail(Error{ErrorCode::invalid_argument, stage,
                    fmt::format("{} holds the certificates of {} {}s: {}", text, names.size(),
                                tls::to_string(role), fmt::join(names, ", "))}
                  .fix("keep one, or copy it to cert.pem and key.pem"));
}

Result<tls::Credentials> load_credentials(const Settings& settings, tls::Role role, const std::string& name) {
  CENOTE_ASSIGN(const auto files, find_certificate(settings, role, name));
  return tls::load_as(files, role);
}

}  // namespace cenote::pool::client
