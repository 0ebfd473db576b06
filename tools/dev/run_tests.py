"""Runs the test programs of one build folder and counts what ran.

Each program gets a deadline, a process group and a TMPDIR of its own. Afterwards nothing of it may be left: a
process that outlives its test, or a file in its TMPDIR, fails the test like a wrong result does.
"""

import argparse
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import vm_tests

PR_SET_CHILD_SUBREAPER = 36


def discover(build):
    """[(name, command, labels, timeout, folder, environment)] as ctest knows them."""
    shown = subprocess.run(["ctest", "--show-only=json-v1"], cwd=build, check=True, capture_output=True, text=True)
    tests = []
    for test in json.loads(shown.stdout)["tests"]:
        if "command" not in test:
            sys.exit(f"run_tests: {test['name']} is listed but not built")
        properties = {p["name"]: p["value"] for p in test.get("properties", [])}
        tests.append((test["name"], test["command"], properties.get("LABELS", []), float(properties.get("TIMEOUT", 120)),
                      properties.get("WORKING_DIRECTORY", str(build)),
                      dict(variable.split("=", 1) for variable in properties.get("ENVIRONMENT", []))))
    return tests


def is_gtest(command):
    return any(part.startswith("--gtest_brief") for part in command)


def cases_of(command):
    """The test cases of one GoogleTest program, as Suite.Case."""
    listed = subprocess.run([command[0], "--gtest_list_tests"], capture_output=True, text=True, timeout=60).stdout
    suite, cases = "", []
    for line in listed.splitlines():
        line = line.split("#")[0].rstrip()
        if line.startswith("  "):
            cases.append(suite + line.strip())
        elif line.endswith("."):
            suite = line.strip()
    return cases


def descendants():
    """Processes below this one, zombies not counted: with the subreaper flag orphans come back to us."""
    parents, alive = {}, {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        name, rest = stat[stat.index("(") + 1:stat.rindex(")")], stat[stat.rindex(")") + 2:].split()
        parents[int(entry.name)] = int(rest[1])
        if rest[0] != "Z":
            alive[int(entry.name)] = name
    found, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return {pid: alive[pid] for pid in found - {os.getpid()} if pid in alive}


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def end_leftovers():
    """Names of the processes a test left; ends them. Those that are just dying get a moment."""
    for _ in range(40):
        reap()
        left = descendants()
        if not left:
            return []
        time.sleep(0.05)
    names = sorted(f"{name} ({pid})" for pid, name in left.items())
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    for _ in range(40):
        reap()
        if not descendants():
            break
        time.sleep(0.05)
    return names


def wait_reaping(process, timeout):
    """process.wait(timeout), and meanwhile what init does for orphans: a dead process that nobody reaps would still
    look alive to a test that counts them."""
    give_up = time.monotonic() + timeout
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended and ended.si_pid == process.pid:
            return process.wait()
        if ended:
            os.waitpid(ended.si_pid, 0)
        elif time.monotonic() > give_up:
            raise subprocess.TimeoutExpired(process.args, timeout)
        else:
            time.sleep(0.005)


def counts_from(report, output, gtest, ok):
    """(passed, failed, skipped) of one program; a program that is not GoogleTest counts what it says, or one."""
    if gtest and report.exists():
        result = json.loads(report.read_text())
        skipped = sum(1 for suite in result["testsuites"] for case in suite["testsuite"] if case.get("result") == "SKIPPED")
        failed = result["failures"] + result.get("errors", 0)
        return result["tests"] - failed - skipped - result.get("disabled", 0), failed, skipped
    said = re.findall(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", output, re.M)
    if said and not gtest:
        return tuple(int(n or 0) for n in said[-1])
    return (1, 0, 0) if ok else (0, 1, 0)


def run_one(test, results, gtest_filter):
    name, command, _, timeout, folder, added = test
    report = results / f"{name}.json"
    environment = dict(os.environ, **added)
    if is_gtest(command):
        environment["GTEST_OUTPUT"] = f"json:{report}"
        if gtest_filter:
            # what the build leaves out stays out
            without = added.get("GTEST_FILTER", "").partition("-")[2]
            command = command + [f"--gtest_filter={gtest_filter}" + (f"-{without}" if without else "")]
    temporary = tempfile.mkdtemp(prefix="cenote-test-")
    environment["TMPDIR"] = temporary
    started, problems = time.monotonic(), []
    with open(results / f"{name}.log", "w+b") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            status = wait_reaping(process, timeout)
            if status:
                problems.append(f"exit {status}" if status > 0 else f"ended by {signal.Signals(-status).name}")
        except subprocess.TimeoutExpired:
            problems.append(f"still running after {timeout:.0f} s")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        output = log.read().decode(errors="replace")
    left = end_leftovers()
    if left:
        problems.append("left processes behind: " + ", ".join(left))
    files = sorted(os.listdir(temporary))
    if files:
        problems.append("left files behind in TMPDIR: " + ", ".join(files[:5]))
    shutil.rmtree(temporary, ignore_errors=True)
    passed, failed, skipped = counts_from(report, output, is_gtest(command), not problems)
    if problems and not failed:
        failed += 1
    summary = {"name": name, "passed": passed, "failed": failed, "skipped": skipped, "seconds": time.monotonic() - started,
               "problems": problems}
    (results / f"{name}.summary").write_text(json.dumps(summary))
    return summary, output


def show(summary, output, log, command):
    skipped = f", {summary['skipped']} skipped" if summary["skipped"] else ""
    word = "FAILED" if summary["failed"] else "ok"
    print(f"  {word:6} {summary['name']:36} {summary['passed']:5} passed{skipped}  {summary['seconds']:6.1f} s", flush=True)
    if summary["failed"]:
        print(f"    {'; '.join(summary['problems'])}; {log}; again: {' '.join(command)}")
        lines = output.splitlines()
        wanted = [line for line in lines if "FAILED" in line or "Failure" in line or "ERROR" in line or "WARNING:" in line]
        print("\n".join("    | " + line for line in wanted[:20] + lines[-40:]), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--follow", type=pathlib.Path, help=argparse.SUPPRESS)  # inside the test VM
    parser.add_argument("pattern", nargs="?", default="")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.follow:
        return vm_tests.follow(options.follow, options.results)
    build = options.build.resolve()

    chosen = []
    for test in discover(build):
        name, command, labels = test[0], test[1], test[2]
        if "slow" in labels and not options.full and not options.list and not options.pattern:
            continue
        if not options.list and (not options.pattern or options.pattern in name):
            chosen.append((test, None))
            continue
        cases = cases_of(command) if is_gtest(command) else [name]
        matching = [case for case in cases if options.pattern in case or options.pattern in name]
        if options.list:
            print("\n".join(f"{name}: {case}" for case in matching) if matching else "", end="\n" if matching else "")
        elif matching:
            chosen.append((test, ":".join(matching)))
    if options.list:
        return 0
    if not chosen:
        print(f"no test's name contains '{options.pattern}'; ./dev test --list names them", file=sys.stderr)
        return 1

    options.results.mkdir(parents=True, exist_ok=True)
    results = options.results.resolve()
    print(f"· test {build.name}: {len(chosen)} programs", flush=True)
    bad = 0
    try:
        for test, gtest_filter in chosen:
            if vm_tests.label_of(test):
                continue
            summary, output = run_one(test, results, gtest_filter)
            show(summary, output, results / f"{test[0]}.log", test[1])
            bad += bool(summary["failed"])
        bad += vm_tests.run([each for each in chosen if vm_tests.label_of(each[0])], results)
    finally:
        end_leftovers()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
