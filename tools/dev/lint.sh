# ./dev lint

run_lint() {
  need_packages build test lint
  stage "format check" bash -c "$(declare -f sources); sources | xargs clang-format-16 --dry-run -Werror"
  # clang-tidy reads the flags of the clang build, so that it sees no option of g++ that it does not know.
  [ -f build/asan/build.ninja ] || stage "configure asan" cmake --preset asan
  if [ "${CENOTE_WITH_GRPC:-ON}" = ON ]; then stage "generated code" cmake --build --preset asan --target cenote_generated; fi
  mapfile -t files < <(if [ $# -gt 0 ]; then printf '%s\n' "$@"; else git ls-files '*.cpp' ':!tests/*'; fi)
  stage "clang-tidy ${#files[@]} files" bash -c 'printf "%s\n" "$@" | xargs -P "$(nproc)" -n 4 clang-tidy-16 -p build/asan --quiet' _ "${files[@]}"
}
