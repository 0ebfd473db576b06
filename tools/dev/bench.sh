# ./dev bench: each bench is a program build/release/bin/bench_NAME that prints its rows as a table and, with
# --json FILE, writes them; DESIGN of a row: name pairs value unit against against_value ratio spread bar met.

bench_names() { sed -n 's/^cenote_bench(\([a-z_]*\).*/\1/p' perf/CMakeLists.txt | sort; }

run_bench() {
  local names=() json='' passed=() launches=() words around
  while [ $# -gt 0 ]; do
    case "$1" in
      --list) bench_names; return 0 ;;
      --json) shift; json=$(from_caller "${1:?--json takes a file}") ;;
      --json=*) json=$(from_caller "${1#--json=}") ;;
      --only | --pairs) passed+=("$1" "${2?$1 takes a value}"); shift ;;
      --launches) launches=("$1" "${2?$1 takes a value}"); shift ;;
      --launches=*) launches=("$1") ;;
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
  # What a launch costs over shared memory belongs to the transports' rows; another program measures it.
  known=" ${names[*]} "
  if [[ $known == *' transports '* && $known != *' remote '* ]]; then names+=('remote --only=null'); fi
  need_packages build bench
  # The kernel's verbs are to be had in the test VM.
  case " ${names[*]} " in *' verbs '*) try_packages vm || true ;; esac
  local status=0 parts targets=("${names[@]%% *}")
  build release "${targets[@]/#/bench_}" cenote
  parts=$(mktemp -d)
  # expanded now: when the trap runs, the function and its variables are gone
  trap "rm -rf '$parts'" EXIT
  for name in "${names[@]}"; do
    read -ra words <<<"$name"
    # only the remote GPU's rows count launches
    if [ "${words[0]}" = remote ]; then words+=("${launches[@]}"); fi
    around=()
    if [ "${words[0]}" = verbs ]; then
      around=(tests/vm/cenote-vm run --cpus 2 --devices 4 --timeout 1800 --rw "$parts" --)
    fi
    run "${around[@]}" "build/release/bin/bench_${words[0]}" --json "$parts/${words[0]}.json" "${words[@]:1}" "${passed[@]}" || status=1
  done
  if [ -n "$json" ]; then python3 tools/dev/merge_rows.py "$parts" >"$json"; fi
  return "$status"
}
