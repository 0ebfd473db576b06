// The settings file: any text is settings or an error that names the file; what one setting's value reads as
// is read as the same again.
#include "runtime/settings.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "runtime/process.h"
#include "tests/fuzz/fuzzer.h"

namespace cenote::fuzz {
namespace {

void run(std::string_view text) {
  static const auto folder = TemporaryFolder::create("cenote-fuzz").value();
  static const std::string path = folder.file("cenote.toml");
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
  const auto loaded = Settings::load({.file = path, .environment = Environment{}});
  if (!loaded) {
    require(loaded.error().message().find("cenote.toml") != std::string::npos, "an error names its file");
    return;
  }
  Settings again;
  for (const auto& entry : loaded->entries())
    require(again.set(entry.description->name, entry.value, "again").has_value(), "what is shown is taken");
  const auto shown = loaded->entries(), reshown = again.entries();
  for (std::size_t i = 0; i < shown.size(); ++i)
    require(shown[i].value == reshown[i].value, "a value that is shown and set is shown the same");
}

Bytes text(std::string_view words) {
  const auto bytes = std::as_bytes(std::span(words));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

std::vector<Bytes> seeds() {
  return {text("[log]\nlevel = \"debug\"\n[tcp]\nhost = \"10.0.0.1\"\n"),
          text("verbs.timeout = 18\nverbs.devices = \"mlx5_0:1,mlx5_1\"\nverbs.relaxed_ordering = false\n"),
          text("[broker]\nlisten = \"0.0.0.0:7000\"\nagent_timeout = \"1500ms\"\n"),
          text("[agent]\ndevices = \"emulated:H200:256MiB\"\n[lease]\nttl = \"30s\"\n")};
}

}  // namespace cenote::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cenote::fuzz::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
