"""cenote-vm itself: what it fetches and packs, and how it supervises its VMs, with a stand-in for QEMU that runs the
command on this machine at once. That the VM's devices work is for devices_test.cpp to say."""

import glob
import lzma
import os
import pathlib
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
sys.dont_write_bytecode = True
import counted  # noqa: E402  (the paths are set above)
import image  # noqa: E402

# Does what guest/main does with the control folder; STAND_IN says how the VM behaves.
QEMU = """#!/bin/bash
for word; do
  case "$word" in
    local,id=control,path=*) control=${word#*path=}; control=${control%%,*} ;;
    file:*) console=${word#file:} ;;
  esac
done
source "$control/plan"
case "$STAND_IN" in second_*) STAND_IN=${STAND_IN#second_}; [ "$host" = 1 ] || STAND_IN='' ;; esac
case "$STAND_IN" in
  panics) echo 'Kernel panic - not syncing: asked for' >"$console"; exit 0 ;;
  hangs) echo 'the last thing it said' >"$console"; exec sleep 63.25 ;;
  runs_on) echo 0.1 >"$control/ready"; echo here >>"$control/out"; exec sleep 64.25 ;;
  hurries) if [ ! -e "$STAND_IN_MARK" ]; then : >"$STAND_IN_MARK"; echo 99 >"$control/ready"; exec sleep 65.25; fi ;;
  always_hurries) echo 99 >"$control/ready.new"; mv "$control/ready.new" "$control/ready" ;;
esac
[ -e "$control/ready" ] || { echo 0.1 >"$control/ready.new"; mv "$control/ready.new" "$control/ready"; }
until [ -e "$control/go" ]; do sleep 0.01; done
export CENOTEVM_HOST=$host
if [ "$merged" = 1 ]; then bash "$control/command" >>"$control/out" 2>&1; else bash "$control/command" >>"$control/out" 2>>"$control/err"; fi
echo $? >"$control/status.new"; mv "$control/status.new" "$control/status"
[ "$hosts" = 1 ] || until [ -e "$control/stop" ]; do sleep 0.01; done
"""


