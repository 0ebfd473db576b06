# ./dev bench: each bench is a program build/release/bin/bench_NAME that prints its rows as a table and, with
# --json FILE, writes them; DESIGN of a row: name value unit against against_value ratio spread bar met.

bench_names() { sed -n 's/^cenote_bench(\([a-z_]*\).*/\1/p' perf/CMakeLists.txt | sort; }

run_bench() {
  local names=() json='' passed=()
  while [ $# -gt 0 ]; do
    case "$1" in
      --list) bench_names; return 0 ;;
      --json) shift; json=${1:?--json takes a file} ;;
      -*) passed+=("$1") ;;
      *) names+=("$1") ;;
    esac
    shift
  done
  [ ${#names[@]} -gt 0 ] || mapfile -t names < <(bench_names)
  local name known
  known=" $(bench_names | tr '\n' ' ')"
  for name in "${names[@]}"; do
    case "$known" in *" $name "*) ;; *) echo "dev: no bench '$name'; ./dev bench --list names them" >&2; exit 2 ;; esac
  done
  need_packages build bench
  build release "${names[@]/#/bench_}" cenote
  local status=0 parts
  parts=$(mktemp -d)
  trap 'rm -rf "$parts"' EXIT
  for name in "${names[@]}"; do
    run "build/release/bin/bench_$name" --json "$parts/$name.json" "${passed[@]}" || status=1
  done
  if [ -n "$json" ]; then python3 tools/dev/merge_rows.py "$parts" >"$json"; fi
  return "$status"
}
