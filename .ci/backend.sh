#!/usr/bin/env bash
# Builds the image preprocessing backend into build/backends/image_preprocess. Safe to run again: only what changed is
# compiled. CUDA=AUTO|ON|OFF and SANITIZE=address,undefined or thread are passed on; sanitized builds have folders of
# their own.
# Debian packages are installed where we are root; elsewhere the exact line is printed and the exit code is 2.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

packages=()
command -v cmake >/dev/null || packages+=(cmake)
command -v g++ >/dev/null || packages+=(g++)
command -v make >/dev/null || packages+=(make)
have() { [ -f "/usr/include/$1" ] || [ -f "/usr/local/include/$1" ]; }
have jpeglib.h || packages+=(libjpeg-dev)
have png.h || packages+=(libpng-dev)
have webp/demux.h || packages+=(libwebp-dev)
have catch2/catch.hpp || have catch2/catch_all.hpp || packages+=(catch2)
if [ ${#packages[@]} -gt 0 ]; then
  line="apt-get install -y --no-install-recommends ${packages[*]}"
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "backend: Debian packages are missing: ${packages[*]}"
    say "next: run as root: $line"
    exit 2
  fi
  say "backend: $line"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive $line; } >/dev/null
fi

sanitize=${SANITIZE:-}
folder=build/backends/image_preprocess${sanitize:+-sanitized}
# ThreadSanitizer goes with no other, so its build stands beside theirs.
[ "$sanitize" != thread ] || folder=build/backends/image_preprocess-thread
mkdir -p "$folder"
log=$folder/build.log
# One build at a time in a folder.
if command -v flock >/dev/null; then
  exec 9>"$folder/.lock"
  flock 9
fi
# A checkout that was moved would be built where it was.
if [ -f "$folder/CMakeCache.txt" ] && ! grep -q "^CMAKE_HOME_DIRECTORY:INTERNAL=$PWD/" "$folder/CMakeCache.txt"; then
  rm -rf "$folder/CMakeCache.txt" "$folder/CMakeFiles"
fi
run() {
  if ! "$@" >"$log" 2>&1; then
    say "backend: failed: $*"
    grep -E -m 5 -A 2 'error:|Error|not found' "$log" >&2 || tail -n 20 "$log" >&2
    say "next: see $log"
    exit 1
  fi
}
start=$SECONDS
[ -f "$folder/libtriton_image_preprocess.so" ] || say "backend: compiling (the first time takes a minute or more) …"
run cmake -S backends/image_preprocess -B "$folder" -DCUDA="${CUDA:-AUTO}" -DSANITIZE="$sanitize"
run cmake --build "$folder" --parallel 2
if [ $((SECONDS - start)) -gt 5 ]; then
  say "backend: $folder/libtriton_image_preprocess.so after $((SECONDS - start)) s"
fi
