"""Latency rows: right counts and order, with the options that a variant is served with. Nothing here judges a speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tritonstack.errors import GateError
from tritonstack_export.report import latency
from tritonstack_export.report.environment import read_environment
from tritonstack_export.report.latency import Candidate, batch_sizes, measure_latency
from tritonstack_export.signature import Dimension, ModelInput, Signature

SIGNATURE = Signature(
    (ModelInput("x", "float32", ("batch", "length")),),
    {"batch": Dimension("batch", 1, 4, 8), "length": Dimension("length", 1, 3, 9)},
    batched=True,
)


def add(path: Path, kind: int = TensorProto.FLOAT) -> Path:
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    values = [helper.make_tensor_value_info(name, kind, ["batch", "length"]) for name in "xy"]
    one = numpy_helper.from_array(np.ones(1, dtype), "one")
    graph = helper.make_graph([helper.make_node("Add", ["x", "one"], ["y"])], "g", values[:1], values[1:], [one])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def test_rows(tmp_path: Path) -> None:
    half = Candidate("half", add(tmp_path / "half.onnx", TensorProto.FLOAT16))
    single = Candidate("single", add(tmp_path / "single.onnx"), {"session.disable_quant_qdq": "1"}, graph_level=-1)
    rows = measure_latency([half, single], SIGNATURE, seconds_each=0.05, threads=1)
    assert list(rows) == ["half", "single"]
    for found in rows.values():
        assert [row.batch for row in found] == [1, 4]
        for row in found:
            assert row.calls >= 5 and 0 < row.p50_ms <= row.p90_ms and row.threads == 1
            assert row.samples_per_s == pytest.approx(1e3 * row.batch / row.p50_ms)


def test_a_model_without_a_batch(tmp_path: Path) -> None:
    signature = Signature((ModelInput("x", "float32", (2, 3)),), {}, batched=False)
    assert batch_sizes(signature) == (1,)
    [row] = measure_latency([Candidate("m", add(tmp_path / "m.onnx"))], signature, seconds_each=0.01)["m"]
    assert row.batch == 1


def test_the_config_decides_threads_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime as ort

    seen: list[Any] = []
    real = ort.InferenceSession

    def remember(path: str, options: Any, **others: Any) -> Any:
        seen.append(options)
        return real(path, options, **others)

    monkeypatch.setattr(ort, "InferenceSession", remember)
    parameters = {"intra_op_thread_count": "1", "session.disable_quant_qdq": "1", "tritonstack.other": "x"}
    candidate = Candidate("m", add(tmp_path / "m.onnx"), parameters, graph_level=2)
    [row, _] = measure_latency([candidate], SIGNATURE, seconds_each=0.01)["m"]
    assert row.threads == 1 and seen[0].intra_op_num_threads == 1
    assert seen[0].get_session_config_entry("session.disable_quant_qdq") == "1"
    assert seen[0].graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL


def test_nothing_to_measure() -> None:
    assert measure_latency([], SIGNATURE) == {}


def test_percentiles_are_calls_that_were_made() -> None:
    row = latency._row(2, [0.001 * n for n in range(1, 11)], 1)
    assert row.p50_ms == pytest.approx(5.5) and row.p90_ms == pytest.approx(9.0)
    assert latency._row(1, [0.001] * 5, 1).p90_ms == pytest.approx(1.0)


def test_files_that_do_not_run(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"hello")
    with pytest.raises(GateError, match="cannot load bad"):
        measure_latency([Candidate("bad", tmp_path / "bad.onnx")], SIGNATURE, seconds_each=0.01)
    other = Signature((ModelInput("z", "float32", ("batch", 3)),), {"batch": Dimension("batch", 1, 1, 1)}, batched=True)
    with pytest.raises(GateError, match="fails on a variant") as caught:
        measure_latency([Candidate("m", add(tmp_path / "m.onnx"))], other, seconds_each=0.01)
    assert "z [1, 3]" in str(caught.value)


def test_environment(tmp_path: Path) -> None:
    here = read_environment()
    assert here.cpu and here.cores >= 1 and {"onnxruntime", "python"} <= here.versions.keys()
    (tmp_path / "x86").write_text("model name\t: Some CPU @ 2 GHz: fast\nflags\t: fpu avx2 avx512_vnni ht\n")
    assert read_environment(tmp_path / "x86").cpu == "Some CPU @ 2 GHz: fast"
    assert read_environment(tmp_path / "x86").flags == ("avx2", "avx512_vnni")
    (tmp_path / "arm").write_text("processor: 0\nFeatures: fp asimd i8mm bf16\n")
    assert read_environment(tmp_path / "arm").flags == ("asimd", "i8mm", "bf16")
    assert read_environment(tmp_path / "none").flags == ()
