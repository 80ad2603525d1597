"""All benchmarks that need no GPU, one after the other: what `make bench` runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = ("start_up.py", "main_job.py", "serve_throughput.py")


def main() -> int:
    """Run each script; the exit code is that of the first that fails."""
    for script in SCRIPTS:
        print(f"== {script}", file=sys.stderr, flush=True)
        code = subprocess.run([sys.executable, Path(__file__).parent / script]).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
