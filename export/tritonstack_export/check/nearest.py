"""Suggestions for a mistyped name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """``did you mean 'x'?`` when one of `known` is close to `word`."""
    names = list(known)
    folded = {name.casefold(): name for name in names}
    if word.casefold() in folded:
        return f"did you mean {folded[word.casefold()]!r}?"
    close = get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else None
