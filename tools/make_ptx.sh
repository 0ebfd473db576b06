#!/bin/sh
# Compiles every kernel to the PTX kept beside it (or, with a folder as argument, there).
#   tools/make_ptx.sh [FOLDER]        CUDA's compiler is $NVCC, or nvcc.
set -eu
cd "$(dirname "$0")/../cuda/kernels"
out=${1:-.}
for source in *.cu; do
  "${NVCC:-nvcc}" -ptx -std=c++17 -O3 -fmad=false -arch=compute_75 -o "$out/${source%.cu}.ptx" "$source"
done
