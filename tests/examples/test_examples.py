"""The examples do what their first comment says, built out of the tree against an installed copy that was moved.

usage: test_examples.py BUILD_FOLDER
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import counted  # noqa: E402  (the path is set above)
from installation import WARNINGS, Installation, ran  # noqa: E402
from pool import Pool  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()


def setUpModule():
    global INSTALLED, EXAMPLES
    INSTALLED = Installation(BUILD)
    unittest.addModuleCleanup(INSTALLED.remove)
    EXAMPLES = INSTALLED.built_by_cmake()


def ranks_of(program, ranks):
    """What each rank printed; rank 0 prints the id that the others are given."""
    root = subprocess.Popen([program, "0", str(ranks)], stdout=subprocess.PIPE, text=True)
    name = root.stdout.readline().strip()
    others = [subprocess.Popen([program, str(rank), str(ranks), name], stdout=subprocess.PIPE, text=True)
              for rank in range(1, ranks)]
    processes = [root, *others]
    said = [process.communicate(timeout=60)[0] for process in processes]
    return said, [process.returncode for process in processes]


class Installed(unittest.TestCase):
    def test_the_command_runs_from_the_moved_prefix(self):
        self.assertRegex(ran([INSTALLED.cenote, "--version"]), r"\d+\.\d+\.\d+")

    def test_libraries_have_their_names_and_everything_has_its_place(self):
        libraries = next(INSTALLED.prefix.glob("lib/**/pkgconfig")).parent
        for name in ("cenote", "cenote-pool"):
            file = (libraries / f"lib{name}.so").resolve()
            self.assertRegex(file.name, rf"^lib{name}\.so\.\d+\.\d+\.\d+$")
            self.assertRegex(ran(["readelf", "-d", file]), rf"SONAME.*\[lib{name}\.so\.\d+\]")
        for path in ("include/cenote/cenote.h", "include/cenote/pool.h", "include/cenote/types.h",
                     "lib/cenote/libcuda.so.1", "lib/cenote/libcudart.so.13", "share/doc/cenote/LICENSE",
                     "share/doc/cenote/docs/collectives.md", "share/cenote/digits.csv", "share/bash-completion/completions/cenote"):
            self.assertTrue((INSTALLED.prefix / path).exists(), path)
        self.assertFalse((INSTALLED.prefix / "lib/cenote/libcuda.so").exists(), "nobody links to a drop-in")
        self.assertIn("lease", (INSTALLED.prefix / "share/bash-completion/completions/cenote").read_text())

    def test_nothing_that_is_installed_names_the_tree_or_the_build(self):
        for file in INSTALLED.prefix.rglob("*"):
            if file.suffix in (".h", ".hpp", ".cmake", ".pc") and file.is_file():
                text = file.read_text()
                self.assertNotIn(str(BUILD), text, file)
                self.assertNotIn(str(INSTALLED.folder / "before"), text, file)
        for file in (INSTALLED.cenote, *INSTALLED.prefix.glob("lib/**/*.so*")):
            self.assertNotRegex(ran(["readelf", "-d", file]), r"(RPATH|RUNPATH)", file)

    def test_pages_link_to_nothing_that_is_not_installed(self):
        pages = list((INSTALLED.prefix / "share/doc/cenote").rglob("*.md"))
        self.assertGreater(len(pages), 10)
        for page in pages:
            for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
                if not re.match(r"\w+:", target):
                    self.assertTrue((page.parent / target).exists(), f"{page.name} links to {target}")

    def test_an_older_major_version_is_refused_and_a_component_that_there_is_not(self):
        for wanted in ("find_package(Cenote 7 REQUIRED)", "find_package(Cenote REQUIRED COMPONENTS nonsense)"):
            folder = INSTALLED.folder / "wanted"
            folder.mkdir(exist_ok=True)
            (folder / "CMakeLists.txt").write_text(
                f"cmake_minimum_required(VERSION 3.16)\nproject(x LANGUAGES C)\n{wanted}\n")
            configured = subprocess.run(["cmake", "-S", folder, "-B", folder / "b", f"-DCMAKE_PREFIX_PATH={INSTALLED.prefix}"],
                                        capture_output=True, text=True, timeout=60)
            self.assertNotEqual(0, configured.returncode, wanted)


def both(name):
    return [EXAMPLES / name, EXAMPLES / f"{name}_cpp"]


class Allreduce(unittest.TestCase):
    def summed(self, program, ranks=3):
        said, codes = ranks_of(program, ranks)
        self.assertEqual([0] * ranks, codes)
        for rank, text in enumerate(said):
            self.assertIn(f"rank {rank}: 3 6 9 3" if ranks == 3 else f"rank {rank}: 2 4 6 1", text)

    def test_ranks_that_are_processes_sum_what_they_hold(self):
        for program in both("allreduce"):
            with self.subTest(program.name):
                self.summed(program)

    def test_pkg_config_knows_all_that_the_compiler_wants(self):
        self.summed(INSTALLED.built_by_pkg_config("allreduce.c", "cenote"), 2)
        self.summed(INSTALLED.built_by_pkg_config("allreduce.cpp", "cenote"), 2)

    def test_without_arguments_it_says_what_it_wants(self):
        for program in both("allreduce") + both("put_get"):
            ran_it = subprocess.run([program], capture_output=True, text=True, timeout=60)
            self.assertEqual(2, ran_it.returncode)
            self.assertIn("usage:", ran_it.stderr)

    def test_a_wrong_id_is_an_error_in_words(self):
        for program in both("allreduce") + both("put_get"):
            ran_it = subprocess.run([program, "1", "2", "nonsense"], capture_output=True, text=True, timeout=60)
            self.assertEqual(1, ran_it.returncode)
            self.assertIn("read unique id failed", ran_it.stderr)


class Launched(unittest.TestCase):
    PLACES = [f"rank {rank} of 3, {rank} of 3 here, by %s: 3 6 9 3" for rank in range(3)]

    @unittest.skipUnless(shutil.which("mpirun"), "openmpi-bin is not installed: ./dev setup test")
    def test_ranks_that_mpirun_starts_find_each_other(self):
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        for program in both("launched"):
            with self.subTest(program.name):
                said = ran(["mpirun", *as_root, "--oversubscribe", "-n", "3", program])
                self.assertEqual([line % "pmix" for line in self.PLACES], sorted(said.splitlines()))

    def test_so_do_ranks_with_the_variables_of_torchrun(self):
        for program in both("launched"):
            with self.subTest(program.name):
                common = dict(os.environ, WORLD_SIZE="3", LOCAL_WORLD_SIZE="3", MASTER_ADDR="localhost", MASTER_PORT="29500",
                              TORCHELASTIC_RUN_ID="examples")
                ranks = [subprocess.Popen([program], env=dict(common, RANK=str(rank), LOCAL_RANK=str(rank)),
                                          stdout=subprocess.PIPE, text=True) for rank in range(3)]
                said = [rank.communicate(timeout=60)[0].strip() for rank in ranks]
                self.assertEqual([line % "torchrun" for line in self.PLACES], said)

    def test_alone_it_says_what_is_missing_or_is_a_group_of_one(self):
        for program in both("launched"):
            with self.subTest(program.name):
                alone = subprocess.run([program], capture_output=True, text=True, timeout=60)
                self.assertEqual(1, alone.returncode)
                self.assertIn("no launcher started it", alone.stderr)
                said = ran([program], env=dict(os.environ, CENOTE_LAUNCHER="none"))
                self.assertEqual("rank 0 of 1, 0 of 1 here, by none: 1 2 3 0\n", said)


class PutAndGet(unittest.TestCase):
    def test_every_rank_is_told_by_the_one_before_and_gets_back_what_it_put(self):
        for program in both("put_get"):
            with self.subTest(program.name):
                said, codes = ranks_of(program, 3)
                self.assertEqual([0] * 3, codes)
                for rank, text in enumerate(said):
                    self.assertIn(f"rank {rank} was told: rank {(rank + 2) % 3} greets rank {rank}\n", text)
                    self.assertIn(f"rank {rank} got back what it had put", text)


class RemoteSaxpy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pool = Pool(INSTALLED.cenote, INSTALLED.folder / "pool")
        cls.addClassCleanup(cls.pool.stop)

    def test_a_gpu_is_leased_computes_and_is_given_back(self):
        programs = both("remote_saxpy") + [INSTALLED.built_by_pkg_config("remote_saxpy.c", "cenote-pool"),
                                           INSTALLED.built_by_pkg_config("remote_saxpy.cpp", "cenote-pool")]
        for program in programs:
            with self.subTest(program.name):
                said = ran([program, self.pool.config], env=self.pool.environment)
                self.assertRegex(said, r"leased a \S*H200\S* of agent here: lease \S+\n")
                self.assertIn("1000 elements of 2 x + y are right\ngave it back\n", said)
                self.assertNotIn("remote_saxpy", self.pool.listed())

    def test_a_pool_that_there_is_not_is_an_error_in_words(self):
        config = INSTALLED.folder / "nobody.toml"
        config.write_text(self.pool.config.read_text().replace("address = ", 'address = "127.0.0.1:1"\n# '))
        for program in both("remote_saxpy"):
            with self.subTest(program.name):
                ran_it = subprocess.run([program, config], env=self.pool.environment, capture_output=True, text=True,
                                        timeout=120)
                self.assertEqual(1, ran_it.returncode)
                self.assertIn("127.0.0.1:1", ran_it.stderr)


class Headers(unittest.TestCase):
    """The public headers in the oldest language that they are for, and in newer ones."""

    def compiled(self, compiler, names, *options):
        source = INSTALLED.folder / "header.source"
        source.write_text("".join(f"#include <cenote/{name}>\n" for name in names) + "int main(void) { return 0; }\n")
        ran([*compiler, *WARNINGS, *options, f"-I{INSTALLED.prefix / 'include'}", "-fsyntax-only",
             "-x", "c++" if compiler[0] != "gcc" else "c", source])

    def test_every_header_stands_alone(self):
        names = sorted(file.name for file in (INSTALLED.prefix / "include/cenote").iterdir())
        plain = [name for name in names if name.endswith(".h")]
        self.assertEqual(len(plain) + 2, len(names))
        for name in plain:
            self.compiled(["gcc", "-std=c11"], [name])
        self.compiled(["g++", "-std=c++17"], plain)
        self.compiled(["g++", "-std=c++20"], ["pool.hpp"], "-Wshadow", "-Wconversion")
        if shutil.which("clang++-16"):
            self.compiled(["clang++-16", "-std=c++20"], reversed(names), "-Wshadow", "-Wconversion")


if __name__ == "__main__":
    counted.main()
