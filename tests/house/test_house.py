"""Holds the tree to the rules of the house, and each rule to its word: a rule that a bad sample does not break, or
that a good one does, fails here.

    python3 tests/house/test_house.py
"""

import os
import pathlib
import re
import sys
import unittest

import rules

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import counted  # noqa: E402  (the path is set above)

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = {"build", ".git", ".cache", "__pycache__"}

# rule, path, text, lines that it must report (none = it must accept)
SAMPLES = [
    ("direction", "runtime/a.cpp", '#include "runtime/b.h"\n#include "cenote/types.h"\n#include <vector>\n', []),
    ("direction", "runtime/a.cpp", '\n#include "transports/transport.h"\n', [2]),
    ("direction", "runtime/a.cpp", '#  include  "cuda/driver.h"  // why not\n', [1]),
    ("direction", "transports/a.cpp", '#include "cuda/driver.h"\n', [1]),
    ("direction", "cuda/a.cpp", '#include "transports/transport.h"\n', [1]),
    ("direction", "cuda/a.cpp", '#include "runtime/result.h"\n#include <cuda.h>\n', []),
    ("direction", "collectives/a.h", '#include "transports/fabric.h"\n#include "cuda/driver.h"\n', []),
    ("direction", "collectives/a.h", '#include "pool/lease_token.h"\n', [1]),
    ("direction", "pool/a.cpp", '#include "perf/harness.h"\n#include "tests/unit/x.h"\n', [1, 2]),
    ("direction", "pool/a.cpp", '#include "pool/proto/cenote.grpc.pb.h"\n#include "cenote.pb.h"\n', []),
    ("direction", "examples/a.c", '#include "a.ptx.h"\n#include "runtime/result.h"\n#include "../b.h"\n', [3]),
    ("direction", "pool/a.cpp", '#include "lease_token.h"\n#include "../runtime/result.h"\n', [1, 2]),
    ("direction", "cuda/kernels/a.cu", '#include "a_layout.h"\n#include "transports/a.h"\n', [2]),
    ("direction", "pool/a.cpp", '#include <runtime/result.h>\n', [1]),
    ("direction", "pool/a.cpp", '// #include "perf/harness.h"\n/* #include "perf/harness.h"\n*/\n', []),
    ("direction", "include/cenote/a.h", '#include "runtime/result.h"\n#include "cenote/types.h"\n', [1]),
    ("direction", "tests/unit/pool/a.cpp", '#include "pool/a.h"\n#include "perf/harness.h"\n', []),
    ("libraries", "runtime/a.cpp", '#include <openssl/evp.h>\n#include <grpcpp/grpcpp.h>\n', [1, 2]),
    ("libraries", "transports/a.cpp", '#include <google/protobuf/message.h>\n#include "pool/proto/x.pb.h"\n', [1, 2]),
    ("libraries", "pool/a.cpp", '#include <openssl/evp.h>\n', []),
    ("libraries", "runtime/a.cpp", '#include <sys/socket.h>\n', []),
    ("light_headers", "runtime/a.h", '#include <spdlog/spdlog.h>\n#include <hwloc.h>\n#include <toml++/toml.h>\n', [1, 2, 3]),
    ("light_headers", "runtime/a.cpp", '#include <spdlog/spdlog.h>\n', []),
    ("light_headers", "runtime/a.h", '#include <string>\n', []),
    ("process", "runtime/a.cpp", 'auto x = std::getenv("HOME");\nsetenv("A", "b", 1);\nextern char** environ;\n', [1, 2, 3]),
    ("process", "runtime/a.cpp", "if (bad) abort();\nstd::exit(1);\n::_exit(1);\nstd::terminate();\nassert(x);\n", [1, 2, 3, 4, 5]),
    ("process", "pool/a.cpp", "// abort();\nauto s = \"exit(1)\"; /* getenv( */\nauto r = R\"(abort();\nabort();)\";\n", []),
    ("process", "pool/a.cpp", "c->abort();\nworker.exit(1);\nvoid abort(std::string_view why);\nWorker::exit(2);\nread_exit(3);\n", []),
    ("process", "pool/a.cpp", "int separated = 1'000'000; abort();  int more = 2'000;\n", [1]),
    ("process", "perf/a.cpp", "_exit(0);\nabort();\n", [2]),
    ("process", "tests/unit/a.cpp", "_exit(0);\n", []),
    ("length", "runtime/a.cpp", "x\n" * 601, [600]),
    ("length", "runtime/a.cpp", "x\n" * 600, []),
    ("length", "tests/data/a.xml", "x\n" * 5000, []),
    ("paths", "docs/a.md", "see /ho" "me/someone/cenote\n", [1]),
    ("paths", "dev", "cd /wo" "rk/main\n", [1]),
    ("paths", "docs/a.md", "the folder ./home/main, https://example.org/home/x and $X/home/y\n", []),
    ("portable", "CMakeLists.txt", "add_compile_options(-march=nat" "ive)\n", [1]),
    ("portable", "CMakeLists.txt", "add_compile_options(-O2)\n", []),
]


