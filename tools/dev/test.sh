# ./dev test

run_tests() {
  local presets=(release asan tsan) pattern='' list='' full=()
  while [ $# -gt 0 ]; do
    case "$1" in
      --list) list=1 ;;
      --full) full=(--full) ;;
      --preset) shift; presets=("${1:?--preset takes a name}") ;;
      -*) echo "dev: test takes --list, --full, --preset NAME and a pattern, not '$1'" >&2; exit 2 ;;
      *) pattern=$1; [ "${#presets[@]}" = 3 ] && presets=(release) ;;
    esac
    shift
  done
  [ -n "$list" ] && { presets=(release); quiet_stages=1; }
  need_packages build test
  # without these, the tests over kernel verbs say that they did not run
  [ -n "$list" ] || try_packages vm || true
  local preset status=0 results=$ROOT/build/results
  [ -z "$list" ] && rm -rf "$results"
  for preset in "${presets[@]}"; do
    build "$preset"
    if [ -n "$list" ]; then exec python3 tools/dev/run_tests.py --build "build/$preset" --list "$pattern"; fi
    run python3 tools/dev/run_tests.py --build "build/$preset" --results "$results/$preset" "${full[@]}" "$pattern" || status=1
  done
  # what a whole run saw of faults is what the page says
  if [ -z "$pattern" ] && [ -d "$results/release" ]; then
    python3 tools/dev/faults_page.py --check "$results/release" || status=1
  fi
  python3 tools/dev/count_tests.py "$results" || status=1
  return "$status"
}
