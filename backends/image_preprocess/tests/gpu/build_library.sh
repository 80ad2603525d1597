#!/usr/bin/env bash
# build_library.sh OUT [ARCH…]: the core, the GPU part and the C entry as one shared library for tests and benchmarks.
# Needs nvcc, g++ and the headers of libjpeg, libpng and libwebp; links them statically where LINK_STATIC=1, so that the
# library also runs on a machine without them. ARCH: numbers such as 90; 90 by default.
set -euo pipefail
out=$(realpath -m "$1"); shift
. "$(dirname "$0")/compile.sh"
compile "$*" "" "$src"/../tests/gpu/c_entry.cc
libraries=(-ljpeg -lpng16 -lwebpdemux -lwebp -lz)
if [ "${LINK_STATIC:-0}" = 1 ]; then
  libraries=(-static-libstdc++ -static-libgcc -Wl,-Bstatic -ljpeg -lpng16 -lwebpdemux -lwebp -lz -Wl,-Bdynamic)
fi
g++ -shared -o "$out" "$work"/*.o -L"$cuda/lib64" -lcudart_static "${libraries[@]}" -ldl -lrt -lpthread -lm \
  -Wl,--exclude-libs,ALL -Wl,-Bsymbolic -Wl,-rpath,'$ORIGIN'
