"""Keeping Python's garbage collector out of the way of a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

GARBAGE_LIMIT = 200_000
"""Container objects the garbage collector has not looked at yet, at which one collection is run after all."""


def collect_where_needed() -> None:
    """Collect garbage where it has piled up in spite of `no_collections`."""
    if gc.get_count()[0] > GARBAGE_LIMIT:
        gc.collect()


@contextmanager
def no_collections() -> Iterator[list[int]]:
    """Keep the garbage collector from pausing the run; yields a list holding how often it ran all the same."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    before = sum(generation["collections"] for generation in gc.get_stats())
    ran = [0]
    try:
        yield ran
    finally:
        ran[0] = sum(generation["collections"] for generation in gc.get_stats()) - before
        if was_enabled:
            gc.enable()
        gc.unfreeze()
