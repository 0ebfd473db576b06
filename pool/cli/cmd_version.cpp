#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "pool/cli/cli.h"
#include "pool/cli/version.h"

namespace cenote::pool::cli {

namespace {

constexpr const char* kVersion = CENOTE_VERSION;  // of the CMake project
#ifdef __clang__
constexpr const char* kCompiler = "clang " __clang_version__;
#else
constexpr const char* kCompiler = "g++ " __VERSION__;
#endif

}  // namespace

std::string version_text() { return std::string("cenote ") + kVersion + " (" + kCompiler + ")"; }

void add_version(CLI::App& app, Cli& cli) {
  auto* command = app.add_subcommand("version", "Print the version");
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "print JSON");
  command->callback([&cli, as_json] {
    cli.command = "version";
    cli.run = [as_json]() -> Result<int> {
      if (*as_json) {
        const nlohmann::json out = {{"version", kVersion}, {"compiler", kCompiler}};
        CENOTE_TRY(print(out.dump(2) + "\n"));
      } else {
        CENOTE_TRY(print(version_text() + "\n"));
      }
      return exit_ok;
    };
  });
}

}  // namespace cenote::pool::cli
