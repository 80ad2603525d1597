#!/usr/bin/env bash
# build_backend.sh OUT [ARCH…]: the Triton backend as one shared library for a machine that has neither CMake nor the
# decoders' headers. OUT: a folder, or a file libtriton_image_preprocess.so. Needs nvcc, g++ and the static archives of
# libjpeg, libpng and libwebp here; `make backend` builds the same from CMake. ARCH: numbers such as 90.
set -euo pipefail
out=$(realpath -m "$1"); shift
[ ! -d "$out" ] || out=$out/libtriton_image_preprocess.so
. "$(dirname "$0")/compile.sh"
compile "$*" "-DNDEBUG -fvisibility-inlines-hidden" "$src"/triton/*.cc
g++ -shared -o "$out" "$work"/*.o -L"$cuda/lib64" -lcudart_static -static-libstdc++ -static-libgcc \
  -Wl,-Bstatic -ljpeg -lpng16 -lwebpdemux -lwebp -lz -Wl,-Bdynamic -ldl -lrt -lpthread -lm \
  -Wl,--version-script="$src/../cmake/exports.map" -Wl,--exclude-libs,ALL -Wl,-Bsymbolic
