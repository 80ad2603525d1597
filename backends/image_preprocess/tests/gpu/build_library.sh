#!/usr/bin/env bash
# build_library.sh OUT [ARCH…]: the core, the GPU part and the C entry as one shared library for tests and benchmarks.
# Needs nvcc, g++ and the headers of libjpeg, libpng and libwebp; links them statically where LINK_STATIC=1, so that the
# library also runs on a machine without them. ARCH: numbers such as 90; all of the compiler's by default.
set -euo pipefail
out=$(realpath -m "$1"); shift
src=$(cd "$(dirname "$0")/../../src" && pwd)
gencode=()
for arch in "${@:-90}"; do gencode+=(-gencode "arch=compute_$arch,code=sm_$arch"); done
cuda=$(nvcc --dryrun -x cu /dev/null 2>&1 | sed -n "s/^#\$ TOP=//p" | head -1)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
flags=(-std=c++17 -O3 -fPIC -fvisibility=hidden -Wall -Wextra -Wconversion -Werror -ffp-contract=off
  -DTRITONSTACK_MULTIVERSION -I"$src" -isystem "$cuda/include")
for file in "$src"/core/*.cc "$src"/gpu/*.cc "$src"/../cmake/stderr.cc "$src"/../tests/gpu/c_entry.cc; do
  g++ "${flags[@]}" -c "$file" -o "$work/$(basename "$(dirname "$file")")_$(basename "$file").o"
done
for file in "$src"/gpu/*.cu; do
  nvcc -std=c++17 -O3 -lineinfo "${gencode[@]}" -I"$src" -Xcompiler -Wall,-Wextra,-fPIC,-fvisibility=hidden \
    --Werror all-warnings -c "$file" -o "$work/$(basename "$file").o"
done
libraries=(-ljpeg -lpng16 -lwebpdemux -lwebp -lz)
if [ "${LINK_STATIC:-0}" = 1 ]; then
  libraries=(-static-libstdc++ -static-libgcc -Wl,-Bstatic -ljpeg -lpng16 -lwebpdemux -lwebp -lz -Wl,-Bdynamic)
fi
g++ -shared -o "$out" "$work"/*.o -L"$cuda/lib64" -lcudart_static "${libraries[@]}" -ldl -lrt -lpthread -lm \
  -Wl,--exclude-libs,ALL -Wl,-Bsymbolic -Wl,-rpath,'$ORIGIN'
