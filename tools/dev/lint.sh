# ./dev lint [FILE...]

run_lint() {
  need_packages build test lint
  stage "format check" bash -c "$(declare -f sources); sources | xargs clang-format-16 --dry-run -Werror"
  # clang-tidy reads the flags of the clang build, so that it sees no option of g++ that it does not know.
  [ -f build/asan/build.ninja ] || stage "configure asan" cmake --preset asan
  if grep -q '^CENOTE_WITH_GRPC:BOOL=ON' build/asan/CMakeCache.txt; then
    stage "generated code" cmake --build --preset asan --target cenote_generated
  fi
  local files=() file
  for file in "$@"; do files+=("$(from_caller "$file")"); done
  [ $# -gt 0 ] || mapfile -t files < <(git ls-files '*.cpp' ':!tests/*')
  run python3 tools/dev/tidy.py --build build/asan --cache build/lint-cache "${files[@]}"
}
