"""Models that are right: the published graph gives the right values, and the config says what the graph is."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Export = Callable[..., Any]
F32 = np.float32


def published(outcome: Any) -> Any:
    assert outcome.code == 0, outcome.err
    return outcome


def config_tensors(config: Any, kind: str) -> dict[str, tuple[str, list[int]]]:
    from tritonclient.grpc import model_config_pb2 as pb

    return {t.name: (pb.DataType.Name(t.data_type), list(t.dims)) for t in getattr(config, kind)}


@pytest.fixture
def models() -> Any:
    """models.py as a module, to compute what is right."""
    spec = importlib.util.spec_from_file_location("models_for_truth", Path(__file__).with_name("models.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("batch", [1, 2, 5, 32, 40])
def test_any_batch_gives_what_the_module_gives(export: Export, models: Any, batch: int) -> None:
    import torch

    outcome = published(export("linear", "--name", "net"))
    x = np.random.default_rng(0).standard_normal((batch, 8)).astype(F32)
    # The factory draws its weights under the seed of the spec.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        module, _ = models.linear()
        truth = module.eval()(torch.from_numpy(x)).numpy()
    assert np.allclose(outcome.run_onnx("net", {"x": x})["output"], truth, atol=1e-6)


def test_train_mode_is_left_and_put_back(models: Any, tmp_path: Path) -> None:
    """The graph is that of eval mode; the caller's module has its modes, buffers and gradients as before."""
    import torch

    from tritonstack_export.module_state import evaluation_mode

    module, (x,) = models.train_mode()
    module[3].eval()
    modes = [part.training for part in module.modules()]
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    with evaluation_mode(module) as was_training:
        assert was_training
        assert not any(part.training for part in module.modules())
        assert not torch.is_grad_enabled()
        module(x)
    assert [part.training for part in module.modules()] == modes
    assert all(torch.equal(value, buffers[name]) for name, value in module.named_buffers())
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert torch.is_grad_enabled()


def test_modes_come_back_after_a_failure(models: Any) -> None:
    from tritonstack_export.module_state import evaluation_mode

    module, _ = models.train_mode()
    with pytest.raises(RuntimeError, match="stop"), evaluation_mode(module):
        raise RuntimeError("stop")
    assert all(part.training for part in module.modules())


def test_exported_train_mode_model(export: Export, models: Any) -> None:
    import torch

    outcome = published(export("train_mode", "--name", "net", "--input-names", "x"))
    assert "was in training mode" in outcome.err
    assert not [
        n
        for n in outcome.proto("net").graph.node
        if n.op_type in ("Dropout", "BatchNormalization") and len(n.output) > 1
    ]
    x = np.random.default_rng(0).standard_normal((6, 8)).astype(F32)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        truth = models.train_mode()[0].eval()(torch.from_numpy(x)).numpy()
    first, second = (outcome.run_onnx("net", {"x": x})["output"] for _ in range(2))
    assert np.allclose(first, truth, atol=1e-5)
    assert np.array_equal(first, second)


def test_dict_outputs_keep_their_keys(export: Export) -> None:
    outcome = published(export("dict_outputs", "--name", "net"))
    assert list(config_tensors(outcome.config("net"), "output")) == ["scores", "boxes"]


@pytest.mark.parametrize("names", ["boxes,scores", "scores,boxes"])
def test_dict_outputs_are_named_by_key_in_any_order(export: Export, names: str) -> None:
    outcome = published(export("dict_outputs", "--name", "net", "--output-names", names))
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(F32)
    found = outcome.run_onnx("net", {"x": x})
    assert np.allclose(found["scores"].sum(axis=1), 1)
    assert np.allclose(found["boxes"], x * 100)


def test_dict_outputs_can_be_renamed_and_left_out(export: Export, write_spec: Callable[..., Path]) -> None:
    spec = write_spec(
        "name: net\nmodel: {factory: 'MODELS:dict_outputs'}\noutputs: [{name: probabilities, key: scores}]\n"
    )
    outcome = published(export(spec))
    assert list(config_tensors(outcome.config("net"), "output")) == ["probabilities"]
    assert "left out: boxes" in outcome.err


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("nested_outputs", ["output_0", "output_1_0", "output_1_1_aux"]),
        ("named_tuple_outputs", ["first", "second"]),
        ("dataclass_outputs", ["logits"]),
    ],
)
def test_structured_outputs_have_stable_names(export: Export, model: str, names: list[str]) -> None:
    outcome = published(export(model, "--name", "net"))
    assert list(config_tensors(outcome.config("net"), "output")) == names


def test_nested_outputs_have_the_right_values_and_no_none(export: Export) -> None:
    outcome = published(export("nested_outputs", "--name", "net"))
    assert "'output_1_1_hidden' is None" in outcome.err
    found = outcome.run_onnx("net", {"x": np.ones((1, 3), F32), "scale": np.full((1, 1), 2, F32)})
    assert [value.flat[0] for value in found.values()] == [2, 2, 0]


