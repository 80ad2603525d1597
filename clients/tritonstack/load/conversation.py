"""What makes a load a conversation: sequences, streams, requests that are taken back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tritonstack.errors import UsageError
from tritonstack.load.cancellation import CancelPlan
from tritonstack.load.sequence import SequencePlan


@dataclass(frozen=True, slots=True)
class Conversation:
    """How requests belong together. `stream`: over gRPC streams, with any number of answers to each."""

    stream: bool = False
    sequences: SequencePlan | None = None
    cancel: CancelPlan | None = None

    def __bool__(self) -> bool:
        return self.stream or self.sequences is not None or self.cancel is not None

    def to_json(self, *, timeout_s: float) -> dict[str, Any]:
        """For the transport of a worker."""
        return {
            "timeout_s": timeout_s,
            "stream": self.stream,
            "sequences": None if self.sequences is None else self.sequences.to_json(),
            "cancel": None if self.cancel is None else self.cancel.to_json(),
        }


def parse_cancel(text: str, seed: int) -> CancelPlan:
    """`FRACTION@SECONDS`, such as 0.1@0.05. Raises UsageError."""
    fraction, mark, after_s = text.partition("@")
    try:
        if not mark:
            raise ValueError
        return CancelPlan(float(fraction), float(after_s), seed)
    except ValueError:
        raise UsageError(
            "--cancel takes a share of the requests and a delay", given=repr(text), expected="such as 0.1@0.05"
        ) from None