def tree():
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(f for f in folders if f not in SKIPPED)
        for name in sorted(files):
            file = pathlib.Path(folder, name)
            path = file.relative_to(ROOT).as_posix()
            if file.is_symlink() or not (name.endswith(rules.TEXT) or "." not in name):
                continue
            try:
                yield path, file.read_text(encoding="utf-8")
            except (UnicodeDecodeError, FileNotFoundError):
                continue  # not text, or a build's own that is gone again


def unread_settings(table, files):
    """The settings of the table that no product code reads."""
    names = re.findall(r'^\s*\{"([a-z_.]+)", SettingType::', table, re.M)
    read = set()
    for path, text in files:
        if rules.is_code(path) and rules.room_of(path) in rules.PRODUCT:
            getters = r'[.>](?:boolean|integer|uinteger|duration|size|text|list)\(\s*"([a-z_.]+)"\s*\)'
            read.update(re.findall(getters, text))
    return names, [name for name in names if name not in read]


def misnamed(page, paths):
    """Folders of sources that `page` does not name, and paths that it names and that are not there."""
    named = set(re.findall(r"`((?:" + "|".join(rules.PRODUCT | {"tests"}) + r")/[a-z0-9_./]+)`", page))
    sources = [path for path in paths if rules.is_code(path) and rules.room_of(path) in rules.PRODUCT]
    folders = {"/".join(path.split("/")[:2]) for path in sources if path.count("/") >= 2}
    there = set(paths) | {"/".join(path.split("/")[:depth]) for path in paths for depth in (1, 2, 3)}
    return sorted({folder for folder in folders if folder not in named and folder != "include/cenote"} | (named - there))


class House(unittest.TestCase):
    def test_every_rule_breaks_on_bad_samples_and_accepts_good_ones(self):
        for name, path, text, lines in SAMPLES:
            with self.subTest(rule=name, path=path, text=text[:80]):
                self.assertEqual(sorted(number for number, _ in rules.RULES[name](path, text)), lines)

    def test_every_rule_has_a_bad_and_a_good_sample(self):
        for name in rules.RULES:
            self.assertTrue(any(rule == name and lines for rule, _, _, lines in SAMPLES), name)
            self.assertTrue(any(rule == name and not lines for rule, _, _, lines in SAMPLES), name)

    def test_an_exception_covers_its_file_only_and_must_be_needed(self):
        bad = "abort();\n"
        exceptions = {("process", "runtime/a.cpp"): "a test"}
        self.assertEqual(rules.check([("runtime/a.cpp", bad)], exceptions), [])
        self.assertEqual(rules.check([("runtime/a.cpp", bad), ("runtime/b.cpp", bad)], exceptions),
                         ["runtime/b.cpp:1: process: abort: abort()"])
        self.assertRegex(rules.check([("runtime/a.cpp", "")], exceptions)[0], "not needed")

    def test_the_tree_keeps_the_rules(self):
        files = list(tree())
        self.assertGreater(len(files), 50, "the walk found next to nothing")
        self.assertTrue(any(path == "runtime/result.h" for path, _ in files))
        offences = rules.check(files)
        self.assertEqual(offences, [], "\n" + "\n".join(offences))

    def test_the_page_about_the_house_names_what_is_there_and_nothing_else(self):
        page = "`runtime/a.h` `pool/gone.h` `cenote`"
        self.assertEqual(misnamed(page, ["runtime/a.h", "pool/b/c.cpp"]), ["pool/b", "pool/gone.h"])
        page = (ROOT / "docs/architecture.md").read_text()
        self.assertEqual(misnamed(page, [path for path, _ in tree()]), [])
        floors = dict(re.findall(r"^\| (\d) \| (.*?) \|", page, re.M))
        for room, level in rules.LEVELS.items():
            if (ROOT / room).is_dir():
                self.assertIn(f"`{room}", floors[str(level)])

    def test_every_setting_has_a_reader(self):
        table = '    {"a.b", SettingType::text, ""},\n    {"c", SettingType::duration, "1s"},\n'
        reader = 'x = settings.text("a.b");\n'
        self.assertEqual(unread_settings(table, [("pool/a.cpp", reader)]), (["a.b", "c"], ["c"]))
        self.assertEqual(unread_settings(table, [("tests/unit/a.cpp", reader)])[1], ["a.b", "c"])
        files = list(tree())
        names, unread = unread_settings(dict(files)["runtime/settings_table.h"], files)
        self.assertGreater(len(names), 20)
        self.assertEqual(unread, [])


if __name__ == "__main__":
    counted.main()