def test_aliased_example_inputs_stay_two_inputs(export: Export) -> None:
    outcome = published(export("aliased_inputs", "--name", "net"))
    found = outcome.run_onnx("net", {"a": np.full((2, 3), 5, F32), "b": np.ones((2, 3), F32)})
    assert (found["output"] == 3).all()


def test_unused_input_keeps_the_others_in_place(export: Export) -> None:
    outcome = published(export("unused_input", "--name", "net"))
    assert list(config_tensors(outcome.config("net"), "input")) == ["x", "mask", "y"]
    assert "'mask' is not used" in outcome.err
    inputs = {"x": np.zeros((2, 3), F32), "mask": np.ones((2, 3), F32), "y": np.full((2, 3), 7, F32)}
    assert (outcome.run_onnx("net", inputs)["output"] == 7).all()


def test_input_published_as_output_and_one_output_twice(export: Export) -> None:
    outcome = published(export("passthrough", "--name", "net", "--output-names", "same,double,again"))
    x = np.arange(6, dtype=F32).reshape(2, 3)
    found = outcome.run_onnx("net", {"x": x})
    assert np.array_equal(found["same"], x)
    assert np.array_equal(found["double"], 2 * x)
    assert np.array_equal(found["again"], 2 * x)


def test_int64_is_not_narrowed(export: Export) -> None:
    outcome = published(export("int64_ids", "--name", "net"))
    assert config_tensors(outcome.config("net"), "input") == {"ids": ("TYPE_INT64", [2])}
    assert config_tensors(outcome.config("net"), "output")["output_1"] == ("TYPE_INT64", [2])
    found = outcome.run_onnx("net", {"ids": np.array([[3_000_000_123, 5]])})
    assert found["output_0"].tolist() == [[123.0, 5.0]]
    assert found["output_1"].tolist() == [[3_000_000_124, 6]]


