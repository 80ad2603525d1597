"""Where and with what a load test ran."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("tritonstack", "tritonclient", "grpcio", "numpy", "hdrhistogram")


@dataclass(frozen=True)
class Environment:
    """The generator's side: `cpus` it may use, `load_1m` of the machine before the run, versions by package."""

    python: str
    system: str
    machine: str
    cpus: int
    load_1m: float
    packages: dict[str, str]


@dataclass(frozen=True)
class Server:
    """The server's side: its own name and version."""

    name: str
    version: str


def here() -> Environment:
    """The environment of this process, now."""
    return Environment(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpus=len(os.sched_getaffinity(0)),
        load_1m=round(os.getloadavg()[0], 2),
        packages={name: found for name in PACKAGES if (found := _version(name)) is not None},
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
