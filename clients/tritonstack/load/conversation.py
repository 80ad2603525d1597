"""What makes a load a conversation: sequences, streams, requests that are taken back."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from tritonstack.errors import UsageError
from tritonstack.load.cancellation import CancelPlan
from tritonstack.load.sequence import SequenceLength, SequencePlan


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


def conversation_of(options: argparse.Namespace) -> Conversation:
    """What the flags of `tritonstack load` describe; UsageError where they contradict each other."""
    for flag, given in (("--sequence-length", options.sequence_length), ("--text-ids", options.text_ids)):
        if given and options.sequences is None:
            raise UsageError(f"{flag} belongs to sequences", expected="--sequences beside it")
    sequences = None
    if options.sequences is not None:
        sequences = SequencePlan(
            options.sequences,
            SequenceLength.parse(options.sequence_length or "20"),
            options.seed,
            text_ids=options.text_ids,
        )
    cancel = None if options.cancel is None else parse_cancel(options.cancel, options.seed)
    return Conversation(options.stream, sequences, cancel)
