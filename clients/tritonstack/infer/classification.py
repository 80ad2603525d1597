"""Class probabilities from Triton's classification extension."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tritonstack.client.model import ModelConfigView
from tritonstack.errors import InputError, ServerError

Activation = Literal["softmax", "none"]

PARAMETER = "tritonstack.classification"


@dataclass(frozen=True)
class Classification:
    """Which output holds one score per class, and what turns the scores into probabilities.

    ``softmax`` for logits; ``none`` where the model's scores are probabilities already.
    """

    output: str
    activation: Activation


@dataclass(frozen=True)
class ScoredClass:
    """One class: its index, its label (empty where the model has no label file) and its probability."""

    index: int
    label: str
    probability: float


def read_classification(config: ModelConfigView) -> Classification:
    """The model's own description of its class scores. InputError where it has none."""
    text = config.parameters.get(PARAMETER)
    if text is None:
        raise InputError(
            f"model {config.name!r} does not say which output holds class scores",
            expected=f"the parameter {PARAMETER!r} in its config.pbtxt, which `tritonstack export` writes",
            next_step="send tensors with --input instead of --image",
        )
    try:
        value = json.loads(text)
        output, activation = value["output"], value.get("activation", "none")
    except (ValueError, KeyError, TypeError, AttributeError):
        output = activation = None
    if not isinstance(output, str) or activation not in get_args(Activation):
        raise InputError(
            f"the parameter {PARAMETER!r} of model {config.name!r} makes no sense",
            given=text,
            expected='{"output": "logits", "activation": "softmax" or "none"}',
        )
    return Classification(output, activation)


def scored_classes(entries: Sequence[bytes], activation: Activation) -> list[ScoredClass]:
    """All classes of one sample, best first, from ``score:index`` or ``score:index:label`` entries.

    `entries` must hold every class, because softmax runs over all of them. Labels may contain colons. ServerError for
    entries of another form.
    """
    parsed = [_parse(entry) for entry in entries]
    scores = [score for score, _, _ in parsed]
    if activation == "softmax" and scores:
        top = max(scores)
        weights = [math.exp(score - top) for score in scores]
        total = math.fsum(weights)
        scores = [weight / total for weight in weights]
    classes = [ScoredClass(index, label, p) for p, (_, index, label) in zip(scores, parsed, strict=True)]
    return sorted(classes, key=lambda c: (-c.probability, c.index))


def _parse(entry: Any) -> tuple[float, int, str]:
    text = bytes(entry).decode("utf-8", "replace")
    score, _, rest = text.partition(":")
    index, _, label = rest.partition(":")
    try:
        value = float(score)
        if not math.isfinite(value):
            raise ServerError(f"the model's score for class {index} is {score}", code="BAD_SCORE")
        return value, int(index), label
    except ValueError:
        raise ServerError(f"malformed classification entry {text!r}", code="MALFORMED_REPLY") from None
