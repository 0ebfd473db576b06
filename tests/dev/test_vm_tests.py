"""The part of the test runner that hands tests to the VM, with a stand-in for the VM: what becomes of its results."""

import contextlib
import json
import os
import pathlib
import stat
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools/dev")]
import counted  # noqa: E402  (the paths are set above)
import vm_tests  # noqa: E402  (the path is set above)

# Runs the command here, as one host or as both.
WORKS = """#!/bin/bash
[ "$1" = setup ] && exit 0
how=$1; until [ "$1" = -- ]; do shift; done; shift
if [ "$how" = run ]; then CENOTEVM_HOST=0 exec "$@"; fi
export CENOTEVM_PEER_ADDRESSES=10.77.0.1
CENOTEVM_HOST=1 "$@" & CENOTEVM_HOST=0 "$@"; wait
"""
# A program that knows --gtest_list_tests and behaves as its case says.
PROGRAM = """#!/bin/bash
case "$1" in --gtest_list_tests) printf 'Suite.\\n  One\\n  Two\\n'; exit ;; esac
failures=''; status=0
if [ "$CENOTEVM_HOST" = "$FAILS_ON" ]; then failures='"failures": [{"failure": "so it was asked"}],'; status=1; fi
[ -z "$CRASHES" ] || kill -KILL $$
cat >"${GTEST_OUTPUT#json:}" <<TXT
{"tests": 2, "failures": $status, "testsuites": [{"name": "Suite", "testsuite": [
  {"name": "One", "status": "RUN", $failures "result": "COMPLETED"}, {"name": "Two", "status": "RUN", "result": "COMPLETED"}]}]}
TXT
exit $status
"""


class TheVmsPart(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.results = self.folder / "results"
        self.results.mkdir()
        tool = vm_tests.TOOL
        self.addCleanup(setattr, vm_tests, "TOOL", tool)

    def script(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def run_with(self, tool, label, **environment):
        """(programs that failed, what was printed, the summary) of one program with two cases."""
        vm_tests.TOOL = self.script("cenote-vm", tool)
        program = self.script("probe", PROGRAM)
        test = ("probe", [str(program), "--gtest_brief=0"], [label], 20.0, str(self.folder), environment)
        with tempfile.TemporaryFile("w+") as printed:
            kept = os.dup(1)
            os.dup2(printed.fileno(), 1)  # what the stand-in prints counts too
            try:
                with open(os.dup(1), "w", buffering=1) as out, contextlib.redirect_stdout(out):
                    bad = vm_tests.run([(test, None)], self.results)
            finally:
                os.dup2(kept, 1)
                os.close(kept)
            printed.seek(0)
            return bad, printed.read(), json.loads((self.results / "probe.summary").read_text())

    def test_says_how_many_did_not_run_why_and_what_to_do(self):
        nothing = "#!/bin/sh\necho 'cenote-vm: fetching it' >&2; echo 'cenote-vm: no emulator here; install one' >&2; exit 3\n"
        bad, printed, summary = self.run_with(nothing, "vm")
        self.assertEqual(0, bad)
        self.assertIn("verbs tests not run: 2 (no emulator here; remedy: install one)", printed)
        self.assertEqual((0, 0, 2), (summary["passed"], summary["failed"], summary["skipped"]))

    def test_a_vm_that_should_work_and_cannot_be_made_is_a_failure(self):
        bad, printed, summary = self.run_with("#!/bin/sh\necho 'cenote-vm: another checksum' >&2; exit 125\n", "vm")
        self.assertEqual((1, 2), (bad, summary["failed"]))
        self.assertIn("the test VM cannot be set up: another checksum", printed)

    def test_a_vm_that_dies_is_a_failure_of_what_it_did_not_finish(self):
        dies = "#!/bin/sh\n[ $1 = setup ] && exit 0\necho 'VM 0: Kernel panic'; exit 125\n"
        bad, printed, summary = self.run_with(dies, "vm")
        self.assertEqual((1, 2), (bad, summary["failed"]))
        self.assertIn("Kernel panic", printed)
        self.assertIn("the VM ended before it ran (cenote-vm: exit 125)", printed)

    def test_reports_a_test_like_any_other(self):
        bad, printed, summary = self.run_with(WORKS, "vm", FAILS_ON="", CRASHES="")
        self.assertEqual((0, 2, 0), (bad, summary["passed"], summary["failed"]))
        self.assertRegex(printed, r"  ok     probe +2 passed")

    def test_a_failed_case_counts_once_and_says_how_to_run_it_again(self):
        vm_again = r"again: .*cenote-vm run -- .*probe"
        bad, printed, summary = self.run_with(WORKS, "vm", FAILS_ON="0", CRASHES="")
        self.assertEqual((1, 1, 1), (bad, summary["passed"], summary["failed"]))
        self.assertRegex(printed, vm_again)

    def test_of_two_vms_a_case_is_as_bad_as_its_worse_half(self):
        for host in "01":
            bad, printed, summary = self.run_with(WORKS, "vm2", FAILS_ON=host, CRASHES="")
            self.assertEqual((1, 1, 1), (bad, summary["passed"], summary["failed"]))
            self.assertIn(f"VM {host}: exit 1", printed)

    def test_a_half_that_crashes_fails_the_test(self):
        bad, _, summary = self.run_with(WORKS, "vm2", FAILS_ON="", CRASHES="yes")
        self.assertEqual((1, 1), (bad, summary["failed"]))

    def test_of_two_vms_both_must_pass(self):
        bad, _, summary = self.run_with(WORKS, "vm2", FAILS_ON="", CRASHES="")
        self.assertEqual((0, 2, 0), (bad, summary["passed"], summary["failed"]))


if __name__ == "__main__":
    counted.main()
