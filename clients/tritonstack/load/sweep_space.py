"""What a sweep tries: `concurrency=1:64:x2,instance_count=1,2,max_queue_delay_us=0,500`.

space  = entry *("," entry)
entry  = NAME "=" value / value           (a bare value belongs to the name before it)
value  = NUMBER / FROM ":" TO ":" "x" FACTOR / FROM ":" TO ":" "+" STEP / FROM ":" TO        (the last: step 1)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any

from tritonstack.errors import UsageError

CLIENT_KEYS = ("concurrency", "rate", "batch")
SERVER_KEYS = ("instance_count", "max_queue_delay_us", "preferred_batch_size", "max_batch_size")
MOST_POINTS = 10_000


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of the space: `server` is what the model's configuration gets, `client` how it is loaded."""

    server: tuple[tuple[str, int], ...]
    client: tuple[tuple[str, float], ...]

    @property
    def label(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in (*self.server, *self.client)) or "as it is"

    def to_json(self) -> dict[str, float]:
        return dict((*self.server, *self.client))


def parse_space(text: str) -> dict[str, tuple[float, ...]]:
    """Names and the values each takes, in the order given. Raises UsageError."""
    space: dict[str, list[float]] = {}
    name = ""
    for part in text.split(","):
        key, mark, value = part.strip().partition("=")
        if mark:
            name = key.strip()
            if name not in (*CLIENT_KEYS, *SERVER_KEYS):
                raise _bad(text, f"no setting {name!r}", ", ".join((*CLIENT_KEYS, *SERVER_KEYS)))
            if name in space:
                raise _bad(text, f"{name!r} twice", "each name once")
            space[name] = []
        else:
            value = key
        if not name:
            raise _bad(text, f"{part!r} has no name", "such as concurrency=1:64:x2,instance_count=1,2")
        space[name] += _values(text, name, value.strip())
    if "concurrency" in space and "rate" in space:
        raise _bad(text, "both concurrency and rate", "one of them")
    if math.prod(len(values) for values in space.values()) > MOST_POINTS:
        raise _bad(text, "too many points", f"at most {MOST_POINTS}")
    return {key: tuple(dict.fromkeys(values)) for key, values in space.items()}


def _values(text: str, name: str, value: str) -> Iterator[float]:
    first, *rest = value.split(":")
    low = _number(text, name, first)
    if not rest:
        yield low
        return
    high = _number(text, name, rest[0])
    step = rest[1] if len(rest) == 2 else "+1"
    if len(rest) > 2 or high < low or step[:1] not in ("x", "+"):
        raise _bad(text, f"{name}={value}", "FROM:TO:xFACTOR or FROM:TO:+STEP with FROM at most TO")
    by = _number(text, name, step[1:], step=True)
    if by <= (1 if step[0] == "x" else 0) or (step[0] == "x" and low <= 0):
        raise _bad(text, f"{name}={value} never ends", "a factor above 1 from a number above 0, or a step above 0")
    count = 0
    while low <= high * (1 + 1e-9):
        yield low if name == "rate" else float(round(low))
        low = low * by if step[0] == "x" else low + by
        count += 1
        if count > MOST_POINTS:
            raise _bad(text, f"{name}={value} has too many values", f"at most {MOST_POINTS}")


def _number(text: str, name: str, value: str, *, step: bool = False) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    least = 0.0 if name in ("max_queue_delay_us", "max_batch_size", "rate") or step else 1.0
    if not math.isfinite(number) or number < least or (name == "rate" and number <= 0):
        raise _bad(text, f"{name}={value!r}", f"a number of at least {least:g}")
    if name != "rate" and not step and number != int(number):
        raise _bad(text, f"{name}={value!r}", "a whole number")
    return number


def _bad(text: str, what: str, expected: str) -> UsageError:
    return UsageError(f"argument --sweep: {what} in {text!r}", expected=expected)


def settings_of(space: Mapping[str, tuple[float, ...]]) -> list[Setting]:
    """Every point. All loads of one server configuration follow each other, so that it is loaded once."""
    server = [name for name in space if name in SERVER_KEYS]
    client = [name for name in space if name in CLIENT_KEYS]
    return [
        Setting(
            tuple((name, int(value)) for name, value in zip(server, outer, strict=True)),
            tuple(zip(client, inner, strict=True)),
        )
        for outer in product(*(space[name] for name in server))
        for inner in product(*(space[name] for name in client))
    ]


def changed_config(config: Mapping[str, Any], changes: Mapping[str, int]) -> dict[str, Any]:
    """`config` (JSON of model_config.proto) with the settings of a sweep. The original is left as it is.

    `instance_count` goes to every instance group; queue delay and preferred size turn dynamic batching on. A maximum
    batch below a preferred size takes that size along, since Triton refuses the two together.
    """
    changed = deepcopy(dict(config))
    if "max_batch_size" in changes:
        changed["max_batch_size"] = changes["max_batch_size"]
    most = int(changed.get("max_batch_size", 0))
    if "instance_count" in changes:
        groups = changed.get("instance_group") or [{"kind": "KIND_AUTO"}]
        changed["instance_group"] = [{**group, "count": changes["instance_count"]} for group in groups]
    if "max_queue_delay_us" in changes or "preferred_batch_size" in changes:
        batching = dict(changed.get("dynamic_batching") or {})
        if "max_queue_delay_us" in changes:
            batching["max_queue_delay_microseconds"] = changes["max_queue_delay_us"]
        if "preferred_batch_size" in changes:
            batching["preferred_batch_size"] = [changes["preferred_batch_size"]]
        changed["dynamic_batching"] = batching
    dynamic = changed.get("dynamic_batching")
    if "max_batch_size" in changes and "preferred_batch_size" not in changes and dynamic:
        sizes = [int(size) for size in dynamic.get("preferred_batch_size", ())]
        fitting = [size for size in sizes if size <= most]
        changed["dynamic_batching"] = {**dynamic, "preferred_batch_size": fitting or ([most] if sizes and most else [])}
    return changed
