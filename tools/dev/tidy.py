"""Runs clang-tidy over files of one build folder, and reads again only what changed since it was clean.

tidy.py --build FOLDER --cache FOLDER FILE...: a file counts as clean for as long as its compile command, .clang-tidy,
the version of clang-tidy and the bytes of every file that it includes stay what they were. Prints each finding once,
also one in a header that many files include, and at the end their number per file; exit 1 if there are any.
"""

import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import threading
import time

DEADLINE_S = 900
FINDING = re.compile(r"^(\S.*?):(\d+):(\d+): (?:warning|error): .* \[[\w.,-]+\]$")


def findings_in(output):
    """[(file, text)]: each finding with the notes below it."""
    found = []
    for line in output.splitlines():
        match = FINDING.match(line)
        if match:
            found.append((match.group(1), [line]))
        elif found:
            found[-1][1].append(line)
    return [(file, "\n".join(lines)) for file, lines in found]


def commands_of(build):
    """{file: (folder, words)} as the build compiles them."""
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = entry.get("arguments") or shlex.split(entry["command"])
        if pathlib.Path(words[0]).name == "ccache":
            words = words[1:]
        commands.setdefault(os.path.realpath(os.path.join(entry["directory"], entry["file"])), (entry["directory"], words))
    return commands


def included_by(folder, words):
    """The files that the compiler opens for this command, the source itself among them; none if it refuses."""
    kept, skip = [], False
    for word in words:
        if not skip and word not in ("-o", "-c"):
            kept.append(word)
        skip = not skip and word == "-o"
    made = subprocess.run(kept + ["-M", "-MT", "x"], cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S)
    if made.returncode:
        return []
    names = shlex.split(made.stdout.replace("\\\n", " "))[1:]
    return sorted({os.path.realpath(os.path.join(folder, name)) for name in names})


class Memory:
    """What was clean, one small file for each source."""

    def __init__(self, folder, rules):
        self.folder, self.rules, self.digests, self.lock = folder, rules, {}, threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def digest(self, path):
        """Of the bytes of `path`, read again only when its size or time changed; None when it cannot be read."""
        try:
            stat = os.stat(path)
            version = (stat.st_size, stat.st_mtime_ns)
            with self.lock:
                known = self.digests.get(path)
            if not known or known[0] != version:
                known = (version, hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest())
                with self.lock:
                    self.digests[path] = known
            return known[1]
        except OSError:
            return None

    def place(self, file):
        return self.folder / (hashlib.sha256(file.encode()).hexdigest()[:32] + ".json")

    def state(self, command, included):
        return {"rules": self.rules, "command": list(command[1]), "read": {path: self.digest(path) for path in included}}

    def clean(self, file, command):
        try:
            kept = json.loads(self.place(file).read_text())
            return kept == self.state(command, kept["read"])
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def keep(self, file, state):
        written = self.place(file).with_suffix(f".{threading.get_ident()}")
        written.write_text(json.dumps(state))
        written.replace(self.place(file))


def read_file(tidy, build, file, command, memory):
    """(findings, seconds) of one source; remembers it when there are none."""
    started = time.monotonic()
    try:
        included = included_by(*command)
        before = memory.state(command, included)
        ran = subprocess.run([tidy, "-p", str(build), "--quiet", file], capture_output=True, text=True,
                             errors="replace", timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        return [(file, f"{file}: not read: no answer in {DEADLINE_S} s")], time.monotonic() - started
    found = findings_in(ran.stdout)
    if ran.returncode and not found:
        said = (ran.stdout + ran.stderr).strip() or "it printed nothing"
        found = [(file, f"{file}: not read: {tidy} ended with {ran.returncode}: {said}")]
    # What changed meanwhile is read again the next time.
    if not found and file in included and before == memory.state(command, included):
        memory.keep(file, before)
    return found, time.monotonic() - started


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="with compile_commands.json")
    parser.add_argument("--cache", type=pathlib.Path, required=True, help="remembers what is clean")
    parser.add_argument("--rules", type=pathlib.Path, default=pathlib.Path(".clang-tidy"))
    parser.add_argument("--tidy", default="clang-tidy-16")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("files", nargs="+")
    return parser.parse_args()


def main():
    options = parse()
    version = subprocess.run([options.tidy, "--version"], check=True, capture_output=True, text=True, timeout=60).stdout
    memory = Memory(options.cache, hashlib.sha256(options.rules.read_bytes() + version.encode()).hexdigest())
    commands = commands_of(options.build)
    files = [os.path.realpath(file) for file in options.files]
    built = [file for file in files if file in commands]
    for file in sorted(set(files) - set(built)):
        print(f"  not part of {options.build}, not read: {os.path.relpath(file)}")
    if not built:
        print(f"tidy: none of these files is part of {options.build}", file=sys.stderr)
        return 1
    waiting = [file for file in built if not memory.clean(file, commands[file])]
    print(f"· clang-tidy: {len(built)} files, {len(built) - len(waiting)} unchanged since they were clean, "
          f"{len(waiting)} to read", flush=True)

    seen, per_file = set(), collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        reads = {pool.submit(read_file, options.tidy, options.build, file, commands[file], memory): file for file in waiting}
        for done, read in enumerate(concurrent.futures.as_completed(reads), 1):
            found, seconds = read.result()
            fresh = [(file, text) for file, text in found if text.splitlines()[0] not in seen]
            seen.update(text.splitlines()[0] for _, text in fresh)
            per_file.update(os.path.relpath(file) for file, _ in fresh)
            word = f"{len(found)} findings" if len(found) > 1 else "1 finding" if found else "clean"
            print(f"  {done:3} of {len(waiting)}  {os.path.relpath(reads[read]):48} {word:12} {seconds:6.1f} s", flush=True)
            for _, text in fresh:
                print("\n".join("    | " + line for line in text.splitlines()), flush=True)

    for file, count in sorted(per_file.items()):
        print(f"  {count:4} {file}")
    print(f"{len(built)} files, {sum(per_file.values())} findings in {len(per_file)} files")
    return 1 if per_file else 0


if __name__ == "__main__":
    sys.exit(main())
