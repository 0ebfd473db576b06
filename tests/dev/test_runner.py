"""The test runner and ./dev: what must fail does fail, and nothing is left behind."""

import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools/dev")]
import counted  # noqa: E402  (the paths are set above)
import run_tests  # noqa: E402  (the path is set above)


def outcome_of(script, timeout=20.0):
    """The summary of one shell script run as a test."""
    with tempfile.TemporaryDirectory() as folder:
        test = ("probe", ["bash", "-c", script], [], timeout, folder, {"PROBE_SETTING": "as ctest says"})
        return run_tests.run_one(test, pathlib.Path(folder), None)[0]


class TheRunner(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        ctypes.CDLL(None).prctl(run_tests.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def test_passes_what_ends_with_zero(self):
        self.assertEqual((1, 0), (outcome_of("true")["passed"], outcome_of("true")["failed"]))

    def test_fails_what_ends_otherwise_and_says_how(self):
        summary = outcome_of("exit 3")
        self.assertEqual(1, summary["failed"])
        self.assertIn("exit 3", summary["problems"])

    def test_names_the_signal_that_ended_a_test(self):
        self.assertIn("ended by SIGSEGV", outcome_of("kill -SEGV $$")["problems"])

    def test_fails_a_test_that_hangs(self):
        self.assertIn("still running after 1 s", outcome_of("sleep 60", timeout=1.0)["problems"])

    def test_fails_a_test_that_leaves_a_process_and_ends_it(self):
        summary = outcome_of("setsid sleep 61.25 >/dev/null 2>&1 & disown; true")
        self.assertEqual(1, summary["failed"])
        self.assertIn("sleep", summary["problems"][0])
        self.assertEqual({}, run_tests.descendants())

    def test_fails_a_test_that_leaves_a_file(self):
        self.assertIn("forgotten", outcome_of('touch "$TMPDIR/forgotten"')["problems"][0])

    def test_reaps_orphans_while_the_test_runs(self):
        script = ("orphan=$(setsid bash -c 'sleep 0.1 & echo $!'); "
                  "for i in $(seq 200); do kill -0 $orphan 2>/dev/null || exit 0; sleep 0.02; done; exit 1")
        self.assertEqual(0, outcome_of(script)["failed"])

    def test_hands_on_the_environment_that_ctest_names(self):
        self.assertEqual(0, outcome_of('[ "$PROBE_SETTING" = "as ctest says" ]')["failed"])

    def test_counts_what_a_script_says_it_ran(self):
        summary = outcome_of("echo '7 passed, 0 failed, 2 skipped'")
        self.assertEqual((7, 0, 2), (summary["passed"], summary["failed"], summary["skipped"]))

    def test_a_failing_script_fails_whatever_it_says(self):
        self.assertEqual(1, outcome_of("echo '7 passed, 0 failed'; exit 1")["failed"])


class Dev(unittest.TestCase):
    def run_dev(self, *arguments):
        return subprocess.run([ROOT / "dev", *arguments], capture_output=True, text=True, timeout=60, cwd="/")

    def test_without_a_command_shows_the_help(self):
        shown = self.run_dev()
        self.assertEqual(0, shown.returncode)
        for command in ("demo", "test", "bench", "build", "format", "lint", "clean"):
            self.assertIn(f"\n  {command} ", shown.stdout)

    def test_refuses_an_unknown_command(self):
        refused = self.run_dev("tset")
        self.assertEqual(2, refused.returncode)
        self.assertIn("no command 'tset'", refused.stderr)

    def test_refuses_an_unknown_bench(self):
        refused = self.run_dev("bench", "nonsense")
        self.assertEqual(2, refused.returncode)
        self.assertIn("--list", refused.stderr)

    def test_takes_the_value_of_a_bench_option_for_no_bench(self):
        for option in (["--only", "shm put"], ["--pairs", "5"], ["--launches", "1000"]):
            refused = self.run_dev("bench", *option, "nonsense")
            self.assertEqual(2, refused.returncode)
            self.assertIn("no bench 'nonsense'", refused.stderr)

    def test_measures_verbs_inside_the_vm_and_all_else_here(self):
        script = (f"ROOT={ROOT} CALLER=/; cd {ROOT}; source tools/dev/stages.sh; source tools/dev/bench.sh; "
                  'need_packages() { echo "packages: $*"; }; try_packages() { need_packages "$@"; }; build() { :; }; '
                  'run() { echo "run: $*"; }; run_bench verbs remote --pairs 9')
        said = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=60).stdout.splitlines()
        self.assertIn("packages: vm", said)
        verbs, remote = (line.split() for line in said if line.startswith("run: "))
        self.assertEqual("tests/vm/cenote-vm", verbs[1])
        program = verbs.index("build/release/bin/bench_verbs")
        self.assertEqual("--", verbs[program - 1])
        self.assertEqual(["--pairs", "9"], verbs[-2:])
        # what it writes must outlive the VM
        written = pathlib.Path(verbs[program + 2])
        self.assertEqual(str(written.parent), verbs[verbs.index("--rw") + 1])
        self.assertEqual("build/release/bin/bench_remote", remote[1])

    def test_takes_a_relative_file_from_the_callers_folder(self):
        script = (f'ROOT={ROOT} CALLER=/caller; source {ROOT}/tools/dev/stages.sh; '
                  'demo_words --epochs 2 --json a.json --data=b/c.csv --data /d.csv --kill broker --json; '
                  'printf "%s|" "${words[@]}"')
        words = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=60)
        self.assertEqual("--epochs|2|--json|/caller/a.json|--data=/caller/b/c.csv|--data|/d.csv|--kill|broker|--json|",
                         words.stdout)

    def test_packages_that_cannot_be_had_end_it_only_where_they_are_needed(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("dpkg-query", "exit 1"), ("apt-get", "echo no network; exit 100"), ("sudo", "exit 1")):
                pathlib.Path(folder, name).write_text(f"#!/bin/sh\n{text}\n")
                pathlib.Path(folder, name).chmod(0o755)
            for how, went_on in (("need_packages vm", False), ("try_packages vm || true", True)):
                script = f"ROOT={ROOT}; source {ROOT}/tools/dev/stages.sh; LOG={folder}; {how}; echo went on"
                ended = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=60,
                                       env=dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"))
                self.assertEqual(went_on, ended.returncode == 0)
                self.assertEqual(went_on, "went on" in ended.stdout)
                self.assertIn("no network" if os.geteuid() == 0 else "sudo refused", ended.stdout + ended.stderr)

    def test_a_stage_ended_by_a_signal_takes_its_processes_along(self):
        script = f'ROOT={ROOT}; source {ROOT}/tools/dev/stages.sh; LOG=$TMPDIR; stage probe sleep 62.5'
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ, TMPDIR=folder)
            dev = subprocess.Popen(["bash", "-c", script], env=environment, stdout=subprocess.PIPE)
            give_up = time.monotonic() + 20
            while subprocess.run(["pgrep", "-f", "^sleep 62.5$"], capture_output=True).returncode and time.monotonic() < give_up:
                time.sleep(0.02)
            dev.send_signal(signal.SIGTERM)
            self.assertEqual(128 + signal.SIGTERM, dev.wait(timeout=20))
            dev.stdout.close()
        self.assertNotEqual(0, subprocess.run(["pgrep", "-f", "^sleep 62.5$"], capture_output=True).returncode)


if __name__ == "__main__":
    counted.main()
