"""What a failed `pip install` means, in words."""

from __future__ import annotations

import re

from tritonstack.errors import SetupError

# (what pip prints, what it means, what to do); the first that is found counts.
_MEANINGS = (
    (r"No module named pip", "this interpreter has no pip", "python -m ensurepip"),
    (r"No space left on device|Errno 28", "the disk is full", "free about 1 GB, or set TRITONSTACK_CACHE elsewhere"),
    (r"Disk quota exceeded", "the disk quota is used up", "free about 1 GB, or set TRITONSTACK_CACHE elsewhere"),
    (r"DO NOT MATCH THE HASHES", "the package index has other files than those pinned here", None),
    (
        r"NewConnectionError|Failed to establish a new connection|name resolution|Network is unreachable|ProxyError|"
        r"ConnectTimeout|Read timed out|Connection refused|SSLError",
        "the package index cannot be reached",
        None,
    ),
    (r"No matching distribution found|Could not find a version", "the package index does not have the wheels", None),
    (r"Permission denied", "the cache folder may not be written", "set TRITONSTACK_CACHE to a folder of your own"),
)


def explain(log: str, code: int, *, by_hand: str) -> SetupError:
    """The error for pip's output `log` and exit status `code`; `by_hand` is the command a user can run instead."""
    reason, remedy = _meaning(log)
    errors = [line.strip() for line in log.splitlines() if line.startswith("ERROR")]
    if reason is None:
        reason = f"pip ended with status {code}"
    detail = f" ({re.sub(r'^ERROR: *', '', errors[-1])[:300]})" if errors else ""
    if remedy is None:
        remedy = f"when the index can be reached (PIP_INDEX_URL names another one), run {by_hand}"
    else:
        remedy = f"{remedy}, then run {by_hand}"
    return SetupError(f"TensorRT for RTX could not be installed: {reason}{detail}", next_step=remedy)


def _meaning(log: str) -> tuple[str | None, str | None]:
    for pattern, reason, remedy in _MEANINGS:
        if re.search(pattern, log):
            return reason, remedy
    return None, None
