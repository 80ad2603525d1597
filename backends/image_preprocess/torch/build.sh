#!/usr/bin/env bash
# Builds the library of the PyTorch op from the backend's core, without CMake and without CUDA: for machines that only
# have g++. The build of the backend (`make backend`) makes the same library, there with the GPU part where nvcc is.
#
#   backends/image_preprocess/torch/build.sh [FOLDER]      default: build/torch
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
out="${1:-$here/../../../build/torch}"
mkdir -p "$out"
library="$out/libtritonstack_image_op.so"
draft="$(mktemp "$out/.libtritonstack_image_op.XXXXXX")"
trap 'rm -f "$draft"' EXIT
"${CXX:-g++}" -std=c++17 -O3 -fPIC -shared -fvisibility=hidden -ffp-contract=off -DTRITONSTACK_MULTIVERSION \
    -Wall -Wextra -Wconversion -Werror \
    -I"$here/../src" -I"$here" "$here/c_api.cc" "$here"/../src/core/*.cc \
    -ljpeg -lpng -lwebpdemux -lwebp -lz -pthread -Wl,-z,defs -o "$draft"
chmod 755 "$draft"
mv "$draft" "$library"
echo "$library"
