"""The binary interface of libcenote and libcenote-pool is that of the dumps beside this file.

usage: test_abi.py BUILD_FOLDER. Needs abigail-tools; skipped without.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools/dev")]
import abi  # noqa: E402  (the path is set above)
import counted  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()

HEADER = "typedef struct options { unsigned long size; int rank; } options;\nint start(const options*); int stop(int);\n"
SOURCE = '#include "sample.h"\nint start(const options* o) { return o->rank; }\nint stop(int a) { return a; }\n'


@unittest.skipUnless(shutil.which("abidw") and shutil.which("abidiff"), "abidw is missing: install abigail-tools (./dev setup test)")
class Interface(unittest.TestCase):
    def sample(self, folder, name, header=HEADER, source=SOURCE):
        """A dump of a library with that source."""
        where = pathlib.Path(folder, name)
        (where / "include").mkdir(parents=True)
        (where / "include/sample.h").write_text(header)
        (where / "sample.c").write_text(source)
        subprocess.run(["gcc", "-g", "-shared", "-fPIC", "-I", where / "include", where / "sample.c", "-o", where / "sample.so"],
                       check=True)
        abi.dump(where / "sample.so", where / "include", where / "sample.abi")
        return where / "sample.abi"

    def test_is_that_of_the_stored_dumps(self):
        found = abi.check(BUILD)
        self.assertEqual([], found, "\n\n" + "\n\n".join(found))

    def test_the_dumps_know_types_and_name_no_folder(self):
        text = abi.dump_of("cenote").read_text()
        for known in ("cenote_comm_options", "cenote_window_options", "operation_timeout_ms", "CENOTE_PEER_FAILED", "cenote_put"):
            self.assertIn(known, text)
        self.assertIn("cenote_lease_options", abi.dump_of("cenote-pool").read_text())
        for name in abi.LIBRARIES:
            self.assertNotIn(str(ROOT), abi.dump_of(name).read_text())

    def test_what_changed_is_said_in_words(self):
        with tempfile.TemporaryDirectory() as folder:
            old = self.sample(folder, "old")
            self.assertEqual("", abi.changes(old, self.sample(folder, "same")))
            cases = {
                "longer": (HEADER.replace("int rank;", "int rank; long id;"), SOURCE, "long int id", "unless"),
                "retyped": (HEADER.replace("stop(int)", "stop(long)"), SOURCE.replace("stop(int a)", "stop(long a)"), "stop", "unless"),
                "gone": (HEADER.replace("int stop(int);", ""), SOURCE.split("int stop")[0], "stop", "raise the major version"),
                "added": (HEADER + "int more(void);\n", SOURCE + "int more(void) { return 1; }\n", "more", "run on"),
            }
            for name, (header, source, word, meaning) in cases.items():
                with self.subTest(name):
                    said = abi.changes(old, self.sample(folder, name, header, source))
                    self.assertIn(word, said)
                    told = abi.verdict("cenote", said)
                    self.assertIn(meaning, told)
                    self.assertIn("--update", told)


if __name__ == "__main__":
    counted.main()
