#!/usr/bin/env bash
# Can gRPC and protobuf go into libcenote-pool.so, hidden? Tries it with Debian's archives and prints what the linker
# says: their objects that keep thread-local data are compiled for programs, not for shared libraries. While it says so,
# libcenote-pool.so needs the system's shared libraries. Exit 0: it links, and pool/agent.cmake should do it.
set -uo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
echo 'int anchor;' | cc -x c -fPIC -c -o "$out/anchor.o" -
status=0
for library in protobuf grpc++ grpc gpr; do
  if said=$(cc -shared -o "$out/probe.so" "$out/anchor.o" -Wl,--whole-archive "-l:lib$library.a" -Wl,--no-whole-archive 2>&1); then
    echo "lib$library.a: links into a shared library"
  else
    status=1
    echo "lib$library.a: refused; the linker's first reason:"
    printf '%s\n' "$said" | grep -m1 -E 'R_X86_64_[A-Z0-9]+' | sed 's/^/  /'
    printf '%s\n' "$said" | grep -oE 'R_X86_64_[A-Z0-9]+' | sort | uniq -c | sed 's/^/  /'
  fi
done
exit $status
