# ./dev lint [FILE...]

run_lint() {
  need_packages build test lint
  stage "format check" bash -c "$(declare -f sources); sources | xargs clang-format-16 --dry-run -Werror"
  # The flags of a clang build, so that clang-tidy sees no option of g++ that it does not know; nothing of it is compiled.
  stage "configure lint" cmake --preset asan -B build/lint -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
  if grep -q '^CENOTE_WITH_GRPC:BOOL=ON' build/lint/CMakeCache.txt; then
    stage "generated code" cmake --build build/lint --target cenote_generated
  fi
  local files=() file
  for file in "$@"; do files+=("$(from_caller "$file")"); done
  [ $# -gt 0 ] || mapfile -t files < <(git ls-files '*.cpp' ':!tests/*')
  run python3 tools/dev/tidy.py --build build/lint --cache build/lint-cache "${files[@]}"
}
