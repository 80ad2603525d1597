#!/usr/bin/env bash
# build_backend.sh OUT [ARCH…]: the Triton backend as one shared library for a machine that has neither CMake nor the
# decoders' headers. OUT: a folder, or a file libtriton_image_preprocess.so. Needs nvcc, g++ and the static archives of
# libjpeg, libpng and libwebp here; `make backend` builds the same from CMake. ARCH: numbers such as 90.
set -euo pipefail
out=$(realpath -m "$1"); shift
[ ! -d "$out" ] || out=$out/libtriton_image_preprocess.so
src=$(cd "$(dirname "$0")/../../src" && pwd)
gencode=()
for arch in "${@:-90}"; do gencode+=(-gencode "arch=compute_$arch,code=sm_$arch"); done
cuda=$(nvcc --dryrun -x cu /dev/null 2>&1 | sed -n "s/^#\$ TOP=//p" | head -1)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
flags=(-std=c++17 -O3 -DNDEBUG -fPIC -fvisibility=hidden -fvisibility-inlines-hidden -Wall -Wextra -Wconversion -Werror
  -ffp-contract=off -DTRITONSTACK_MULTIVERSION -I"$src" -isystem "$cuda/include")
for file in "$src"/core/*.cc "$src"/gpu/*.cc "$src"/triton/*.cc "$src"/../cmake/stderr.cc; do
  g++ "${flags[@]}" -c "$file" -o "$work/$(basename "$(dirname "$file")")_$(basename "$file").o"
done
for file in "$src"/gpu/*.cu; do
  nvcc -std=c++17 -O3 -lineinfo "${gencode[@]}" -I"$src" -Xcompiler -Wall,-Wextra,-fPIC,-fvisibility=hidden \
    --Werror all-warnings -c "$file" -o "$work/$(basename "$file").o"
done
g++ -shared -o "$out" "$work"/*.o -L"$cuda/lib64" -lcudart_static -static-libstdc++ -static-libgcc \
  -Wl,-Bstatic -ljpeg -lpng16 -lwebpdemux -lwebp -lz -Wl,-Bdynamic -ldl -lrt -lpthread -lm \
  -Wl,--version-script="$src/../cmake/exports.map" -Wl,--exclude-libs,ALL -Wl,-Bsymbolic
