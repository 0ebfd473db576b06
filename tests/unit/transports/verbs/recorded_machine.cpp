#include "tests/unit/transports/verbs/recorded_machine.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "tests/test_paths.h"

namespace cenote::transport::verbs::test {
namespace {

namespace fs = std::filesystem;

void replace_all(std::string& text, const std::string& what, const std::string& with) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
}

std::string bytes_of(std::istringstream& words) {
  std::string out;
  for (std::string word; words >> word;) {
    const auto star = word.find('*');
    const auto count = star == std::string::npos ? 1 : std::stoul(word);
    const auto byte = std::stoul(star == std::string::npos ? word : word.substr(star + 1), nullptr, 16);
    out.append(count, static_cast<char>(byte));
  }
  return out;
}

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

}  // namespace

RecordedMachine::RecordedMachine(const std::string& name)
    : folder_(TemporaryFolder::create("machine").value()) {
  read(name);
}

void RecordedMachine::read(const std::string& name) {
  const auto path = std::string(CENOTE_SOURCE_DIR) + "/tests/data/machine/" + name + ".txt";
  std::ifstream file(path);
  if (!file) throw std::runtime_error("no recorded machine " + path);
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] != '#') add(line);
}

void RecordedMachine::add(const std::string& line) {
  std::string whole = line;
  for (const auto& [name, text] : names_) replace_all(whole, "$" + name, text);
  std::istringstream words(whole);
  std::string first, what, rest;
  words >> first >> what;
  if (first == "include") return read(what);
  if (first == "let") {
    std::getline(words >> std::ws, rest);
    names_.emplace_back(what, rest);
    return;
  }
  if (first.empty() || first[0] != '/') throw std::runtime_error("not a line of a recorded machine: " + line);
  const fs::path path(root() + first);
  if (what == "absent") {
    if (fs::remove_all(path) == 0) throw std::runtime_error("nothing to take away: " + line);
    return;
  }
  fs::create_directories(path.parent_path());
  if (what == "hex") return write(path, bytes_of(words));
  std::getline(words >> std::ws, rest);
  if (what == "->") {
    fs::remove(path);
    return fs::create_symlink(rest, path);
  }
  if (what != "=") throw std::runtime_error("not a line of a recorded machine: " + line);
  replace_all(rest, "\\n", "\n");
  replace_all(rest, "\\t", "\t");
  write(path, rest + "\n");
}

}  // namespace cenote::transport::verbs::test
