"""The Debian package, installed in a root that holds nothing else, works there: the command, the demo, and the examples.

usage: test_package.py BUILD_FOLDER. Skipped where no such root can be made: it wants mmdebstrap, root, and the package
mirrors that this machine's apt has.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import counted  # noqa: E402  (the path is set above)

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
EXAMPLES = "/usr/share/doc/cenote/examples"
TOOLS = ["gcc", "g++", "cmake", "make", "pkg-config"]


def missing():
    """Why no root can be made here; "" where it can."""
    if not shutil.which("mmdebstrap"):
        return "mmdebstrap is missing: ./dev setup package"
    if os.geteuid() != 0:
        return "it wants root"
    # Of the rights that it takes, a container's root may lack this one.
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        return "it may not mount anything"
    return "" if sources() else "this machine's apt has no sources"


def sources():
    folder = pathlib.Path("/etc/apt")
    return [str(file) for file in (folder / "sources.list", *sorted(folder.glob("sources.list.d/*")))
            if file.is_file() and file.suffix in (".list", ".sources") and file.stat().st_size]


def ran(command, timeout=600):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
    if done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


@unittest.skipIf(missing(), missing())
class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="cenote-package-"))
        cls.addClassCleanup(shutil.rmtree, folder)
        ran(["cpack", "--config", BUILD / "CPackConfig.cmake", "-B", folder / "made"])
        cls.package, = (folder / "made").glob("*.deb")
        cls.root = folder / "root"
        # What it depends on comes by the package manager; that this is enough, dpkg says.
        wanted = ran(["dpkg-deb", "-f", cls.package, "Depends"])
        names = [part.split()[0] for part in wanted.split(",")]
        install = f'cp {cls.package} "$1/cenote.deb" && chroot "$1" dpkg --install /cenote.deb'
        # Its mounts end with it, however it ends: what is removed afterwards is files.
        ran(["unshare", "--mount", "mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(TOOLS + names)}",
             f"--customize-hook={install}", "bookworm", cls.root, *sources()], 1200)

    def inside(self, command, timeout=300):
        """`command` in the root, with /proc and /dev, which end with it."""
        enter = ('mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" /usr/bin/env -i '
                 'PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ sh -ec "$1"')
        return ran(["unshare", "--mount", "sh", "-ec", enter, self.root, command], timeout)

    def test_it_says_what_it_depends_on(self):
        depends = ran(["dpkg-deb", "-f", self.package, "Depends"])
        for wanted in ("libc6 (>=", "libgrpc++", "libssl3", "libstdc++6 (>="):
            self.assertIn(wanted, depends)
        self.assertNotIn("ibverbs", depends)  # opened at run time

    def test_the_command_runs_and_finds_the_drop_ins(self):
        self.assertRegex(self.inside("cenote --version"), r"\d+\.\d+\.\d+")
        self.assertIn("status: install ok installed", self.inside("dpkg --status cenote").lower())
        self.inside("ldconfig -p | grep -q libcenote.so.0 && ldconfig -p | grep -q libcenote-pool.so.0")
        self.inside("! ldconfig -p | grep -q libcuda")
        self.inside("test -e /usr/lib/cenote/libcuda.so.1")

    def test_the_demo_trains(self):
        said = self.inside("cenote demo --epochs 10 2>&1")
        self.assertIn("accuracy", said)

    def test_the_examples_are_built_and_run(self):
        self.inside(f"cmake -S {EXAMPLES} -B /examples && cmake --build /examples", 600)
        self.inside(f"gcc -std=c11 -Wall -Wextra -Werror {EXAMPLES}/put_get.c $(pkg-config --cflags --libs cenote) -o /put_get")
        for program in ("/examples/allreduce", "/examples/allreduce_cpp"):
            self.assertIn("rank 0: 1 2 3 0", self.inside(f"{program} 0 1"))
        for program in ("/examples/put_get", "/examples/put_get_cpp", "/put_get"):
            self.assertIn("rank 0 got back", self.inside(f"{program} 0 1"))
        pool = ("export CENOTE_TLS_DIR=/pool/tls CENOTE_BROKER_STATE_DIR=/pool/state; "
                "export CENOTE_BROKER_LISTEN=127.0.0.1:47113 CENOTE_BROKER_ADDRESS=127.0.0.1:47113; "
                "cenote broker --init-tls --agent here >/dev/null; cenote broker >/pool/broker.log 2>&1 & broker=$!; "
                "cenote agent --name here --set agent.devices=emulated:H200:64MiB >/pool/agent.log 2>&1 & agent=$!; "
                "trap 'kill $agent $broker; wait' EXIT; "
                "for try in $(seq 100); do cenote top 2>/dev/null | grep -q here && break; sleep 0.2; done; ")
        for program in ("remote_saxpy", "remote_saxpy_cpp"):
            self.assertIn("1000 elements of 2 x + y are right\ngave it back", self.inside(f"{pool} /examples/{program}"))


if __name__ == "__main__":
    counted.main()
