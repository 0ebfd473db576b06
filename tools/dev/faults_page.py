"""docs/faults.md from the reports of a whole run of the tests: faults_page.py build/results/release > docs/faults.md.

`--check`: says what differs from the page that is there, and ends with 1. Rows are what tests/fault_row.h records.
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/faults.md"
TOP = """# Faults

For who wants to know what was tried. Every fault that the tests inject in one `./dev test`, how often, what is promised and
what was seen. Made by `tools/dev/faults_page.py` from the reports of a run, which a whole run holds it to. A run in which
something else is seen fails; no row says otherwise than its promise.

**Seeds.** `transports/fault` wraps a transport and is as bad to its traffic as the contract allows
(`transports/transport.h`), and breaks it for good, once, in every third seed. What happens to an
operation is a function of the seed, of whose it is, and of its number: not of a clock. `--full` takes 10,000 seeds instead of
300. A seed that fails is printed with the command that repeats it:

    build/release/tests/fault_collectives --seed=1234
    build/release/tests/fault_traffic --seed=0 --seeds=300

**Damage.** Frames of `tcp`, packets of the bootstrap and shared memory carry no checksum of their own: TCP's, and those of
the memory and the cards, are trusted. So damage is injected as what a checksum makes of it: wrong bytes that are never
signalled, and an error to who sent them. What would happen without is tried as well: silent damage, a signal before its
bytes, an operation that is said to be done and is not, and one that is done twice; `fault_traffic` must see each of them.

Faults of real links and cards, in the test VM: [testing.md](testing.md).
"""


def rows(results):
    """{(where, fault, promise, seen): times} of all reports, in their order."""
    found = {}

    def look(node):
        if isinstance(node, dict):
            for key, value in node.items():
                if key.startswith("fault_row_"):
                    where, fault, times, promise, seen = value.split("|")
                    row = (where, fault, promise, seen)
                    found[row] = found.get(row, 0) + int(times)
                else:
                    look(value)
        elif isinstance(node, list):
            for each in node:
                look(each)

    for report in sorted(pathlib.Path(results).glob("*.json")):
        # Other seeds of the same cases: some take long, many come with --full. The page is of every run.
        if report.stem.endswith(("_many_test", "_long_test")):
            continue
        look(json.loads(report.read_text()))
    return found


def page(found):
    out = [TOP]
    for where in sorted({row[0] for row in found}):
        out += [f"## {where}\n", "| fault | tried | promised | seen |", "|---|---|---|---|"]
        out += [f"| {fault} | {times:,} | {promise} | {seen} |"
                for (at, fault, promise, seen), times in found.items() if at == where]
        out.append("")
    return "\n".join(out)


def main():
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    text = page(rows(arguments[0]))
    if "--check" not in sys.argv:
        print(text, end="")
        return 0
    theirs, ours = PAGE.read_text().split("\n"), text.split("\n")
    differs = [f"- {line}" for line in theirs if line not in ours] + [f"+ {line}" for line in ours if line not in theirs]
    if theirs != ours:
        print("docs/faults.md is not what this run saw: python3 tools/dev/faults_page.py "
              f"{arguments[0]} > docs/faults.md\n" + "\n".join(differs[:20]), file=sys.stderr)
    return 1 if theirs != ours else 0


if __name__ == "__main__":
    sys.exit(main())
