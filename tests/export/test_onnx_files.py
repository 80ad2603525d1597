"""Ready ONNX files as the source: weights in other files, sizes above 2 GB, odd names, outputs without a batch."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

Export = Callable[..., Any]
value_info = helper.make_tensor_value_info
FLOAT = TensorProto.FLOAT


def save(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: Sequence[Any] = (),
    *,
    opset: int = 17,
    **options: Any,
) -> Path:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path, **options)
    return path


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """x [N, 64] times a weight that lies in net.onnx.data."""
    weight = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) / 4096
    return save(
        tmp_path / "source" / "net.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [value_info("x", FLOAT, ["N", 64])],
        [value_info("y", FLOAT, ["N", 64])],
        [numpy_helper.from_array(weight, "w")],
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location="net.onnx.data",
        size_threshold=0,
    )


def set_location(path: Path, **entries: str) -> None:
    model = onnx.load(path, load_external_data=False)
    tensor = model.graph.initializer[0]
    kept = {entry.key: entry.value for entry in tensor.external_data} | entries
    tensor.ClearField("external_data")
    for key, value in kept.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    path.write_bytes(model.SerializeToString())


def refused(outcome: Any, *needles: str, code: int = 1) -> None:
    assert outcome.code == code, outcome.out + outcome.err
    line = next(line for line in outcome.err.splitlines() if line.startswith("tritonstack export: error: "))
    for needle in needles:
        assert needle in line, line
    assert not outcome.repository.exists()


def test_external_weights_are_taken_inside(export: Export, external: Path) -> None:
    outcome = export(external, "--name", "net")
    assert outcome.code == 0, outcome.err
    folder = outcome.repository / "net" / "1"
    assert sorted(p.name for p in folder.iterdir()) == ["manifest.json", "model.onnx"]
    x = np.eye(64, dtype=np.float32)
    truth = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) / 4096
    assert np.array_equal(outcome.run_onnx("net", {"x": x})["y"], truth)
    assert "parity was not checked" in outcome.err


def test_external_weights_of_a_large_model_stay_in_one_file(
    export: Export, external: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above 2 GB: the file is named after model.onnx, and so is the location inside."""
    monkeypatch.setattr("tritonstack_export.onnx_tensors.SINGLE_FILE_LIMIT", 1000)
    outcome = export(external, "--name", "net")
    assert outcome.code == 0, outcome.err
    folder = outcome.repository / "net" / "1"
    assert sorted(p.name for p in folder.iterdir()) == ["manifest.json", "model.onnx", "model.onnx.data"]
    proto = onnx.load(folder / "model.onnx", load_external_data=False)
    assert {e.key: e.value for e in proto.graph.initializer[0].external_data}["location"] == "model.onnx.data"
    x = np.eye(64, dtype=np.float32)
    assert outcome.run_onnx("net", {"x": x})["y"][1, 0] == 64 / 4096


def test_missing_weights_file(export: Export, external: Path) -> None:
    (external.parent / "net.onnx.data").unlink()
    refused(export(external), "'net.onnx.data'", "is missing", "two files")


def test_truncated_weights_file(export: Export, external: Path) -> None:
    data = external.parent / "net.onnx.data"
    data.write_bytes(data.read_bytes()[:1000])
    refused(export(external), "'net.onnx.data' is too short", "1000 bytes", "16384")


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "a/../../secret", "..\\secret", ""])
def test_weights_outside_of_the_folder(export: Export, external: Path, location: str) -> None:
    (external.parent.parent / "secret").write_bytes(bytes(16384))
    set_location(external, location=location)
    refused(export(external), "outside of the model's folder", repr(location))


def test_weights_outside_of_the_folder_through_a_link(export: Export, external: Path) -> None:
    data = external.parent / "net.onnx.data"
    moved = data.rename(external.parent.parent / "elsewhere")
    data.symlink_to(moved)
    refused(export(external), "through a link")


@pytest.mark.parametrize("entries", [{"offset": "-1"}, {"length": "99999999"}, {"offset": "many"}])
def test_broken_offsets(export: Export, external: Path, entries: dict[str, str]) -> None:
    set_location(external, **entries)
    refused(export(external), "'w'")


@pytest.mark.parametrize(
    ("content", "needle"),
    [(b"", "is empty"), (b"hello", "ONNX"), (b"\x08\x08", "holds no ONNX graph")],
)
def test_files_that_are_no_models(export: Export, tmp_path: Path, content: bytes, needle: str) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    refused(export(path), "net.onnx", needle)


def test_truncated_model(export: Export, external: Path) -> None:
    external.write_bytes(external.read_bytes()[:60])
    refused(export(external), "net.onnx")


