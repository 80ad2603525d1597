"""Sensitive layers: found by measuring each alone, given back until the gates pass, or refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from int8_graphs import IMAGES, counts, image_net, model, random, run, samples, save, vectors
from onnx import helper

from tritonstack.errors import GateError
from tritonstack.terminal import Progress
from tritonstack_export.precision.int8_model import Int8Result, make_int8
from tritonstack_export.precision.layer_fallback import Verdict, candidates, predicted_gains
from tritonstack_export.precision.layer_sensitivity import LayerSensitivity, snr_db
from tritonstack_export.precision.quantizable_layers import Layer
from tritonstack_export.signature import Signature
from tritonstack_export.spec_precision import Int8Settings
from tritonstack_export.step_record import Record


def snr_gate(reference: Path, signature: Signature, least: float, asked: list[int]) -> Callable[[Path], Verdict]:
    data = samples(signature, seed=5).samples
    name = onnx.load(reference).graph.output[0].name
    expected = [{name: run(reference, dict(sample))[name]} for sample in data]

    def gate(path: Path) -> Verdict:
        asked.append(counts(path).get("QuantizeLinear", 0))
        found = [{name: run(path, dict(sample))[name]} for sample in data]
        reached = snr_db(expected, found, name)
        return Verdict(reached >= least, f"SNR {reached:.1f} dB" if reached < least else "")

    return gate


def quantize(
    proto: onnx.ModelProto, folder: Path, least: float, signature: Signature = IMAGES, **settings: Any
) -> tuple[Int8Result, list[int]]:
    path = save(proto, folder)
    asked: list[int] = []
    result = make_int8(
        path,
        samples(signature),
        signature,
        Int8Settings(method="max", **settings),
        passes=snr_gate(path, signature, least, asked),
        out=folder / "int8.onnx",
        record=Record(Progress(quiet=True)),
    )
    return result, asked


def test_nothing_is_measured_where_the_gates_pass_at_once(tmp_path: Path) -> None:
    result, asked = quantize(image_net(), tmp_path, 20)
    assert (result.excluded, result.sensitivity, len(asked)) == ((), (), 1)
    assert result.verdict.passed


def test_the_layer_behind_an_outlier_is_given_back(tmp_path: Path) -> None:
    result, _ = quantize(image_net(outlier=300), tmp_path, 25)
    assert result.sensitivity[0].layer.name == "project"
    assert [layer.name for layer in result.excluded] == ["project"]
    only = result.excluded[0]
    assert only.reason == "sensitive"
    assert only.sensitivity_db is not None
    assert only.sensitivity_db < 15
    assert only.gain_db is not None
    assert only.gain_db > 10
    assert result.macs_share == pytest.approx(8192 / (27648 + 9216 + 8192 + 80))
    assert result.bytes_share == pytest.approx(128 / (432 + 144 + 128 + 80))
    assert "3 of 4 layers in INT8; 1 in float (18.1% of the multiply-accumulates" in result.text()
    assert counts(result.path)["QuantizeLinear"] == 3
    assert result.verdict.passed
    assert result.checks[0][0] == 0
    assert not result.checks[0][1].passed


def test_the_fewest_layers_are_given_back(tmp_path: Path) -> None:
    """A chain of eight equal products: whatever the limit, one layer less does not pass it."""
    nodes, weights = [], {}
    for index in range(8):
        weights[f"w{index}"] = random(16, 16, seed=index, scale=0.25)
        source = "x" if index == 0 else f"v{index - 1}"
        nodes.append(helper.make_node("MatMul", [source, f"w{index}"], [f"v{index}"], name=f"m{index}"))
    proto = model(nodes, weights, {"x": ["batch", 16]}, {"v7": ["batch", 16]})
    result, asked = quantize(proto, tmp_path, 33.0, vectors(16), fallback={"max_share": 1.0})
    given_back = len(result.excluded)
    assert 0 < given_back < 8
    verdicts = dict(result.checks)
    assert verdicts[given_back].passed
    assert not verdicts[given_back - 1].passed
    assert len(asked) <= 7


def test_a_refusal_names_the_worst_layers_and_what_was_reached(tmp_path: Path) -> None:
    with pytest.raises(GateError) as caught:
        quantize(image_net(outlier=300), tmp_path, 90, fallback={"max_share": 0.5})
    text = str(caught.value)
    assert "even with the 2 most sensitive of 4 layers kept in float: SNR" in text
    assert "most sensitive, each alone: project (" in text
    assert "max_share" in text
    assert not (tmp_path / "int8.onnx").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["fp32.onnx"]


def test_max_share_0_and_no_fallback_refuse_at_once(tmp_path: Path) -> None:
    with pytest.raises(GateError, match="with the 0 most sensitive of 4"):
        quantize(image_net(outlier=300), tmp_path, 25, fallback={"max_share": 0})
    with pytest.raises(GateError, match=r"with every layer quantized: SNR .* fall back"):
        quantize(image_net(outlier=300), tmp_path, 25, fallback=False)


def test_layers_excluded_by_the_spec_are_not_measured(tmp_path: Path) -> None:
    result, _ = quantize(image_net(outlier=300), tmp_path, 25, exclude=["project"])
    assert [(layer.name, layer.reason) for layer in result.excluded] == [("project", "excluded by the spec")]
    assert result.sensitivity == ()


def test_the_worst_output_decides(tmp_path: Path) -> None:
    """Of two heads one suffers from its own layer; pooled with the large, sound one it would not be seen."""
    nodes = [
        helper.make_node("MatMul", ["x", "sound"], ["big"], name="sound_layer"),
        helper.make_node("MatMul", ["x", "spread"], ["wide"], name="spread_layer"),
        helper.make_node("MatMul", ["wide", "narrow"], ["small"], name="narrow_layer"),
    ]
    spread = random(8, 8, seed=2)
    spread[:, 0] *= 1000
    narrow = random(8, 4, seed=3, scale=1e-3)
    narrow[0] = 0
    weights = {"sound": random(8, 8, seed=1, scale=1e3), "spread": spread, "narrow": narrow}
    proto = model(nodes, weights, {"x": ["batch", 8]}, {"big": ["batch", 8], "small": ["batch", 4]})
    path = save(proto, tmp_path)
    verdicts = iter([False, True, True, True])
    result = make_int8(
        path, samples(vectors(8)), vectors(8), Int8Settings(method="max"), passes=lambda _: Verdict(next(verdicts)),
        out=tmp_path / "int8.onnx", record=Record(Progress(quiet=True)),
    )  # fmt: skip
    worst = result.sensitivity[0]
    assert (worst.layer.name, worst.output) == ("narrow_layer", "small")
    assert worst.snr_db < 10


def test_gains_are_predicted_by_adding_noise() -> None:
    layer = Layer("l", "Conv", 0, 1, 0, "x", "w", "y", (1, 1))
    gains = predicted_gains([LayerSensitivity(layer, value, "y") for value in (10.0, 20.0, 20.0)])
    assert gains == pytest.approx([10 * math.log10(0.12 / 0.02), 10 * math.log10(2), 0.0])
    assert predicted_gains([]) == []


def test_candidates_rise_by_noise_and_end_at_the_most_allowed() -> None:
    def order(*decibels: float) -> list[LayerSensitivity]:
        layer = Layer("l", "Conv", 0, 1, 0, "x", "w", "y", (1, 1))
        return [LayerSensitivity(layer, value, "y") for value in decibels]

    assert candidates(order(10, 20, 30, 40), 4) == [1, 2, 3, 4]
    # Equal layers: each step has to take 2 dB away, so several go at once.
    steps = candidates(order(*[20.0] * 40), 20)
    assert steps[-1] == 20
    assert len(steps) <= 5
    assert candidates(order(10, 20), 0) == []
    assert candidates(order(200, 200, 200), 1) == [1]
