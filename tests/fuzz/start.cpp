// Before the first run: the seeds go into a folder of their own, which libFuzzer is told to read, and which
// is gone at the end.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/fuzz/fuzzer.h"

namespace {

/// Lives until the process exits.
class SeedFolder {
 public:
  SeedFolder() : owner_(::getpid()) {
    auto pattern = (std::filesystem::temp_directory_path() / "cenote-seeds-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) {
      std::perror("a folder for the seeds");
      std::exit(1);
    }
    path_ = pattern;
    std::size_t number = 0;
    for (const auto& seed : cenote::fuzz::seeds()) {
      std::ofstream file(path_ + "/" + std::to_string(number++), std::ios::binary);
      file.write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
    }
  }
  ~SeedFolder() {
    if (::getpid() != owner_) return;
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  SeedFolder(const SeedFolder&) = delete;
  SeedFolder& operator=(const SeedFolder&) = delete;
  [[nodiscard]] std::string& path() { return path_; }

 private:
  pid_t owner_;
  std::string path_;
};

}  // namespace

// Given a file or folder, the fuzzer runs that instead: how a kept input is repeated.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    if ((*argv)[i][0] != '-') return 0;
  }
  static SeedFolder folder;
  static std::vector<char*> arguments(*argv, *argv + *argc);
  arguments.push_back(folder.path().data());
  arguments.push_back(nullptr);
  *argc += 1;
  *argv = arguments.data();
  return 0;
}