class Supervision(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        programs, self.tmp = self.folder / "bin", self.folder / "tmp"
        programs.mkdir()
        self.tmp.mkdir()
        for name in image.TOOLS:
            (programs / name).write_text("#!/bin/sh\n")
        (programs / "qemu-system-x86_64").write_text(QEMU)
        for path in programs.iterdir():
            path.chmod(0o755)
        self.environment = dict(os.environ, PATH=f"{programs}:{os.environ['PATH']}", TMPDIR=str(self.tmp),
                                XDG_CACHE_HOME=str(self.folder / "cache"), STAND_IN="")
        # As if set up, with what a stand-in needs of it: nothing.
        with unittest.mock.patch.dict(os.environ, self.environment):
            tree = image.cache_folder() / image.RELEASE
            tree.mkdir(parents=True)
            (tree / image.initramfs_name()).touch()
        if not glob.glob(image.PROVIDER[0]):
            self.skipTest("ibverbs-providers is not installed: ./dev setup vm")

    def start(self, *words, **more):
        process = subprocess.Popen([HERE / "cenote-vm", *words], env=self.environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, **more)
        self.addCleanup(process.kill)
        return process

    def run_vm(self, *words, **more):
        """(exit status, stdout, stderr), and nothing left."""
        process = self.start(*words, **more)
        out, err = process.communicate(timeout=60)
        self.expect_nothing_left()
        return process.returncode, out, err

    def expect_nothing_left(self):
        give_up = time.monotonic() + 20
        while (left := self.left()) and time.monotonic() < give_up:
            time.sleep(0.02)
        self.assertEqual([], left)

    def left(self):
        """Folders of runs, and processes that know one."""
        found = [path.name for path in self.tmp.iterdir()]
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and str(self.tmp).encode() in (entry / "cmdline").read_bytes():
                    found.append(f"process {entry.name}")
            except OSError:
                pass
        return found

    def until_it_runs(self, process):
        """Returns when the command in the VM has said that it is there, and will not end by itself."""
        self.assertEqual("here\n", process.stdout.readline())

    def test_gives_the_commands_output_and_exit_status(self):
        self.assertEqual((7, "out\n", "err\n"), self.run_vm("run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"))

    def test_hands_on_arguments_environment_and_folder_as_they_are(self):
        words = ["a b", "'", '"$HOME"', "*", "", "\n"]
        script = 'for w; do printf "%s|" "$w"; done; printf "%s|" "$ODD" "$SET"; pwd'
        self.environment["ODD"] = "x 'y' \"z\" $w\n"
        status, out, _ = self.run_vm("run", "--env", "SET=1=2", "--", "sh", "-c", script, "sh", *words, cwd="/usr")
        self.assertEqual((0, "|".join([*words, self.environment["ODD"], "1=2", "/usr\n"])), (status, out))

    def test_a_command_that_is_not_there_ends_as_in_a_shell(self):
        status, _, err = self.run_vm("run", "--", "no-such-command")
        self.assertEqual(127, status)
        self.assertIn("no-such-command", err)

    def test_a_vm_that_dies_is_told_with_its_last_words(self):
        self.environment["STAND_IN"] = "panics"
        status, _, err = self.run_vm("run", "--", "true")
        self.assertEqual(125, status)
        self.assertIn("VM 0: Kernel panic - not syncing: asked for", err)

    def test_a_vm_that_hangs_is_ended_and_told_with_its_last_words(self):
        self.environment["STAND_IN"] = "hangs"
        status, _, err = self.run_vm("run", "--timeout", "4", "--", "true")
        self.assertEqual(124, status)
        self.assertIn("no result after 4 s", err)
        self.assertIn("the last thing it said", err)

    def test_two_vms_mark_their_lines_and_fail_if_one_fails(self):
        status, out, _ = self.run_vm("run2", "--", "sh", "-c", "echo here; exit $((CENOTEVM_HOST * 5))")
        self.assertEqual((5, ["[0] here", "[1] here"]), (status, sorted(out.splitlines())))
        status, out, _ = self.run_vm("run2", "--plain", "--", "echo", "here")
        self.assertEqual((0, ["here", "here"]), (status, out.splitlines()))

    def test_of_two_vms_one_that_dies_ends_both(self):
        self.environment["STAND_IN"] = "second_panics"
        status, _, err = self.run_vm("run2", "--", "true")
        self.assertEqual(125, status)
        self.assertIn("VM 1: Kernel panic - not syncing: asked for", err)

    def test_of_two_vms_one_that_fails_ends_the_other_a_little_later(self):
        self.environment["STAND_IN"] = "second_runs_on"
        status, _, err = self.run_vm("run2", "--patience", "0.1", "--", "sh", "-c", "exit 125")
        self.assertEqual(125, status)
        self.assertIn("VM 0 failed (125), the other one was stopped", err)

    def test_a_vm_whose_clock_is_too_fast_is_booted_again(self):
        self.environment.update(STAND_IN="hurries", STAND_IN_MARK=str(self.folder / "mark"))
        status, out, err = self.run_vm("run", "--", "echo", "done")
        self.assertEqual((0, "done\n"), (status, out))
        self.assertRegex(err, r"VM 0 has counted 99 s in \d+; booting again")

    def test_two_vms_are_booted_again_together(self):
        self.environment.update(STAND_IN="second_hurries", STAND_IN_MARK=str(self.folder / "mark"))
        status, out, err = self.run_vm("run2", "--", "sh", "-c", "echo done")
        self.assertEqual(0, status)
        self.assertEqual(["[0] done", "[1] done"], sorted(out.splitlines()))
        self.assertRegex(err, r"VM 1 has counted 99 s in \d+; booting again")

    def test_a_clock_that_stays_wrong_is_lived_with(self):
        self.environment["STAND_IN"] = "always_hurries"
        status, out, err = self.run_vm("run", "--", "echo", "done")
        self.assertEqual((0, "done\n"), (status, out))
        self.assertEqual(2, err.count("booting again"))

    def test_a_signal_leaves_nothing(self):
        self.environment["STAND_IN"] = "runs_on"
        for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = self.start("run", "--", "true")
            self.until_it_runs(process)
            process.send_signal(sent)
            process.communicate(timeout=30)
            self.assertEqual(128 + sent, process.returncode)
            self.expect_nothing_left()

    def test_killed_it_leaves_nothing(self):
        self.environment["STAND_IN"] = "runs_on"
        for how in (["run"], ["run2", "--plain"]):
            process = self.start(*how, "--", "true")
            self.until_it_runs(process)
            process.kill()
            process.communicate(timeout=30)
            self.expect_nothing_left()

    def test_whoever_started_it_is_killed_and_it_leaves_nothing(self):
        self.environment["STAND_IN"] = "runs_on"
        parent = subprocess.Popen(["bash", "-c", '"$@"; true', "bash", HERE / "cenote-vm", "run", "--", "true"],
                                  env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.until_it_runs(parent)
        parent.kill()
        parent.communicate(timeout=30)  # to the end of its output, which cenote-vm holds
        self.expect_nothing_left()

    def test_wrong_usage_says_what_is_wrong(self):
        for words, said in ((["run", "--"], "no command"), (["run", "--devices", "65", "--", "true"], "not between 0 and 64"),
                            (["run", "--rw", "/nowhere", "--", "true"], "no folder /nowhere"),
                            (["run", "--env", "=x", "--", "true"], "NAME=VALUE"), (["walk"], "walk")):
            status, _, err = self.run_vm(*words)
            self.assertEqual(2, status)
            self.assertIn(said, err)


class TheImage(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_unpacks_the_kernel_of_an_image(self):
        kernel = b"\x7fELF" + bytes(range(256)) * 64
        packed = lzma.compress(kernel, check=lzma.CHECK_CRC32) + struct.pack("<I", len(kernel))
        bzimage = bytearray(3 * 512)
        bzimage[0x1F1] = 2
        struct.pack_into("<II", bzimage, 0x248, 16, len(packed))
        self.assertEqual(kernel, image.kernel_elf(bytes(bzimage) + bytes(16) + packed))
        with self.assertRaisesRegex(RuntimeError, "packed in a way"):
            image.kernel_elf(bytes(bzimage) + bytes(16) + b"unknown" + packed)

    def test_packs_an_archive_that_cpio_reads(self):
        if not shutil.which("busybox"):
            self.skipTest("busybox is not installed: ./dev setup vm")
        archive = image.cpio([("d", stat.S_IFDIR | 0o755, b""), ("d/odd", stat.S_IFREG | 0o644, b"12345"), ("e", stat.S_IFREG | 0o755, b"")])
        subprocess.run(["busybox", "cpio", "-id"], input=archive, cwd=self.folder, check=True, stderr=subprocess.DEVNULL)
        self.assertEqual(b"12345", (self.folder / "d/odd").read_bytes())
        self.assertEqual(0o755, stat.S_IMODE((self.folder / "e").stat().st_mode))

    def test_a_package_that_is_not_the_one_is_refused(self):
        (self.folder / image.DEB).write_bytes(b"another kernel")
        with self.assertRaisesRegex(RuntimeError, "not the package that everybody tests with.*delete it"):
            image.unpack_kernel(self.folder)
        self.assertEqual([image.DEB], os.listdir(self.folder))

    def test_what_cannot_be_fetched_makes_the_vm_unavailable_with_the_remedy(self):
        (self.folder / "apt-get").write_text("#!/bin/sh\necho 'E: Unable to fetch some archives'; exit 100\n")
        (self.folder / "apt-get").chmod(0o755)
        with unittest.mock.patch.dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}"):
            with self.assertRaisesRegex(image.Unavailable, "cannot be fetched .Unable to fetch some archives.*; .*put linux-image-6.1"):
                image.fetch(self.folder)

    def test_missing_programs_are_named_by_package(self):
        with unittest.mock.patch.dict(os.environ, PATH=str(self.folder)):
            with self.assertRaisesRegex(image.Unavailable, "busybox-static.*qemu-system-x86.*; install them with ./dev setup vm"):
                image.check_tools()

    def test_a_cache_that_cannot_be_written_is_named(self):
        if any(not shutil.which(tool) for tool in image.TOOLS) or not glob.glob(image.PROVIDER[0]):
            self.skipTest("what the VM needs is not installed: ./dev setup vm")
        (self.folder / "file").touch()
        with unittest.mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.folder / "file")):
            with self.assertRaisesRegex(image.Unavailable, "file/cenote/vm cannot be written: Not a directory; set XDG_CACHE_HOME"):
                image.ready()

    def test_every_package_it_names_is_in_the_list(self):
        listed = (HERE.parents[1] / "tools/packages.txt").read_text().split("[vm]")[1].split("\n[")[0]
        for package in {*image.TOOLS.values(), image.PROVIDER[1]}:
            self.assertRegex(listed, f"(?m)^{package} ")


if __name__ == "__main__":
    counted.main()
