// A recorded machine: a text file of tests/data/machine that is unfolded into a folder with its /sys, /proc,
// /dev and /lib. A line each:
//
//   PATH = TEXT          a file; \n and \t in the text are such
//   PATH -> TARGET       a symbolic link
//   PATH hex BYTES...    a file of bytes: 0d, or 256*00 for as many
//   PATH absent          takes away what a line before it, or an included file, made
//   let NAME TEXT        $NAME stands for the text from then on
//   include FILE         the lines of another file of that folder
#pragma once

#include <string>

#include "runtime/machine_files.h"
#include "runtime/process.h"

namespace cenote::transport::verbs::test {

class RecordedMachine {
 public:
  /// Throws std::runtime_error: no such file, or a line that is none.
  explicit RecordedMachine(const std::string& name);
  [[nodiscard]] const std::string& root() const { return folder_.path(); }
  [[nodiscard]] MachineFiles files() const { return MachineFiles(root()); }
  /// One more line.
  void add(const std::string& line);

 private:
  void read(const std::string& name);
  TemporaryFolder folder_;
  std::vector<std::pair<std::string, std::string>> names_;
};

}  // namespace cenote::transport::verbs::test
