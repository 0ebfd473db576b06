"""Holds the shared libraries' binary interface to the dumps in tests/abi, or writes these anew:

    python3 tools/dev/abi.py BUILD_FOLDER [--update]
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARIES = ("cenote", "cenote-pool")


def dump_of(name):
    return ROOT / f"tests/abi/lib{name}.abi"


def dump(library, headers, into):
    """What programs can see of `library`: its symbols, and the types of `headers`."""
    subprocess.run(["abidw", "--exported-interfaces-only", "--headers-dir", headers, "--drop-private-types", "--no-show-locs", "--no-corpus-path",
                    "--no-comp-dir-path", "--out-file", into, pathlib.Path(library).resolve()], check=True)
    # A compiler cache may have made the sources' paths whole or relative to the build.
    text = pathlib.Path(into).read_text()
    pathlib.Path(into).write_text(re.sub(rf" path='(?:{re.escape(str(ROOT))}/|(?:\.\./)*)", " path='", text))


def changes(old, new):
    """What changed, in words; "" where nothing did."""
    compared = subprocess.run(["abidiff", "--no-default-suppression", old, new], capture_output=True, text=True)
    if compared.returncode & 3:
        raise RuntimeError(f"abidiff failed: {compared.stderr or compared.stdout}")
    return compared.stdout.strip() if compared.returncode else ""


def meaning_of(said):
    """What changes mean for programs that are built already."""
    if re.search(r"[1-9]\d* Removed", said):
        return "programs that are built break: raise the major version in CMakeLists.txt, or change it back"
    if re.search(r"[1-9]\d* Changed", said):
        return ("programs that are built break, unless all that changed are new fields at the end of structs that begin with "
                "`size`, and new values at the end of enums: look at each")
    return "programs that are built run on"


def verdict(name, said):
    """What to tell whoever changed it; "" where nothing did."""
    if not said:
        return ""
    return (f"the binary interface of lib{name} is not that of {dump_of(name).relative_to(ROOT)}:\n{said}\n"
            f"{meaning_of(said)}.\nIf it is meant: python3 tools/dev/abi.py BUILD_FOLDER --update, and commit the dump")


def check(build):
    """The verdicts on all libraries of a build; empty where nothing changed."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in LIBRARIES:
            now = pathlib.Path(folder, f"lib{name}.abi")
            dump(build / f"lib/lib{name}.so", ROOT / "include/cenote", now)
            found.append(verdict(name, changes(dump_of(name), now)))
    return [each for each in found if each]


def main():
    build = pathlib.Path(sys.argv[1])
    if "--update" in sys.argv[2:]:
        for name in LIBRARIES:
            dump(build / f"lib/lib{name}.so", ROOT / "include/cenote", dump_of(name))
            print(f"wrote {dump_of(name).relative_to(ROOT)}")
        return 0
    found = check(build)
    print("\n\n".join(found) or "the binary interface is that of tests/abi")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
