#!/usr/bin/env bash
# Puts perf_analyzer 2.60.0 into .cache/perf_analyzer and prints the command that runs it. Its only wheel wants glibc
# 2.38; where the system's is older, Debian trixie's loader and libraries (7 MB) are unpacked beside it, not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
version=2.60.0
root=$PWD/.cache/perf_analyzer
ready=$root/command
if [ -f "$ready" ]; then cat "$ready"; exit 0; fi
mkdir -p "$root"/{wheel,program}
say() { printf '%s\n' "$*" >&2; }
say "perf_analyzer: fetching $version …"
.venv/bin/python -m pip download -q --no-deps "perf-analyzer==$version" --platform manylinux_2_38_x86_64 \
  --only-binary :all: -d "$root/wheel" >&2
(cd "$root/program" && python3 -m zipfile -e ../wheel/perf_analyzer-*.whl .)
binary=$root/program/perf_analyzer/bin/perf_analyzer
chmod +x "$binary"
if "$binary" --version >/dev/null 2>&1; then
  printf '%s\n' "$binary" > "$ready"
else
  command -v apt-get >/dev/null || { say "perf_analyzer: needs glibc 2.38, and here is no apt-get to fetch one with"; exit 2; }
  mirror=$(grep -hoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2>/dev/null | tr -d ' ' | sort | uniq | sed -n 1p || true)
  mirror=${mirror:-http://deb.debian.org/debian}
  mkdir -p "$root"/apt/{lists/partial,cache/archives/partial} "$root"/{debs,lib}
  printf 'Types: deb\nURIs: %s\nSuites: trixie\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n' \
    "$mirror" > "$root/apt/trixie.sources"
  apt=(apt-get -qq -o "Dir::Etc::sourcelist=$root/apt/trixie.sources" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$root/apt/lists"
    -o "Dir::Cache=$root/apt/cache" -o APT::Default-Release=trixie)
  "${apt[@]}" update >&2
  (cd "$root/debs" && "${apt[@]}" download libc6/trixie libstdc++6/trixie libgcc-s1/trixie zlib1g/trixie libssl3t64/trixie libzstd1/trixie >&2)
  for deb in "$root"/debs/*.deb; do dpkg -x "$deb" "$root/lib"; done
  libraries=$root/lib/usr/lib/x86_64-linux-gnu
  printf '%s\n' "$libraries/ld-linux-x86-64.so.2 --library-path $libraries --argv0 perf_analyzer $binary" > "$ready"
fi
cat "$ready"
