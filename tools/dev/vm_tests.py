"""Tests over kernel verbs: all of one label in one boot of the test VM, or of two VMs on one network (label vm2).

On this side `run` hands a plan to the VM and reads the summaries that come back. In the VM, `follow` runs the plan with
the same runner as every other test. In two VMs each runs the same programs in step; the first one adds up both.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import run_tests

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "tests/vm/cenote-vm"
# label -> (how cenote-vm runs it, what the reader calls it)
BOOTS = {"vm": ("run", "one VM"), "vm2": ("run2", "two VMs")}
UNAVAILABLE = 3  # cenote-vm's exit status where this machine cannot have the VM
BOOT_SECONDS = 300.0  # the processor is emulated, and may be shared with a build


def label_of(test):
    return next((label for label in test[2] if label in BOOTS), None)


def count(test, gtest_filter):
    cases = gtest_filter.split(":") if gtest_filter else run_tests.cases_of(test[1])
    return max(1, len(cases))


def write_summary(results, name, passed=0, failed=0, skipped=0, problems=(), seconds=0.0):
    summary = {"name": name, "passed": passed, "failed": failed, "skipped": skipped, "seconds": seconds,
               "problems": list(problems)}
    (results / f"{name}.summary").write_text(json.dumps(summary))
    return summary


def set_up():
    """(exit status, last line) of `cenote-vm setup`, whose progress is shown."""
    last = ""
    with subprocess.Popen([TOOL, "setup"], stderr=subprocess.PIPE, text=True) as setup:
        for line in setup.stderr:
            if last:
                print(f"· {last}", flush=True)
            last = line.strip().removeprefix("cenote-vm: ")
    if last and not setup.returncode:
        print(f"· {last}", flush=True)
    return setup.returncode, last


def again(test, gtest_filter):
    how = BOOTS[label_of(test)][0]
    chosen = [f"--gtest_filter={gtest_filter}"] if gtest_filter else []
    return [os.path.relpath(TOOL, ROOT), how, "--", os.path.relpath(test[1][0], ROOT), *chosen]


def run(chosen, results):
    """Runs these (test, filter) pairs, each with a label of BOOTS. The number of programs that failed."""
    if not chosen:
        return 0
    status, said = set_up()
    if status == UNAVAILABLE:
        counts = [count(*each) for each in chosen]
        for (test, _), n in zip(chosen, counts):
            write_summary(results, test[0], skipped=n)
        reason, _, remedy = said.partition("; ")
        print(f"  verbs tests not run: {sum(counts)} ({reason}; remedy: {remedy})", flush=True)
        return 0
    if status:
        for test, gtest_filter in chosen:
            run_tests.show(write_summary(results, test[0], failed=count(test, gtest_filter),
                                         problems=[f"the test VM cannot be set up: {said}"]), "", TOOL, again(test, gtest_filter))
        return len(chosen)
    return sum(boot(label, [each for each in chosen if label_of(each[0]) == label], results) for label in BOOTS)


def boot(label, chosen, results):
    if not chosen:
        return 0
    how, called = BOOTS[label]
    print(f"· verbs tests in {called}: {len(chosen)} program{'s' if len(chosen) > 1 else ''}", flush=True)
    for half in (results / "host0", results / "host1"):
        shutil.rmtree(half, ignore_errors=True)
    for test, _ in chosen:
        (results / f"{test[0]}.summary").unlink(missing_ok=True)
    plan = results / f"{label}.plan"
    plan.write_text(json.dumps(chosen))
    limit = BOOT_SECONDS + sum(test[3] + 30 for test, _ in chosen)
    ended = subprocess.run([TOOL, how, *(["--plain"] if how == "run2" else ["--devices", "4"]), "--rw", results, "--timeout", str(limit), "--",
                            "python3", "-B", pathlib.Path(run_tests.__file__), "--follow", plan, "--results", results])
    bad = 0
    for test, gtest_filter in chosen:
        name = test[0]
        file = results / f"{name}.summary"
        if file.exists():
            bad += bool(json.loads(file.read_text())["failed"])
            continue
        bad += 1
        log = next((path for path in (results / "host0" / f"{name}.log", results / f"{name}.log") if path.exists()), None)
        happened = "the VM ended while it ran" if log else "the VM ended before it ran"
        run_tests.show(write_summary(results, name, failed=count(test, gtest_filter),
                                     problems=[f"{happened} (cenote-vm: exit {ended.returncode})"]),
                       log.read_text(errors="replace") if log else "", log or "no log", again(test, gtest_filter))
    return bad


def outcomes(report):
    """{case: what became of it} from a report of GoogleTest; none if there is no such report."""
    if not report.exists():
        return {}
    found = {}
    for suite in json.loads(report.read_text())["testsuites"]:
        for case in suite["testsuite"]:
            if case["status"] == "RUN":
                became = "failed" if case.get("failures") else "skipped" if case.get("result") == "SKIPPED" else "passed"
                found[f"{suite['name']}.{case['name']}"] = became
    return found


def add_up(name, summaries, folders):
    """One summary of both halves of a two-VM test: a case is as bad as its worse half."""
    order = ["failed", "skipped", "passed"]
    halves = [outcomes(folder / f"{name}.json") for folder in folders]
    counts = dict.fromkeys(order, 0)
    for case in sorted({*halves[0], *halves[1]}):
        counts[min((half.get(case, "failed") for half in halves), key=order.index)] += 1
    problems = [f"VM {host}: {problem}" for host, summary in enumerate(summaries) for problem in summary["problems"]]
    if problems and not counts["failed"]:
        counts["failed"] = 1
    return dict(counts, name=name, problems=problems, seconds=max(summary["seconds"] for summary in summaries))


def summary_of(file, seconds):
    """A summary that the other VM writes; None if it does not within that time."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        try:
            return json.loads(file.read_text())
        except (OSError, ValueError):
            time.sleep(0.1)  # a file of another machine: nothing tells when it is there
    return None


def follow(plan, results):
    """Inside the VM."""
    host = int(os.environ["CENOTEVM_HOST"])
    two = "CENOTEVM_PEER_ADDRESSES" in os.environ
    for test, gtest_filter in json.loads(plan.read_text()):
        name = test[0]
        if not two:
            summary, output = run_tests.run_one(test, results, gtest_filter)
            run_tests.show(summary, output, results / f"{name}.log", again(test, gtest_filter))
            continue
        folders = [results / "host0", results / "host1"]
        folders[host].mkdir(exist_ok=True)
        summary, output = run_tests.run_one(test, folders[host], gtest_filter)
        theirs = summary_of(folders[1 - host] / f"{name}.summary", test[3] + 30)
        if host:
            continue
        theirs = theirs or {"problems": ["no result"], "seconds": 0.0}
        both = add_up(name, [summary, theirs], folders)
        log = folders[1] / f"{name}.log"
        if theirs["problems"] and log.exists():
            output += "\n--- the other VM ---\n" + log.read_text(errors="replace")
        (results / f"{name}.summary").write_text(json.dumps(both))
        run_tests.show(both, output, folders[0] / f"{name}.log", again(test, gtest_filter))
    return 0


if __name__ == "__main__":
    sys.exit("vm_tests is a part of run_tests.py")
