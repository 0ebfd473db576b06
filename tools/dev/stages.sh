# What ./dev's commands share: stages of one line each, packages, builds, their callers' files. Sourced with ROOT set,
# and CALLER: the folder that ./dev was called in.

LOG=$ROOT/build/log
quiet_stages=${quiet_stages:-}
# One cache for every checkout of the tree: paths below ROOT do not count.
export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=true CCACHE_SLOPPINESS=pch_defines,time_macros

child=
stop_child() {
  trap - INT TERM
  [ -n "$child" ] && kill -TERM -- "-$child" 2>/dev/null && wait "$child" 2>/dev/null
  exit $((128 + $1))
}
trap 'stop_child 2' INT
trap 'stop_child 15' TERM

# run CMD...: in a process group of its own, so that Ctrl-C or a kill of ./dev ends all of it.
run() {
  set -m
  "$@" </dev/null &
  child=$!
  set +m
  local status=0
  wait "$child" || status=$?
  child=
  return "$status"
}

# stage NAME CMD...: one line while it runs, its output in build/log/NAME.log; on failure the end of that, and of ./dev.
stage() { try_stage "$@" || exit 1; }

try_stage() {
  local name=$1 started=$SECONDS
  shift
  mkdir -p "$LOG"
  [ -n "$quiet_stages" ] || printf '· %-28s' "$name"
  if run "$@" >"$LOG/${name//[ \/]/-}.log" 2>&1; then
    [ -n "$quiet_stages" ] || printf 'done %4d s\n' $((SECONDS - started))
  else
    local status=$?
    printf 'FAILED (exit %d); the end of %s:\n' "$status" "build/log/${name//[ \/]/-}.log"
    grep -nE 'error|FAILED|Error' "$LOG/${name//[ \/]/-}.log" | head -n 20 || true
    tail -n 30 "$LOG/${name//[ \/]/-}.log"
    return 1
  fi
}

# packages_of GROUP...: the package names of tools/packages.txt in those groups.
packages_of() {
  local group='' line
  while IFS= read -r line; do
    line=${line%%#*}
    line=${line//[[:space:]]/}
    case "$line" in
      '') ;;
      '['*) group=${line//[\[\]]/} ;;
      *) case " $* " in *" $group "*) echo "$line" ;; esac ;;
    esac
  done <"$ROOT/tools/packages.txt"
}

# need_packages GROUP...: installs what is missing, or ends ./dev. try_packages: or goes on without.
need_packages() { try_packages "$@" || exit 1; }

try_packages() {
  local missing=() name
  if ! command -v dpkg-query >/dev/null; then
    echo "dev: not a Debian system: install by hand what tools/packages.txt lists (groups: $*), then ./dev build" >&2
    return 0
  fi
  for name in $(packages_of "$@"); do
    dpkg-query -W -f '${db:Status-Abbrev}' "$name" 2>/dev/null | grep -q '^ii' || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  local root=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "dev: packages are missing and neither root nor sudo is at hand: apt-get install ${missing[*]}" >&2; return 1; }
    # asked for here, in the foreground: a stage has no terminal
    sudo -v || { echo "dev: sudo refused; run as root: apt-get install ${missing[*]}" >&2; return 1; }
    root=(sudo -n)
  fi
  try_stage "refresh package lists" "${root[@]}" apt-get update || return 1
  local noun=packages
  [ ${#missing[@]} -gt 1 ] || noun=package
  try_stage "install ${#missing[@]} $noun" "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
}

# build PRESET [TARGET...]
build() {
  local preset=$1
  shift
  if [ ! -f "build/$preset/build.ninja" ]; then stage "configure $preset" cmake --preset "$preset"; fi
  stage "build $preset" cmake --build --preset "$preset" ${1:+--target "$@"}
}

# sources: every file that clang-format owns.
sources() { git ls-files '*.cpp' '*.h' '*.hpp' '*.c' '*.cu'; }

# PyTorch (from PyPI, several GB) into a folder that all checkouts share, once.
TORCH_VENV=${XDG_CACHE_HOME:-$HOME/.cache}/cenote/venv
need_torch() {
  [ -x "$TORCH_VENV/bin/python" ] && "$TORCH_VENV/bin/python" -c 'import torch' 2>/dev/null && return 0
  need_packages python
  stage "make a Python environment" /usr/bin/python3 -m venv "$TORCH_VENV"
  stage "install PyTorch" "$TORCH_VENV/bin/pip" install --quiet numpy torch
}

# from_caller FILE: as the caller means it, whose folder is not the one that we work in.
from_caller() {
  case "$1" in '' | /*) printf '%s' "$1" ;; *) printf '%s' "$CALLER/$1" ;; esac
}

# demo_words WORD...: into `words`, with the files that they name as the caller means them.
demo_words() {
  words=()
  while [ $# -gt 0 ]; do
    case "$1" in
      --json | --data)
        words+=("$1")
        [ $# -eq 1 ] || { words+=("$(from_caller "$2")"); shift; }
        ;;
      --json=* | --data=*) words+=("${1%%=*}=$(from_caller "${1#*=}")") ;;
      *) words+=("$1") ;;
    esac
    shift
  done
}
