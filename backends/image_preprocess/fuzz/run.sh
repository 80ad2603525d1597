#!/usr/bin/env bash
# run.sh --runs N [--corpus FOLDER] [--seconds S]: the decode path under libFuzzer with ASan and UBSan.
# Needs clang++ with its runtime (Debian: apt-get install clang libclang-rt-14-dev) and the headers of libjpeg, libpng and
# libwebp. Seeds come from tests/backends/fuzz_seeds.py. FOLDER keeps what was found from one run to the next; without it
# the run starts from the seeds. An input that fails is kept as build/fuzz/crash-…, and exit code 1 says so.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
usage() { echo "usage: run.sh --runs N [--corpus FOLDER] [--seconds S]" >&2; exit 2; }
runs='' corpus='' seconds=0
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || usage
  case $1 in
    --runs) runs=$2 ;;
    --corpus) corpus=$(realpath -m "$2") ;;
    --seconds) seconds=$2 ;;
    *) usage ;;
  esac
  shift 2
done
[[ $runs =~ ^[0-9]+$ && $seconds =~ ^[0-9]+$ ]] || usage
compiler=${CLANGXX:-clang++}
if ! command -v "$compiler" >/dev/null; then
  echo "fuzz: $compiler is not there; next: apt-get install clang libclang-rt-14-dev, or CLANGXX=…" >&2
  exit 2
fi
python=${PYTHON:-$root/.venv/bin/python}
build=$root/build/fuzz
mkdir -p "$build/objects"
# Objects are made anew only where a source is newer; there are few headers, so any of them counts for all.
newest=$(find "$here/../src/core" "$here" -name '*.h' -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2-)
objects=()
for source in "$here"/../src/core/*.cc "$here"/{decode_target,libfuzzer_mutator,png_checksums}.cc; do
  object=$build/objects/$(basename "$source").o
  objects+=("$object")
  if [ ! "$object" -nt "$source" ] || [ ! "$object" -nt "$newest" ]; then
    "$compiler" -std=c++17 -O1 -g -fno-omit-frame-pointer -ffp-contract=off -Wall -Wextra -Werror \
      -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -I"$here/../src" -c "$source" -o "$object"
  fi
done
"$compiler" -fsanitize=fuzzer,address,undefined "${objects[@]}" -o "$build/decode_fuzzer" \
  -ljpeg -lpng16 -lwebpdemux -lwebp -lz -lpthread
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/seeds" "$work/found"
"$python" "$root/tests/backends/fuzz_seeds.py" --with-settings "$work/seeds"
[ -z "$corpus" ] || mkdir -p "$corpus"
if ! "$build/decode_fuzzer" -runs="$runs" -max_total_time="$seconds" -max_len=8192 -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=256 \
  -print_final_stats=1 -artifact_prefix="$build/" "${corpus:-$work/found}" "$work/seeds" 2>"$work/log"; then
  tail -n 60 "$work/log" >&2
  exit 1
fi
grep -E '^(stat::number_of_executed_units|stat::average_exec_per_sec|stat::peak_rss_mb)' "$work/log"
grep -E '^#[0-9]+.*(DONE|INITED)' "$work/log"
