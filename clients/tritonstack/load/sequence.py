"""Sequences of a stateful model: which request comes next in which of them, never two of one at a time.

A `SequencePlan` says how long sequences are and how many run at once; a `SequenceBook` hands out their steps to whoever
sends, on one thread. It knows nothing of transports: a step is a pool entry and a place (id, start, end), which
`request_encoding.in_sequence` or `sequence_suffix` puts into the encoded request.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tritonstack.errors import UsageError
from tritonstack.load.input_pool import InputPool
from tritonstack.load.request_encoding import SequencePlace

LENGTH_FORM = "N, LOW-HIGH or ~MEAN, such as 20, 5-40 or ~20"
_UNIFORM = re.compile(r"(\d+)-(\d+)")

LengthKind = Literal["constant", "uniform", "geometric"]


@dataclass(frozen=True, slots=True)
class SequenceLength:
    """How many requests a sequence has: always `low`; uniform from `low` to `high`, both included; or geometric with
    mean `low`, at least 1 (the length of a conversation that may end after every request)."""

    kind: LengthKind
    low: int
    high: int = 0

    def __post_init__(self) -> None:
        if self.low < 1 or (self.kind == "uniform" and self.high < self.low):
            raise UsageError("a sequence has at least one request", given=self.label, expected=LENGTH_FORM)

    @classmethod
    def parse(cls, text: str) -> SequenceLength:
        """The length written as ``20``, ``5-40`` or ``~20``; UsageError for anything else."""
        plain = text.strip()
        found = _UNIFORM.fullmatch(plain)
        if found:
            return cls("uniform", int(found[1]), int(found[2]))
        digits = plain.removeprefix("~")
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 9:
            raise UsageError("not a length of sequences", given=repr(text), expected=LENGTH_FORM)
        return cls("geometric" if plain.startswith("~") else "constant", int(digits))

    @property
    def label(self) -> str:
        match self.kind:
            case "constant":
                return str(self.low)
            case "uniform":
                return f"{self.low}-{self.high}"
            case "geometric":
                return f"~{self.low}"

    def draw(self, generator: np.random.Generator) -> int:
        match self.kind:
            case "constant":
                return self.low
            case "uniform":
                return int(generator.integers(self.low, self.high, endpoint=True))
            case "geometric":
                return int(generator.geometric(1 / self.low))


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """`concurrent` sequences at once, each as long as `length` says, drawn from `seed`.

    `scripts` are sequences of pool entries that are played instead, in turn; `length` is not used then. A closed loop
    runs as many sequences as its concurrency; in an open loop a request that is due waits for a free sequence, and the
    wait is part of its latency.
    """

    concurrent: int
    length: SequenceLength = SequenceLength("constant", 20)
    seed: int = 0
    scripts: tuple[tuple[int, ...], ...] = ()
    text_ids: bool = False

    def __post_init__(self) -> None:
        if self.concurrent < 1:
            raise UsageError("at least one sequence runs at a time", given=str(self.concurrent), expected="1 or above")

    @property
    def label(self) -> str:
        many = f"{self.concurrent} sequence{'s' if self.concurrent != 1 else ''}"
        return f"{many} from the file" if self.scripts else f"{many} of {self.length.label} requests"

    def share(self, *, worker: int, workers: int) -> SequencePlan | None:
        """What worker `worker` of `workers` runs of it; None where there are fewer sequences than workers."""
        own = self.concurrent // workers + (worker < self.concurrent % workers)
        if own == 0:
            return None
        return SequencePlan(
            own, self.length, self.seed * workers + worker, self.scripts[worker::workers] or self.scripts, self.text_ids
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "concurrent": self.concurrent,
            "length": self.length.label,
            "seed": self.seed,
            "scripts": [list(script) for script in self.scripts],
            "text_ids": self.text_ids,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> SequencePlan:
        """What `to_json` described."""
        return cls(
            int(document["concurrent"]),
            SequenceLength.parse(document["length"]),
            int(document["seed"]),
            tuple(tuple(script) for script in document["scripts"]),
            bool(document["text_ids"]),
        )


def scripts_of(pool: InputPool) -> tuple[tuple[int, ...], ...]:
    """The sequences that the entries of a pool name, each as its entries in order; empty where none do.

    Raises UsageError where only some entries belong to a sequence.
    """
    by_name: dict[str | int, list[int]] = {}
    for index in range(len(pool.requests)):
        name = pool.extras_of(index).sequence
        if name is not None:
            by_name.setdefault(name, []).append(index)
    named = sum(map(len, by_name.values()))
    if named not in (0, len(pool.requests)):
        raise UsageError(
            "some requests name a sequence and others do not",
            given=f"{named} of {len(pool.requests)}",
            expected="all of them or none",
        )
    return tuple(tuple(entries) for entries in by_name.values())


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """One request to be sent: the pool entry, its place, and the slot that is busy until `SequenceBook.ended`."""

    slot: int
    entry: int
    place: SequencePlace


@dataclass(slots=True)
class _Slot:
    """One running sequence: `position` of its next request, `length` requests in all; 0 of 0 where none runs.

    `begun`: a request with its start has been answered.
    """

    sequence_id: int | str = 0
    position: int = 0
    length: int = 0
    begun: bool = False
    script: Sequence[int] = ()


class SequenceBook:
    """Steps of the sequences of one sender, for one thread.

    Correlation ids begin at `first_id` (at random where None, so that runs and workers do not meet) and are never used
    twice. After a failed request the model's state is unknown, so the sequence is broken off: one more request ends it,
    since the server keeps its place for it until then, and a new one begins.
    """

    def __init__(self, plan: SequencePlan, *, pool_size: int, first_id: int | None = None) -> None:
        self._plan = plan
        self._pool_size = pool_size
        self._generator = np.random.Generator(np.random.PCG64(plan.seed))
        # 62 bits: ids stay positive as signed numbers for any number of sequences.
        self._next_id = first_id or int.from_bytes(os.urandom(7), "big") + 1
        self._next_entry = 0
        self._next_script = 0
        self._slots = [_Slot() for _ in range(plan.concurrent)]
        self._idle = deque(range(plan.concurrent))
        self.begun = 0
        self.completed = 0
        self.broken = 0

    @property
    def in_flight(self) -> int:
        """Sequences with a request in flight."""
        return len(self._slots) - len(self._idle)

    def take(self) -> SequenceStep | None:
        """The next step of the sequence that has been idle longest; None where all have a request in flight."""
        if not self._idle:
            return None
        number = self._idle.popleft()
        slot = self._slots[number]
        if slot.length == 0:
            self._begin(slot)
        if slot.script:
            entry = slot.script[slot.position]
        else:
            entry = self._next_entry
            self._next_entry = (entry + 1) % self._pool_size
        last = slot.position == slot.length - 1
        return SequenceStep(number, entry, SequencePlace(slot.sequence_id, not slot.begun, last))

    def ended(self, step: SequenceStep, *, failed: bool = False) -> None:
        """The answer of `step` came, well or not: its sequence may go on."""
        slot = self._slots[step.slot]
        slot.position += 1
        slot.begun |= not failed
        self.broken += failed
        if step.place.end:
            self.completed += not failed
            slot.length = 0
        elif failed:
            slot.length = slot.position + 1
        self._idle.append(step.slot)

    def closing_steps(self) -> list[SequenceStep]:
        """A last request for every sequence that is idle in its middle, so that the server frees its state at once
        and does not hold it until its idle timeout."""
        steps = []
        for number in list(self._idle):
            slot = self._slots[number]
            if slot.length == 0:
                continue
            self._idle.remove(number)
            entry = slot.script[-1] if slot.script else self._next_entry
            steps.append(SequenceStep(number, entry, SequencePlace(slot.sequence_id, not slot.begun, True)))
        return steps

    def _begin(self, slot: _Slot) -> None:
        slot.position = 0
        slot.begun = False
        if self._plan.scripts:
            slot.script = self._plan.scripts[self._next_script]
            self._next_script = (self._next_script + 1) % len(self._plan.scripts)
            slot.length = len(slot.script)
        else:
            slot.length = self._plan.length.draw(self._generator)
        slot.sequence_id = f"tritonstack-{self._next_id:x}" if self._plan.text_ids else self._next_id
        self._next_id += 1
        self.begun += 1
