"""Accuracy: what counts as right, how far a variant may fall, and what is said when it falls further."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tritonstack.errors import GateError, InputError, UsageError
from tritonstack_export.precision.dataset import Dataset, collect
from tritonstack_export.precision.task_accuracy import (
    Accuracy,
    compare_accuracy,
    measure,
    require_accuracy,
    resolution_note,
)
from tritonstack_export.signature import Dimension, ModelInput, Signature
from tritonstack_export.spec import ModelSpec

SCORES = Signature((ModelInput("x", "float32", ("batch", 6)),), {"batch": Dimension("batch", 1, 2, 4)}, True)


def spec(metric: str = "top1", **more: Any) -> ModelSpec:
    parts = {
        "name": "m",
        "model": {"onnx": "m"},
        "evaluation": {"npz": "d.npz", "labels": "y", "metric": metric, **more},
    }
    return ModelSpec.model_validate(parts)


def data(rows: list[list[float]], labels: list[Any]) -> Dataset:
    made = [(f"row {i}", {"x": np.array([row], np.float32)}, label)
            for i, (row, label) in enumerate(zip(rows, labels, strict=True))]  # fmt: skip
    return collect("evaluation", "rows", made, SCORES, keep_repeats=True)


def echo(inputs: Any) -> dict[str, Any]:
    return {"logits": inputs["x"]}


ROWS = [[9, 8, 7, 6, 5, 4], [0, 1, 2, 3, 4, 5], [3, 9, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1], [5, 4, 3, 2, 1, 0]]


def test_top1_and_top5_with_several_accepted_classes() -> None:
    some = data(ROWS, [0, [4, 5], np.array([0, 2, -1]), 0, np.int64(5)])
    top1 = measure(echo, some, spec(), SCORES, folder=Path())
    assert top1.correct == (True, True, False, True, False)
    assert top1.top == (0, 5, 1, 0, 0)
    assert (top1.value, top1.count, top1.output) == (0.6, 5, "logits")
    top5 = measure(echo, some, spec("top5"), SCORES, folder=Path())
    assert top5.correct == (True, True, True, True, False)


def test_samples_are_counted_alike_whatever_they_are_batched_with() -> None:
    sizes = []

    def run(inputs: Any) -> dict[str, Any]:
        sizes.append(inputs["x"].shape[0])
        return echo(inputs)

    measure(run, data(ROWS, [0] * 5), spec(), SCORES, folder=Path())
    assert sizes == [4, 1]


def test_nan_is_wrong_and_agrees_with_nothing() -> None:
    some = data(ROWS, [0] * 5)
    broken = measure(lambda i: {"logits": i["x"] * np.nan}, some, spec(), SCORES, folder=Path())
    assert broken.value == 0
    sound = measure(echo, some, spec(), SCORES, folder=Path())
    assert compare_accuracy("int8", sound, broken, 1).agreement == 0


def test_a_callable_gets_all_outputs_and_labels(tmp_path: Path) -> None:
    (tmp_path / "metric.py").write_text(
        "def share(outputs, labels):\n"
        "    assert outputs['logits'].shape == (5, 6)\n"
        "    return sum(int(row.argmax()) == label for row, label in zip(outputs['logits'], labels)) / len(labels)\n"
        "def fails(outputs, labels):\n    return 1 / 0\n"
        "def nothing(outputs, labels):\n    return float('nan')\n"
        "def ragged(outputs, labels):\n    return sum(a.shape[1] for a in outputs['logits'])\n"
    )
    some = data(ROWS, [0, 5, 0, 0, 5])
    found = measure(echo, some, spec("metric.py:share"), SCORES, folder=tmp_path)
    assert (found.value, found.top, found.output) == (0.6, (), None)
    assert compare_accuracy("int8", found, found, 1).agreement is None
    with pytest.raises(InputError, match=r"failed at metric.py:5: ZeroDivisionError"):
        measure(echo, some, spec("metric.py:fails"), SCORES, folder=tmp_path)
    with pytest.raises(InputError, match="returned nan"):
        measure(echo, some, spec("metric.py:nothing"), SCORES, folder=tmp_path)
    # Outputs of different shapes come as a list.
    cut = measure(lambda i: {"logits": i["x"][:, : int(i["x"][0, 0]) + 1]}, data([[0] * 6, [3] * 6], [0, 0]),
                  spec("metric.py:ragged"), Signature(SCORES.inputs, {"batch": Dimension("batch", 1, 1, 1)}, True),
                  folder=tmp_path)  # fmt: skip
    assert cut.value == 5


@pytest.mark.parametrize(
    ("label", "said"),
    [(6, "class index from 0 to 5"), (-1, "class index"), ("cat", "'cat'"), (True, "True"), ([], r"\[\]"),
     (None, "None"), ([1, 9], "class index"), (1.0, "1.0")],
)  # fmt: skip
def test_labels_that_are_no_class(label: Any, said: str) -> None:
    with pytest.raises(InputError, match=f"label of row 0 does not fit.*{said}"):
        measure(echo, data([ROWS[0]], [label]), spec(), SCORES, folder=Path())


def test_the_output_has_to_be_known_and_a_vector_of_scores() -> None:
    some = data(ROWS, [0] * 5)
    with pytest.raises(UsageError, match=r"which output holds the class scores.*one of a, b"):
        measure(lambda i: {"a": i["x"], "b": i["x"]}, some, spec(), SCORES, folder=Path())
    with pytest.raises(UsageError, match=r"no output 'c'.*one of a, b"):
        measure(lambda i: {"a": i["x"], "b": i["x"]}, some, spec(output="c"), SCORES, folder=Path())
    assert measure(lambda i: {"a": i["x"], "b": -i["x"]}, some, spec(output="a"), SCORES, folder=Path()).count == 5
    with pytest.raises(UsageError, match="needs class scores"):
        measure(lambda i: {"a": i["x"].astype(np.int64)}, some, spec(), SCORES, folder=Path())
    with pytest.raises(UsageError, match="needs class scores"):
        measure(lambda i: {"a": i["x"][:, None]}, some, spec(), SCORES, folder=Path())


@pytest.mark.parametrize(
    ("metric", "kind", "said"),
    [
        ("text", InputError, "returned no number; given str 'good'; expected a finite number"),
        ("nothing", InputError, "returned no number; given NoneType 'None'"),
        ("constant", UsageError, "'metric.py:constant' cannot be called"),
    ],
)
def test_a_metric_that_gives_no_number(metric: str, kind: type[Exception], said: str, tmp_path: Path) -> None:
    (tmp_path / "metric.py").write_text(
        "constant = 5\ndef text(outputs, labels):\n    return 'good'\ndef nothing(outputs, labels):\n    pass\n"
    )
    with pytest.raises(kind) as caught:
        measure(echo, data(ROWS[:2], [0, 1]), spec(f"metric.py:{metric}"), SCORES, folder=tmp_path)
    assert said in str(caught.value)


def counted(correct: int, count: int, *, metric: str = "top1") -> Accuracy:
    flags = tuple(i < correct for i in range(count))
    return Accuracy(metric, correct / count, count, "logits", flags, tuple(int(f) for f in flags))


def test_the_drop_is_in_points_with_its_error() -> None:
    drop = compare_accuracy("int8", counted(205, 244), counted(203, 244), 1.0)
    assert drop.drop == pytest.approx(100 * 2 / 244)
    assert (drop.lost, drop.won) == (2, 0)
    assert drop.agreement == pytest.approx(242 / 244)
    assert drop.error == pytest.approx(100 * 2**0.5 / 244)
    assert drop.passed
    require_accuracy(drop)
    assert resolution_note(drop) is None
    assert drop.text() == (
        "top1 83.20 % against 84.02 % in FP32 (drop 0.82 ± 0.58 points on 244 samples, same class in 99.2 %)"
    )


def test_one_sample_can_be_worth_more_than_the_limit() -> None:
    drop = compare_accuracy("fp16", counted(205, 244), counted(205, 244), 0.1)
    assert drop.passed
    assert resolution_note(drop) == (
        "one of 244 evaluation samples is worth 0.41 points, more than the 0.1 that fp16 may lose: "
        "in effect none may be lost"
    )


def test_exactly_the_limit_passes_and_gains_always_do() -> None:
    assert compare_accuracy("int8", counted(80, 100), counted(79, 100), 1.0).passed
    assert not compare_accuracy("int8", counted(80, 100), counted(78, 100), 1.0).passed
    assert compare_accuracy("int8", counted(80, 100), counted(90, 100), 0.0).passed


def test_the_refusal_names_numbers_and_the_way_out() -> None:
    drop = compare_accuracy("int8", counted(205, 244), counted(200, 244), 1.0)
    with pytest.raises(GateError) as caught:
        require_accuracy(drop)
    text = str(caught.value)
    for part in ("int8 loses too much", "81.97 % against 84.02 %", "drop 2.05", "at most 1 points",
                 "evaluation.max_drop.int8", "fallback.max_share", "--allow-drop int8=2.05"):  # fmt: skip
        assert part in text, text
    with pytest.raises(GateError, match=r"precision.fp16.keep_fp32.*--allow-drop fp16=0.41"):
        require_accuracy(compare_accuracy("fp16", counted(205, 244), counted(204, 244), 0.1))
