#!/usr/bin/env bash
# Fetches what some tests need besides .venv: photographs (unpacked into .cache, not installed) and a chromium.
# Where that cannot be done the tests that need it are skipped with a reason, unless TRITONSTACK_REQUIRE_… says otherwise.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }
root() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

browser() {
  command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null
}

if ! browser; then
  line="apt-get install -y --no-install-recommends chromium"
  if root; then
    say "test data: $line"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive $line; } >/dev/null || true
  fi
  browser || say "test data: no chromium, so pages are not tried in a browser; run as root: $line"
fi

if ! .venv/bin/python examples/photos/prepare.py 2>/dev/null; then
  # A fresh machine has no package lists yet.
  if root; then apt-get update -qq >/dev/null || true; fi
  .venv/bin/python examples/photos/prepare.py || say "test data: no photographs, so accuracy on them is not tested"
fi
