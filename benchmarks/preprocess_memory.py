"""Resident memory of the real server over many requests to the image backend: good, odd, bad and large pictures.

    python benchmarks/preprocess_memory.py [--requests N] [--kind cpu|gpu]

Growth is the median of the last tenth of the samples over the median of the second tenth: the first is warming up.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from measurement import save
from PIL import Image
from preprocess_cpu import photo
from preprocess_served import image_backend, write_model

from tritonstack import Client, ServerError
from tritonstack_deploy.embedded import EmbeddedServer

SAMPLES = 200
SENDERS = 4


def pictures() -> list[tuple[int, bytes, bool]]:
    """How often in a thousand requests, the file, and whether it can be read."""
    image = Image.open(io.BytesIO(photo(375, 500))).convert("RGB")

    def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
        stream = io.BytesIO()
        picture.save(stream, kind, **options)
        return stream.getvalue()

    small = image.resize((160, 120))
    jpeg = saved(image, "JPEG", quality=88)
    return [
        (500, jpeg, True),
        (150, saved(small, "JPEG", progressive=True), True),
        (80, saved(small, "PNG"), True),
        (80, saved(small, "WEBP", quality=80), True),
        (50, saved(small.convert("CMYK"), "JPEG"), True),
        (40, saved(small.convert("L"), "JPEG"), True),
        (40, jpeg[: len(jpeg) // 2], False),
        (20, b"not a picture", False),
        (20, b"", False),
        (18, saved(small, "PNG")[:-40], False),
        (2, photo(2160, 3840), True),
    ]


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--kind", choices=("cpu", "gpu"), default="cpu")
    options = parser.parse_args()
    files = pictures()
    order = [index for index, (share, _, _) in enumerate(files) for _ in range(share)]
    order = np.random.default_rng(0).permutation(order).tolist()
    backends, arguments = image_backend()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), "ours", options.kind, instances=2, largest=8)
        with (
            EmbeddedServer(Path(folder), backends=backends, extra_arguments=arguments) as server,
            Client(server.grpc_url) as client,
        ):
            assert server.pid
            prepared = []
            for _, data, readable in files:
                batch = np.empty((1, 1), dtype=object)
                batch[0, 0] = data
                prepared.append((client.prepare("ours", {"image_bytes": batch}), readable))

            def send(number: int) -> None:
                request, readable = prepared[order[number % len(order)]]
                try:
                    client.send(request)
                except ServerError as error:
                    if readable or error.code != "INVALID_ARGUMENT":
                        raise
                else:
                    assert readable

            step = max(1, options.requests // SAMPLES)
            sizes = []
            start_s = time.monotonic()
            with ThreadPoolExecutor(SENDERS) as pool:
                for first in range(0, options.requests, step):
                    list(pool.map(send, range(first, min(first + step, options.requests))))
                    sizes.append(resident_bytes(server.pid))
                    if len(sizes) % 20 == 0:
                        print(f"  {first + step} requests, {sizes[-1] / 1e6:.1f} MB", file=sys.stderr, flush=True)
            took_s = time.monotonic() - start_s
    tenth = max(1, len(sizes) // 10)
    early, late = statistics.median(sizes[tenth : 2 * tenth]), statistics.median(sizes[-tenth:])
    save(
        f"preprocess_memory_{options.kind}",
        {
            "requests": options.requests,
            "requests_per_s": options.requests / took_s,
            "bad_fraction": sum(share for share, _, readable in files if not readable) / len(order),
            "resident_mb": {"second_tenth": early / 1e6, "last_tenth": late / 1e6, "largest": max(sizes) / 1e6},
            "growth_mb": (late - early) / 1e6,
        },
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
