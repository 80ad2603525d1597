"""Numbers and sizes as the reports write them."""

from __future__ import annotations

import math
from collections.abc import Mapping

METRICS = {
    "snr_db": "SNR in dB",
    "cosine": "cosine",
    "channel_db": "SNR in dB of the worst channel",
    "equal": "share of equal values",
    "max_rel": "relative difference",
    "max_abs": "largest difference",
}
"""Metric of a gate -> what people call it."""


def figure(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits and no exponent where it can be read without: ``0.0804``, ``4.1e-06``.

    ``–`` where there is none.
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{digits - 1}e}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def gate_figure(metric: str, value: float | None) -> str:
    """A measured value or limit of a gate. Cosines and shares near 1 keep the digits that tell them from 1."""
    if value is not None and math.isfinite(value) and metric in ("cosine", "equal"):
        return f"{value:.7g}"
    return figure(value)


def percent(share: float | None) -> str:
    """A share as points with two decimals, so that a column of them lines up: ``75.07 %``."""
    return "–" if share is None or not math.isfinite(share) else f"{100 * share:.2f} %"


def sizes_text(sizes: Mapping[str, int]) -> str:
    """``batch 3, sequence 17``."""
    return ", ".join(f"{name} {size}" for name, size in sizes.items()) or "the fixed shapes"
