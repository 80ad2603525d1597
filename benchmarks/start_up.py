"""`tritonstack --help` against `python -c pass`. Must reach: at most 1.5 times."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from measurement import COMMAND, interleave, median_ratio, save


def seconds(command: list[object], runs: int = 15) -> float:
    """Median wall time of a command."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Measure and save."""
    values = interleave(
        9,
        {
            "python": lambda: seconds([sys.executable, "-c", "pass"]),
            "help": lambda: seconds([COMMAND, "--help"]),
        },
    )
    save(
        "start_up",
        {
            "unit": "s",
            "median": {name: statistics.median(found) for name, found in values.items()},
            "values": values,
            "ratio_help_to_python": median_ratio(values["help"], values["python"]),
            "must_reach_at_most": 1.5,
        },
    )


if __name__ == "__main__":
    main()
