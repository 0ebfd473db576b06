"""What ./dev lint reads, reads again and counts, with a stand-in for clang-tidy that finds the word BAD."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import counted  # noqa: E402  (the path is set above)

STAND_IN = """#!/bin/bash
folder=$(dirname "$0")
[ "$1" = --version ] && exec cat "$folder/version"
file=${@: -1}
echo "$(basename "$file")" >> "$folder/read"
grep -q CRASH "$file" && kill -SEGV $$
grep -q SAVED "$file" && echo '// as the editor saves it' > "$file"
found=0
for part in "$file" "$folder"/*.h; do
  [ "$part" = "$file" ] || grep -q "$(basename "$part")" "$file" || continue
  if grep -q BAD "$part"; then
    echo "$part:1:1: error: this is bad [bugprone-bad,-warnings-as-errors]"
    echo "$part:1:1: note: because it says so"
    found=1
  fi
done
exit $found
"""


class Lint(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        self.write("tidy", STAND_IN)
        (self.folder / "tidy").chmod(0o700)
        self.write("version", "16.0.6")
        self.write("rules", "Checks: bugprone-*")
        self.write("both.h", "#pragma once\nint shared();\n")
        self.write("one.h", "#pragma once\n")
        self.write("a.cpp", '#include "both.h"\n#include "one.h"\n')
        self.write("b.cpp", '#include "both.h"\n')
        self.compile_with("")

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def compile_with(self, flags):
        entries = [{"directory": str(self.folder), "file": f"{name}.cpp", "command": f"c++ {flags} -o {name}.o -c {name}.cpp"}
                   for name in ("a", "b")]
        self.write("compile_commands.json", json.dumps(entries))

    def lint(self, *files):
        """What tidy.py did: its exit, its words, and the files that clang-tidy was given."""
        (self.folder / "read").unlink(missing_ok=True)
        done = subprocess.run([sys.executable, ROOT / "tools/dev/tidy.py", "--build", self.folder, "--cache", self.folder / "cache",
                               "--rules", self.folder / "rules", "--tidy", self.folder / "tidy", *(files or ("a.cpp", "b.cpp"))],
                              cwd=self.folder, capture_output=True, text=True, timeout=120)
        self.assertEqual("", done.stderr if done.returncode == 0 else "")
        read = self.folder / "read"
        return done.returncode, done.stdout + done.stderr, sorted(read.read_text().split()) if read.exists() else []

    def test_reads_every_file_and_says_how_far_it_is(self):
        status, said, read = self.lint()
        self.assertEqual((0, ["a.cpp", "b.cpp"]), (status, read))
        self.assertIn("1 of 2", said)
        self.assertIn("2 of 2", said)
        self.assertIn("2 files, 0 findings in 0 files", said)

    def test_does_not_read_again_what_was_clean(self):
        self.lint()
        status, said, read = self.lint()
        self.assertEqual((0, []), (status, read))
        self.assertIn("2 files, 2 unchanged since they were clean, 0 to read", said)

    def test_reads_again_a_file_that_changed_be_it_by_a_comment(self):
        self.lint()
        self.write("b.cpp", '#include "both.h"\n// NOLINT\n')
        self.assertEqual(["b.cpp"], self.lint()[2])

    def test_reads_again_what_includes_a_changed_header(self):
        self.lint()
        self.write("one.h", "#pragma once\nint one();\n")
        self.assertEqual(["a.cpp"], self.lint()[2])
        self.write("both.h", "#pragma once\nint both();\n")
        self.assertEqual(["a.cpp", "b.cpp"], self.lint()[2])

    def test_reads_again_after_a_change_of_the_rules_the_version_or_the_flags(self):
        self.lint()
        self.write("rules", "Checks: performance-*")
        self.assertEqual(["a.cpp", "b.cpp"], self.lint()[2])
        self.write("version", "16.0.7")
        self.assertEqual(["a.cpp", "b.cpp"], self.lint()[2])
        self.compile_with("-DOTHER")
        self.assertEqual(["a.cpp", "b.cpp"], self.lint()[2])
        self.assertEqual([], self.lint()[2])

    def test_fails_with_the_finding_and_the_number_per_file(self):
        self.write("b.cpp", '#include "both.h"\n// BAD\n')
        status, said, _ = self.lint()
        self.assertEqual(1, status)
        self.assertIn("b.cpp:1:1: error: this is bad", said)
        self.assertIn("note: because it says so", said)
        self.assertIn("   1 b.cpp\n2 files, 1 findings in 1 files", said)

    def test_counts_a_finding_in_a_header_once(self):
        self.write("both.h", "#pragma once // BAD\n")
        status, said, _ = self.lint()
        self.assertEqual((1, 1), (status, said.count("error: this is bad")))
        self.assertIn("   1 both.h\n2 files, 1 findings in 1 files", said)

    def test_reads_a_file_with_findings_each_time_until_it_is_clean(self):
        self.write("b.cpp", "// BAD\n")
        self.lint()
        self.assertEqual((1, ["b.cpp"]), self.lint()[::2])
        self.write("b.cpp", "\n")
        self.assertEqual((0, ["b.cpp"]), self.lint()[::2])
        self.assertEqual((0, []), self.lint()[::2])

    def test_does_not_take_a_crash_for_clean(self):
        self.write("a.cpp", "// CRASH\n")
        for _ in range(2):
            status, said, read = self.lint("a.cpp")
            self.assertEqual((1, ["a.cpp"]), (status, read))
            self.assertIn("not read", said)
            self.assertIn("   1 a.cpp", said)

    def test_does_not_take_for_clean_what_changed_while_it_was_read(self):
        self.write("a.cpp", "// BAD, SAVED\n")
        self.assertEqual((0, ["a.cpp"]), self.lint("a.cpp")[::2])
        self.write("a.cpp", "// BAD, SAVED\n")
        self.assertEqual(["a.cpp"], self.lint("a.cpp")[2])

    def test_names_what_the_build_does_not_know(self):
        self.write("c.cpp", "// BAD\n")
        status, said, read = self.lint("a.cpp", "c.cpp")
        self.assertEqual((0, ["a.cpp"]), (status, read))
        self.assertIn(f"not part of {self.folder}, not read: c.cpp", said)
        self.assertEqual(1, self.lint("c.cpp")[0])


if __name__ == "__main__":
    counted.main()