def test_uint8_image(export: Export) -> None:
    outcome = published(export("uint8_image", "--name", "net"))
    assert config_tensors(outcome.config("net"), "input") == {"img": ("TYPE_UINT8", [8, 8, 3])}
    image = np.full((1, 8, 8, 3), 255, np.uint8)
    bright, dark = (outcome.run_onnx("net", {"img": image // d})["output"] for d in (1, 2))
    assert np.abs(bright).max() > 0
    assert np.abs(dark).max() == 0


@pytest.mark.parametrize(
    "name", ["embedding", "input_ids", "linear", "relu", "model.one.weight", "val_0", "x", "output", 'a/b:0 "q"\n\\é']
)
def test_a_published_name_may_equal_any_inner_name(export: Export, write_spec: Callable[..., Path], name: str) -> None:
    import json

    spec = write_spec(
        f"name: net\nmodel: {{factory: 'MODELS:inner_name_clash'}}\noutputs: [{{name: {json.dumps(name)}}}]\n"
    )
    if name == "x":
        outcome = export(spec)
        assert outcome.code == 2
        assert "both an input and an output" in outcome.err
        return
    outcome = published(export(spec))
    assert [tensor.name for tensor in outcome.config("net").output] == [name]
    assert outcome.run_onnx("net", {"x": np.ones((7, 4), F32)})[name].shape == (7, 4)


def test_without_a_batch(export: Export, write_spec: Callable[..., Path]) -> None:
    spec = write_spec(
        "name: net\nmodel: {factory: 'MODELS:zero_size'}\nbatch: false\n"
        "inputs:\n  - {name: feats, dtype: float32, shape: [2, 3]}\n  - {name: boxes, dtype: float32, shape: [k, 4]}\n"
        "dimensions: {k: {min: 0, opt: 5, max: 16}}\n"
    )
    outcome = published(export(spec))
    config = outcome.config("net")
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert config_tensors(config, "input") == {"feats": ("TYPE_FP32", [2, 3]), "boxes": ("TYPE_FP32", [-1, 4])}
    assert "max_batch_size: 0" in (outcome.repository / "net" / "config.pbtxt").read_text()
    found = outcome.run_onnx("net", {"feats": np.ones((2, 3), F32), "boxes": np.zeros((0, 4), F32)})
    assert [value.shape for value in found.values()] == [(2, 3), (0, 4)]


def test_scalar_output_without_a_batch_is_widened(export: Export) -> None:
    outcome = published(export("scalar_output", "--name", "net", "--no-batch"))
    assert "'output_1' is a scalar" in outcome.err
    assert config_tensors(outcome.config("net"), "output")["output_1"] == ("TYPE_FP32", [1])
    assert outcome.run_onnx("net", {"x": np.ones((2, 3), F32)})["output_1"].tolist() == [6.0]


def test_one_value_per_sample_is_reshaped_by_the_config(export: Export) -> None:
    outcome = published(export("per_sample_scalar", "--name", "net"))
    config = outcome.config("net")
    assert list(config.output[0].dims) == [1]
    assert config.output[0].HasField("reshape") and list(config.output[0].reshape.shape) == []
    length = next(t for t in config.input if t.name == "length")
    assert list(length.dims) == [1] and length.HasField("reshape")


def test_two_dynamic_dimensions(export: Export, write_spec: Callable[..., Path]) -> None:
    spec = write_spec(
        "name: net\nmodel: {factory: 'MODELS:sequence'}\n"
        "inputs:\n  - {name: ids, dtype: int64, shape: [batch, tokens], range: [0, 49]}\n"
        "  - {name: mask, dtype: int64, shape: [batch, tokens], range: [0, 1]}\n"
        "outputs: [{name: embedding}]\nbatch: {max: 4}\ndimensions: {tokens: {min: 1, opt: 12, max: 20}}\n"
    )
    outcome = published(export(spec, "--json"))
    assert config_tensors(outcome.config("net"), "input")["ids"] == ("TYPE_INT64", [-1])
    sizes = [(entry["batch"], entry["tokens"]) for entry in outcome.json["parity"]["sizes"]]
    assert {(1, 12), (2, 12), (4, 12), (2, 1), (2, 20)} <= set(sizes)
    graph = outcome.proto("net").graph
    assert [d.dim_param for d in graph.input[0].type.tensor_type.shape.dim] == ["batch", "tokens"]


@pytest.mark.parametrize(("low", "best", "high"), [(1, 1, 1), (1, 2, 2), (2, 2, 2), (3, 3, 3), (1, 3, 100)])
def test_narrow_batch_bounds(export: Export, low: int, best: int, high: int) -> None:
    flags = ("--min-batch", str(low), "--opt-batch", str(best), "--max-batch", str(high))
    outcome = published(export("linear", "--name", "net", *flags, "--json"))
    config = outcome.config("net")
    assert config.max_batch_size == high
    assert max(config.dynamic_batching.preferred_batch_size, default=0) <= high
    assert all(low <= entry["batch"] <= high for entry in outcome.json["parity"]["sizes"])


@pytest.mark.parametrize("opset", [16, 17, 18, 20, 21, 22, 23])
def test_opset_is_the_one_asked_for(export: Export, opset: int) -> None:
    from tritonstack_export.onnx_graph import opset as written

    outcome = export("linear", "--name", "net", "--opset", str(opset))
    if outcome.code == 0:
        assert written(outcome.proto("net")) == opset
    else:
        assert f"opset {opset}" in outcome.err and not outcome.repository.exists()


def test_the_same_input_gives_the_same_bytes(export: Export, tmp_path: Path) -> None:
    digests = []
    for folder in ("one", "two"):
        outcome = published(export("linear", "--name", "net", repository=tmp_path / folder))
        path = outcome.repository / "net" / "1" / "model.onnx"
        assert b"models.py" not in path.read_bytes()
        digests.append((path.read_bytes(), (outcome.repository / "net" / "config.pbtxt").read_bytes()))
    assert digests[0] == digests[1]


def test_results_on_stdout_only(export: Export) -> None:
    outcome = published(export("loud", "--name", "net", "--json"))
    assert outcome.json["name"] == "net"
    assert "noise" not in outcome.out + outcome.err


@pytest.mark.parametrize(
    ("model", "inputs", "outputs"),
    [
        ("half", {"input": ("TYPE_FP16", [8])}, {"output": ("TYPE_FP16", [4])}),
        ("lstm", {"x": ("TYPE_FP32", [5, 8])}, {"output": ("TYPE_FP32", [5, 4])}),
        ("encoder_layer", {"src": ("TYPE_FP32", [5, 8])}, {"output": ("TYPE_FP32", [5, 8])}),
        ("top_three", {"x": ("TYPE_FP32", [9])}, {"output_0": ("TYPE_FP32", [3]), "output_1": ("TYPE_INT64", [3])}),
        ("class_ids", {"x": ("TYPE_FP32", [9])}, {"output": ("TYPE_INT64", [1])}),
        ("spectrum", {"x": ("TYPE_FP32", [8])}, {"output": ("TYPE_FP32", [5])}),
        ("changes_its_input", {"x": ("TYPE_FP32", [4])}, {"output": ("TYPE_FP32", [4])}),
        ("keyword_only", {"scale": ("TYPE_FP32", [1]), "x": ("TYPE_FP32", [4])}, {"output": ("TYPE_FP32", [4])}),
    ],
)
def test_kinds_of_models(
    export: Export, model: str, inputs: dict[str, tuple[str, list[int]]], outputs: dict[str, tuple[str, list[int]]]
) -> None:
    outcome = published(export(model, "--name", "net"))
    assert config_tensors(outcome.config("net"), "input") == inputs
    assert config_tensors(outcome.config("net"), "output") == outputs


def test_one_value_per_sample_is_told(export: Export) -> None:
    outcome = export("class_ids")
    assert outcome.code == 0
    assert "'output' holds one value per sample, which Triton serves with the shape [batch, 1]" in outcome.err
