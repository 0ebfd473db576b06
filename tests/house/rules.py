"""The rules of the house that a machine can check, each a function from one file to its offences.

A rule takes (path, text), the path relative to the repository and with forward slashes, and yields (line, what).
DESIGN says which room stands above which; an exception is listed here with its reason, and one that nobody needs
any more is an offence itself (see `check`).
"""

import re

LEVELS = {
    "include": 0, "cenote": 0,  # "cenote/types.h" lies in include/cenote/
    "runtime": 1,
    "transports": 2, "cuda": 2,  # neighbours: neither may use the other
    "collectives": 3,
    "pool": 4,
    "perf": 5,
    "tests": 6, "python": 6, "examples": 6,
}
PRODUCT = {"include", "runtime", "transports", "cuda", "collectives", "pool", "perf"}
CODE = (".h", ".hpp", ".c", ".cpp", ".cu", ".cuh", ".inc")
TEXT = CODE + (".py", ".sh", ".cmake", ".md", ".txt", ".json", ".toml", ".yml", ".yaml", ".proto", ".xml")
MOST_LINES = 600

# (rule, path): why it may.
EXCEPTIONS = {
    ("process", "runtime/settings.cpp"): "it reads the environment: the settings table, and the variables of launchers that are listed beside it",
    ("process", "runtime/spawn.cpp"): "hands the environment on to the programs that are started",
    ("process", "transports/ucx/ucp_api.cpp"): "only UCX's environment forbids it to patch the C library as it is loaded",
    ("process", "pool/agent/worker_main.cpp"): "a worker process ends under a kernel that its driver would wait for",
    ("light_headers", "pool/client/lease_json.h"): "forward declarations only",
}


def room_of(path):
    return path.split("/", 1)[0]


def is_code(path):
    return path.endswith(CODE)


def strip(text):
    """The code without comments and the insides of literals; lines keep their numbers."""
    token = re.compile(r'R"(?P<d>[^()\s\\]{0,16})\(.*?\)(?P=d)"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'
                       r"(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'", re.S)

    def blank(match):
        kept = '""' if match.group(0)[0] in 'R"' else " "
        return kept + "\n" * match.group(0).count("\n")

    return token.sub(blank, text)


def lines_matching(pattern, text):
    for number, line in enumerate(text.split("\n"), 1):
        for match in re.finditer(pattern, line):
            yield number, match


def includes(text):
    uncommented = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)
    for number, match in lines_matching(r'^\s*#\s*include\s*(["<])([^">]+)[">]', uncommented):
        yield number, match.group(1), match.group(2)


def rule_direction(path, text):
    """A room uses only what stands below it, and names it from the repository's root."""
    room = room_of(path)
    if not is_code(path) or room not in LEVELS:
        return
    for number, quote, name in includes(text):
        used = room_of(name)
        if used not in LEVELS:
            if path.endswith(".cu") and "/" not in name:
                continue  # a kernel and its layout stand side by side: nvcc is given the one file alone
            if room == "examples" and "/" not in name:
                continue  # they are built where they are copied to
            if quote == '"' and not re.search(r"\.(pb|grpc\.pb)\.h$", name):
                yield number, f'"{name}" is not written from the repository\'s root'
            continue
        if quote == "<":
            if "/" in name and used != "cenote" and used != "cuda":  # <cuda/...> belongs to NVIDIA's toolkit
                yield number, f"<{name}> is ours: write it in quotes"
            continue
        if used == "cenote":
            used = "include"
        if used != room and LEVELS[used] >= LEVELS[room]:
            beside = LEVELS[used] == LEVELS[room]
            yield number, f'"{name}": {room}/ may not use {used}/, which stands {"beside" if beside else "above"} it'


def rule_libraries(path, text):
    """gRPC, protobuf and OpenSSL stay in pool/: libcenote must not bring them into anybody's process."""
    if not is_code(path) or room_of(path) in ("pool", "tests", "python", "examples"):
        return
    for number, _, name in includes(text):
        if re.match(r"(grpc|grpcpp|google/protobuf|openssl)(/|$)", name) or name.endswith(".pb.h"):
            yield number, f"{name} outside pool/"


def rule_light_headers(path, text):
    """Heavy libraries stay out of headers."""
    if not path.endswith((".h", ".hpp")) or room_of(path) not in PRODUCT:
        return
    for number, _, name in includes(text):
        if re.match(r"(spdlog|nlohmann|toml\+\+|hwloc|CLI|sqlite3)(/|\.|$)", name):
            yield number, f"{name} in a header"


def rule_process(path, text):
    """A library reads no environment and does not end its process."""
    if not is_code(path) or room_of(path) not in PRODUCT:
        return
    code = strip(text)
    # Not a member (x.exit(), x->exit()), not another name (worker_exit(), Worker::exit()).
    free = r"(?<![\w.>:~])(?:std::|::)?"
    patterns = {
        "the environment": free + r"(?:secure_getenv|getenv|setenv|unsetenv|putenv|clearenv)\s*\(|(?<![\w.>])environ\b",
        "abort": free + r"abort\s*\(\s*\)",
        "exit": free + r"(?:exit|_exit|_Exit|quick_exit)\s*\(",
        "terminate": r"\bstd::terminate\b",
        "assert": r"(?<![\w.>])assert\s*\(",
    }
    if room_of(path) == "perf":  # programs, which end themselves and the children they fork
        del patterns["exit"]
    for name, pattern in patterns.items():
        for number, match in lines_matching(pattern, code):
            yield number, f"{name}: {match.group(0).strip()}"


def rule_length(path, text):
    if path.endswith(CODE + (".py", ".sh")) and text.count("\n") > MOST_LINES:
        yield MOST_LINES, f"{text.count(chr(10))} lines, at most {MOST_LINES}"


def rule_paths(path, text):
    """Nothing names a folder of the machine it was written on."""
    if not (path.endswith(TEXT) or "." not in path.rsplit("/", 1)[-1]):
        return
    for number, match in lines_matching(r"(?<![\w./$}])/(?:work|home|root|Users)/[\w.-]+", text):
        yield number, f"machine path {match.group(0)}"


def rule_portable(path, text):
    """One binary for every processor of a kind: vector code is chosen at run time."""
    if path.endswith((".cmake", ".json", ".txt")):
        for number, match in lines_matching(r"-m(?:arch|tune)=native", text):
            yield number, match.group(0)


RULES = {
    "direction": rule_direction,
    "libraries": rule_libraries,
    "light_headers": rule_light_headers,
    "process": rule_process,
    "length": rule_length,
    "paths": rule_paths,
    "portable": rule_portable,
}


def check(files, exceptions=None):
    """`files`: (path, text) pairs. Returns the offences as "path:line: rule: what", in order."""
    exceptions = EXCEPTIONS if exceptions is None else exceptions
    offences, used = [], set()
    for path, text in files:
        for name, rule in RULES.items():
            for number, what in rule(path, text):
                if (name, path) in exceptions:
                    used.add((name, path))
                else:
                    offences.append(f"{path}:{number}: {name}: {what}")
    for name, path in sorted(set(exceptions) - used):
        offences.append(f"tests/house/rules.py: the exception of {path} from '{name}' is not needed")
    return offences
