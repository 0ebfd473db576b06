"""All of Cenote's libraries in one process, beside PyTorch where it is there, and a fork.

usage: test_libraries.py BUILD_FOLDER. Exports are read from the files; loading is tried in both orders, each in
a process of its own.
"""

import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import counted  # noqa: E402  (the path is set above)

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
LIBRARIES = {
    "libcenote.so": BUILD / "lib/libcenote.so",
    "libcenote-pool.so": BUILD / "lib/libcenote-pool.so",
    "libcuda.so.1": BUILD / "lib/dropin/libcuda.so.1",
    "libcudart.so.13": BUILD / "lib/dropin/libcudart.so.13",
}
TORCH_PYTHON = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "cenote/venv/bin/python"

LOADER = """
import ctypes, os, sys
def load(paths):
    return [ctypes.CDLL(path) for path in paths]
def versions(libraries):
    core, pool = libraries[:2]
    core.cenote_version.restype = ctypes.c_uint32
    pool.cenote_pool_last_error.restype = ctypes.c_char_p
    return [core.cenote_version(), pool.cenote_pool_last_error()]
order, torch_when, paths = sys.argv[1], sys.argv[2], sys.argv[3:]
if torch_when == "first":
    import torch
paths = paths if order == "forwards" else paths[::-1]
libraries = load(paths)
if order == "backwards":
    libraries = libraries[::-1]
if torch_when == "last":
    import torch
before = versions(libraries)
child = os.fork()
if child == 0:
    alike = versions(libraries) == before
    if torch_when != "never":
        alike = alike and float(torch.ones(8).sum()) == 8.0
    os._exit(0 if alike else 9)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
if torch_when != "never":
    assert float((torch.ones(4, 4) @ torch.ones(4, 4)).sum()) == 64.0
print("versions", before, "child", status)
sys.exit(status)
"""


def exported(path):
    listed = subprocess.run(["nm", "-D", "--defined-only", path], check=True, capture_output=True, text=True).stdout
    return [line.split()[-1].split("@")[0] for line in listed.splitlines() if line.split()[-2] != "A"]


def closure(path):
    """What the loader maps for it, of others' libraries' needs too."""
    listed = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout
    return [line.split()[0] for line in listed.splitlines()]


class Exports(unittest.TestCase):
    def test_the_libraries_export_only_their_own_names(self):
        for name in ("libcenote.so", "libcenote-pool.so"):
            others = [symbol for symbol in exported(LIBRARIES[name]) if not symbol.startswith("cenote_")]
            self.assertEqual([], others, name)
        self.assertEqual([], [s for s in exported(LIBRARIES["libcuda.so.1"]) if not re.match("cu[A-Z]", s)])
        self.assertEqual([], [s for s in exported(LIBRARIES["libcudart.so.13"]) if not re.match("(__)?cuda[A-Z]", s)])

    def test_no_library_brings_grpc_protobuf_or_openssl(self):
        # Two protobuf registries in one process abort it; a framework has its own copies of all of these.
        for name, path in LIBRARIES.items():
            self.assertEqual([], [n for n in closure(path) if re.search("grpc|protobuf|absl|upb|ssl|crypto", n)], name)

    def test_the_closure_would_name_them(self):
        self.assertTrue([n for n in closure(BUILD / "bin/cenote") if re.search("grpc", n)])

    def test_the_runtime_exports_what_the_vendors_does(self):
        vendors = [p for p in pathlib.Path("/usr/local/cuda/lib64").glob("libcudart.so.13") if p.exists()]
        if not vendors:
            self.skipTest("no CUDA toolkit to compare with")
        self.assertEqual(sorted(exported(vendors[0])), sorted(exported(LIBRARIES["libcudart.so.13"])))


class VectorCode(unittest.TestCase):
    def test_objects_for_wider_processors_share_no_function_with_the_others(self):
        # A weak symbol there could be the one the linker keeps: code that a baseline processor cannot run.
        objects = sorted(BUILD.glob("*/CMakeFiles/*/**/*avx*.o"))
        self.assertGreaterEqual(len(objects), 4)
        for path in objects:
            listed = subprocess.run(["nm", path], check=True, capture_output=True, text=True).stdout
            self.assertEqual([], [line for line in listed.splitlines() if line.split()[-2] in "WV"], path)


def has_torch():
    """The environment may be there without it, where its download failed."""
    ask = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return TORCH_PYTHON.exists() and subprocess.run([TORCH_PYTHON, "-c", ask]).returncode == 0


class Together(unittest.TestCase):
    def load(self, python, order, torch_when):
        paths = [str(path) for path in LIBRARIES.values()]
        return subprocess.run([python, "-c", LOADER, order, torch_when, *paths], capture_output=True, text=True, timeout=300)

    def test_all_load_in_both_orders_and_survive_a_fork(self):
        for order in ("forwards", "backwards"):
            ran = self.load(sys.executable, order, "never")
            self.assertEqual(0, ran.returncode, order + ran.stdout + ran.stderr)

    def test_all_load_beside_pytorch_in_both_orders_and_survive_a_fork(self):
        if not has_torch():
            self.skipTest("PyTorch is not installed: ./dev setup python")
        for torch_when in ("first", "last"):
            ran = self.load(str(TORCH_PYTHON), "forwards", torch_when)
            self.assertEqual(0, ran.returncode, torch_when + ran.stdout + ran.stderr)


if __name__ == "__main__":
    counted.main()
