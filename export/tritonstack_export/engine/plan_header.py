"""The first bytes of an engine file: which TensorRT wrote it, read without TensorRT.

Layout: bytes 0 to 3 magic, 4 to 7 serialisation version, 24 to 27 major, minor, patch and build of TensorRT. The last
four are read as NVIDIA's `trtexec --getPlanVersionOnly` reads them; they hold for serialisation version 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TENSORRT_MAGIC = b"ftrt"
RTX_MAGICS = (b"ptrt", b"vtrt")
HEADER_BYTES = 32
_KNOWN_SERIALISATION = 0


@dataclass(frozen=True)
class PlanHeader:
    """What a file says it is.

    `kind`: a TensorRT engine, an engine of TensorRT for RTX, or something else. `version`: major, minor, patch, build
    of the TensorRT that wrote it; None where the header does not say or its layout is unknown.
    """

    kind: str
    size_bytes: int
    version: tuple[int, int, int, int] | None

    @property
    def version_text(self) -> str | None:
        return None if self.version is None else ".".join(map(str, self.version))


def read_plan_header(path: Path) -> PlanHeader:
    """The header of an engine file; `kind` is tensorrt, rtx, empty, short or unknown. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
        size = path.stat().st_size
    return parse_plan_header(head, size)


def parse_plan_header(head: bytes, size: int) -> PlanHeader:
    """The same from the first HEADER_BYTES bytes and the size of the file."""
    if size == 0:
        return PlanHeader("empty", 0, None)
    magic = head[:4]
    if magic == TENSORRT_MAGIC:
        kind = "tensorrt"
    elif magic in RTX_MAGICS:
        kind = "rtx"
    else:
        return PlanHeader("unknown", size, None)
    if len(head) < HEADER_BYTES:
        return PlanHeader("short", size, None)
    serialisation = int.from_bytes(head[4:8], "little")
    version = (head[24], head[25], head[26], head[27])
    known = serialisation == _KNOWN_SERIALISATION and version[0] > 0
    return PlanHeader(kind, size, version if known else None)


def version_numbers(text: str) -> tuple[int, ...] | None:
    """`10.3.0` as (10, 3, 0); None for anything else. A suffix such as `.post1` or `+cuda13` is left out."""
    numbers = []
    for part in text.strip().partition("+")[0].split("."):
        if not part.isascii() or not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers) or None


def same_release(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Whether two versions agree in all parts that both give, of major, minor and patch."""
    return all(a == b for a, b in zip(first[:3], second[:3], strict=False))