@pytest.mark.slow
def test_model_above_two_gigabytes(export: Export, tmp_path: Path) -> None:
    """2.2 GB of weights as a sparse file: no step may take it through one protobuf message, or into memory."""
    cols, rows = 1024, int(2.2 * 2**30 / 4 / 1024)
    table = TensorProto(name="table", data_type=FLOAT, dims=[rows, cols], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "big.bin"), ("offset", "0"), ("length", str(rows * cols * 4))):
        entry = table.external_data.add()
        entry.key, entry.value = key, value
    with (tmp_path / "big.bin").open("wb") as file:
        file.truncate(rows * cols * 4)
    path = save(
        tmp_path / "big.onnx",
        [helper.make_node("Gather", ["table", "ids"], ["emb"], axis=0)],
        [value_info("ids", TensorProto.INT64, ["N", 4])],
        [value_info("emb", FLOAT, ["N", 4, cols])],
        [table],
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = export(path, "--name", "big")
    assert outcome.code == 0, outcome.err
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 1.2 * rows * cols * 4
    data = outcome.repository / "big" / "1" / "model.onnx.data"
    assert data.stat().st_size == rows * cols * 4
    assert data.stat().st_blocks * 512 < 2**20
    assert outcome.run_onnx("big", {"ids": np.zeros((3, 4), np.int64)})["emb"].shape == (3, 4, cols)


def nms(path: Path) -> Path:
    constants = [("k", np.int64, 3), ("iou", np.float32, 0.5), ("thr", np.float32, 0.1)]
    return save(
        path,
        [helper.make_node("NonMaxSuppression", ["boxes", "scores", "k", "iou", "thr"], ["selected"])],
        [value_info("boxes", FLOAT, ["N", 6, 4]), value_info("scores", FLOAT, ["N", 1, 6])],
        [value_info("selected", TensorProto.INT64, [None, 3])],
        [numpy_helper.from_array(np.array([value], dtype), name) for name, dtype, value in constants],
    )


def test_output_without_a_batch_is_not_published_batched(export: Export, tmp_path: Path) -> None:
    refused(export(nms(tmp_path / "nms.onnx")), "'selected' does not follow the batch dimension", "--no-batch")


def test_output_without_a_batch_has_full_shapes_unbatched(export: Export, tmp_path: Path) -> None:
    outcome = export(nms(tmp_path / "nms.onnx"), "--no-batch")
    assert outcome.code == 0, outcome.err
    config = outcome.config("nms")
    assert config.max_batch_size == 0
    assert {t.name: list(t.dims) for t in (*config.input, *config.output)} == {
        "boxes": [-1, 6, 4],
        "scores": [-1, 1, 6],
        "selected": [-1, 3],
    }
    none = outcome.run_onnx(
        "nms", {"boxes": np.zeros((1, 6, 4), np.float32), "scores": np.zeros((1, 1, 6), np.float32)}
    )
    assert none["selected"].shape == (0, 3)


def test_odd_names_survive_byte_for_byte(export: Export, tmp_path: Path) -> None:
    names = ["a/b", "onnx::Conv_1", "x.1", "with space", 'quo"te', "back\\slash", "new\nline", "bild_größe", "L" * 300]
    names += ["123", "tab\t", "a:0,b=c", "'", "{", "#"]
    path = save(
        tmp_path / "odd.onnx",
        [helper.make_node("Identity", [name], [name + "_out"]) for name in names],
        [value_info(name, FLOAT, ["N", 2]) for name in names],
        [value_info(name + "_out", FLOAT, ["N", 2]) for name in names],
    )
    outcome = export(path, "--name", "odd")
    assert outcome.code == 0, outcome.err
    config = outcome.config("odd")
    assert [t.name for t in config.input] == names
    assert [t.name for t in config.output] == [name + "_out" for name in names]
    assert set(config.model_warmup[0].inputs) == set(names)
    assert sorted(p.name for p in (outcome.repository / "odd" / "1").iterdir()) == ["manifest.json", "model.onnx"]


def test_fixed_batch_is_not_published_batched(export: Export, tmp_path: Path) -> None:
    path = save(
        tmp_path / "fixed.onnx",
        [helper.make_node("Relu", ["x"], ["y"])],
        [value_info("x", FLOAT, [1, 3])],
        [value_info("y", FLOAT, [1, 3])],
    )
    refused(export(path), "fixes axis 0 of input 'x' at 1", "--no-batch")
    outcome = export(path, "--no-batch")
    assert outcome.code == 0, outcome.err
    assert list(outcome.config("fixed").input[0].dims) == [1, 3]


@pytest.mark.parametrize("opset", [11, 17])
def test_scalar_output_is_widened(export: Export, tmp_path: Path, opset: int) -> None:
    path = save(
        tmp_path / "scalar.onnx",
        [helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0)],
        [value_info("x", FLOAT, ["N", 3])],
        [value_info("m", FLOAT, [])],
        opset=opset,
    )
    outcome = export(path, "--no-batch")
    assert outcome.code == 0, outcome.err
    assert list(outcome.config("scalar").output[0].dims) == [1]
    assert outcome.run_onnx("scalar", {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})["m"].tolist() == [5.0]


def test_samples_that_see_each_other(export: Export, tmp_path: Path) -> None:
    path = save(
        tmp_path / "mean.onnx",
        [
            helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
            helper.make_node("Sub", ["x", "m"], ["y"]),
        ],
        [value_info("x", FLOAT, ["N", 3])],
        [value_info("y", FLOAT, ["N", 3])],
    )
    refused(export(path), "depends on the others in its batch")


def test_random_graph(export: Export, tmp_path: Path) -> None:
    path = save(
        tmp_path / "random.onnx",
        [helper.make_node("RandomNormalLike", ["x"], ["n"]), helper.make_node("Add", ["x", "n"], ["y"])],
        [value_info("x", FLOAT, ["N", 3])],
        [value_info("y", FLOAT, ["N", 3])],
    )
    refused(export(path), "not deterministic", "ONNX Runtime")


def test_invalid_graph(export: Export, tmp_path: Path) -> None:
    path = save(
        tmp_path / "bad.onnx",
        [helper.make_node("Relu", ["nowhere"], ["y"])],
        [value_info("x", FLOAT, ["N", 3])],
        [value_info("y", FLOAT, ["N", 3])],
    )
    refused(export(path), "onnx.checker refuses the model", "nowhere")
