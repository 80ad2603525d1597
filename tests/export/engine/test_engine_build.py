"""Real builds by TensorRT for RTX, and its refusals in words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine_models as models
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tritonstack.errors import InputError, UsageError
from tritonstack_export.engine.build import build, probe
from tritonstack_export.engine.engine_error import EngineError
from tritonstack_export.engine.home import RtxHome, TensorRtHome
from tritonstack_export.engine.plan_header import read_plan_header
from tritonstack_export.engine.settings import Bounds, BuildSettings

IMAGE = {"x": Bounds((1, 3, 8, 8), (4, 3, 8, 8), (8, 3, 8, 8))}
ROW = {"x": Bounds((1, 3), (4, 3), (8, 3))}
SETTINGS = BuildSettings(profiles=(IMAGE,))


def build_one(path: Path, rtx: RtxHome, settings: BuildSettings = SETTINGS, **options: Any) -> Any:
    options.setdefault("compute_capabilities", ["8.6"])
    return build(path, settings, home=rtx, **options)


def test_what_a_build_says(tmp_path: Path, rtx: RtxHome) -> None:
    path = models.save(models.conv(), tmp_path / "model.onnx")
    phases: list[str] = []
    output = tmp_path / "model.plan"
    outcome = build_one(path, rtx, output=output, progress=lambda phase, share: phases.append(phase))
    assert outcome.tensorrt == "1.7.1.116"
    assert (outcome.layers, outcome.types, outcome.warnings) == (1, {"FLOAT": 1}, ())
    assert [(t.name, t.dtype, t.shape) for t in outcome.inputs] == [("x", "FLOAT", (-1, 3, 8, 8))]
    assert [(t.name, t.dtype, t.shape) for t in outcome.outputs] == [("y", "FLOAT", (-1, 4, 8, 8))]
    assert outcome.plan_bytes == output.stat().st_size > 1000
    assert phases[:2] == ["parse", "build"]
    assert 50e6 < outcome.peak_rss_bytes < 2e9
    header = read_plan_header(output)
    assert (header.kind, header.version_text) == ("rtx", "1.7.1.116")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "model.plan"]


def test_the_probe_without_a_gpu(rtx: RtxHome) -> None:
    found = probe(rtx)
    assert found.tensorrt == "1.7.1.116"
    if not Path("/proc/driver/nvidia").exists():
        assert (found.devices, found.driver) == ((), None)


@pytest.mark.parametrize("external", [False, True])
def test_weights_in_another_file(tmp_path: Path, rtx: RtxHome, external: bool) -> None:
    path = models.save(models.conv(), tmp_path / "model.onnx", external=external)
    assert build_one(path, rtx).plan_bytes > 1000
    if external:
        (tmp_path / "model.onnx.data").unlink()
        with pytest.raises(EngineError, match=r"external weights is missing.*put it beside the \.onnx file"):
            build_one(path, rtx)


@pytest.mark.parametrize(
    ("precision", "make", "dtype"),
    [("fp16", models.conv_fp16, "HALF"), ("int8", models.conv_int8, "INT8"), ("fp32", models.conv, "FLOAT")],
)
def test_the_precision_that_the_graph_carries(
    tmp_path: Path, rtx: RtxHome, precision: Any, make: Any, dtype: str
) -> None:
    """E25: no builder flag is touched, so only the graph can bring a precision, and it is read back."""
    path = models.save(make(), tmp_path / "model.onnx")
    assert build_one(path, rtx, replace(SETTINGS, precision=precision)).types[dtype] >= 1


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_never_fp32_in_silence(tmp_path: Path, rtx: RtxHome, precision: Any) -> None:
    """E25: a graph without that precision is refused; an FP32 engine with exit code 0 is what must not happen."""
    path = models.save(models.conv(), tmp_path / "model.onnx")
    with pytest.raises(EngineError, match=f"to be built in {precision}.*TensorRT would run it in FP32") as error:
        build_one(path, rtx, replace(SETTINGS, precision=precision), output=tmp_path / "model.plan")
    assert error.value.kind == "precision"
    assert f"tritonstack export --precision {precision}" in str(error.value)
    assert not (tmp_path / "model.plan").exists()


MIXED = helper.make_node("Add", ["x", "h"], ["y"], name="it")
REFUSALS = {
    "custom": (lambda: models.one_node("MyOp", domain="custom"), "it", "MyOp", "neither ONNX nor a plugin"),
    "unsupported": (
        lambda: models.one_node("BitShift", dtype=TensorProto.UINT8, direction="LEFT",
                                second=numpy_helper.from_array(np.array([1], np.uint8), "s")),
        "it", "BitShift", "(neither ONNX nor a plugin|no such operator|does not know)",
    ),
    "int32 bias": (lambda: models.conv_int8(bias=True), None, None, "a bias was quantized to INT32"),
    "zero point": (lambda: models.conv_int8(zero_point=3), None, None, "zero point is not 0"),
    "uint8 zero point": (lambda: models.conv_int8(zero_point=128, zero_dtype="uint8"), None, None, "zero point is"),
    "scale": (lambda: models.conv_int8(scale=0.0), None, None, "scale is zero or negative"),
    "mixed types": (
        lambda: models.model([MIXED], [models.info("x", ["batch", 3])], [models.info("y", ["batch", 3])],
                             [models.weight("h", [3], "float16")]),
        "it", "Add", "different types",
    ),
    "uint32": (
        lambda: models.one_node("Identity", dtype=TensorProto.UINT32), None, None, "a type that TensorRT does not know",
    ),
    "string": (
        lambda: models.one_node("Identity", dtype=TensorProto.STRING), None, None, "a type that TensorRT does not know",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_name_node_operator_and_remedy(tmp_path: Path, rtx: RtxHome, name: str) -> None:
    make, node, operator, meaning = REFUSALS[name]
    path = models.save(make(), tmp_path / "model.onnx")
    profile = IMAGE if name in ("int32 bias", "zero point", "uint8 zero point", "scale") else ROW
    with pytest.raises(EngineError, match=meaning) as error:
        build_one(path, rtx, BuildSettings(profiles=(profile,)))
    assert error.value.remedy
    if node is not None:
        assert (error.value.node, error.value.operator) == (node, operator)
    text = str(error.value)
    assert "checkMacros" not in text and "cudaError" not in text and "\n" not in text


@pytest.mark.parametrize("content", [b"hello", b"\n\n", b"", b"\x08\x07"])
def test_files_that_hold_no_model(tmp_path: Path, rtx: RtxHome, content: bytes) -> None:
    """The parser itself takes such files and reports no error."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises((EngineError, InputError), match=r"(holds no network|is empty|cut short)"):
        build_one(path, rtx)


def test_a_truncated_file_and_a_missing_one(tmp_path: Path, rtx: RtxHome) -> None:
    path = models.save(models.conv(), tmp_path / "model.onnx")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(EngineError, match="cut short"):
        build_one(path, rtx)
    with pytest.raises(UsageError, match=r"there is no ONNX file .*none\.onnx"):
        build_one(tmp_path / "none.onnx", rtx)


@pytest.mark.parametrize(
    ("change", "capabilities", "message"),
    [
        ({"hardware": "ampere_plus"}, ["8.6"], r"hardware: ampere_plus is not supported by TensorRT-RTX 1\.7"),
        ({"hardware": "same_compute_capability"}, ["8.6"], "hardware: same_compute_capability is not supported"),
        ({"version_compatible": True}, ["8.6"], "version_compatible needs the library libnvinfer_lean"),
        ({"weights": "refit"}, ["8.6"], "on a GPU only"),
        ({"weights": "stripped"}, ["8.6"], "on a GPU only"),
        ({"plugins": (Path("/no/such.so"),)}, ["8.6"], "plugin library cannot be loaded.*no/such.so"),
        ({}, ["9.0"], r"does not build for compute capability 9\.0; expected one of 7\.5, 8\.0"),
        ({"profiles": ()}, ["8.6"], "'x' is dynamic, and no profile is given"),
        ({"profiles": (ROW,)}, ["8.6"], "profile"),
        ({"profiles": ({"z": IMAGE["x"]},)}, ["8.6"], "profile 0 lacks the dynamic input 'x'"),
        ({"profiles": ({"x": Bounds((8, 3, 8, 8), (4, 3, 8, 8), (2, 3, 8, 8))},)}, ["8.6"], "profile 0 was refused"),
        ({"profiles": ({"x": Bounds((1, 3, 9, 8), (4, 3, 9, 8), (8, 3, 9, 8))},)}, ["8.6"], "contradicts a fixed dim"),
    ],
)
def test_policies_that_this_tensorrt_lacks(
    tmp_path: Path, rtx: RtxHome, change: dict[str, Any], capabilities: list[str], message: str
) -> None:
    path = models.save(models.conv(), tmp_path / "model.onnx")
    with pytest.raises(EngineError, match=message):
        build_one(path, rtx, replace(SETTINGS, **change), compute_capabilities=capabilities)


def test_policies_that_it_has(tmp_path: Path, rtx: RtxHome) -> None:
    path = models.save(models.conv(), tmp_path / "model.onnx")
    settings = replace(
        SETTINGS,
        profiles=(IMAGE, {"x": Bounds((1, 3, 8, 8), (1, 3, 8, 8), (1, 3, 8, 8))}),
        sparsity=True,
        tf32=False,
        optimization_level=0,
        workspace_bytes=64 << 20,
    )
    assert build_one(path, rtx, settings, compute_capabilities=["8.0", "8.9", "12.0"]).plan_bytes > 1000


def test_what_rtx_cannot_do_is_named_before(rtx: RtxHome) -> None:
    plain, left_out = replace(SETTINGS, hardware="ampere_plus", weights="refit", version_compatible=True).for_rtx()
    assert plain == SETTINGS
    assert left_out == ("hardware: ampere_plus", "version_compatible", "weights: refit")


def test_a_time_limit(tmp_path: Path, rtx: RtxHome) -> None:
    path = models.save(models.conv(), tmp_path / "model.onnx")
    start = time.monotonic()
    with pytest.raises(EngineError, match=r"stopped after 0\.01 s, its time limit") as error:
        build_one(path, rtx, timeout_s=0.01, output=tmp_path / "model.plan")
    assert error.value.kind == "timeout" and time.monotonic() - start < 10
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx"]


WEDGED = """import ctypes, os, signal, sys, time
class DataType: pass
__version__ = "10.0"
class ILogger:
    INTERNAL_ERROR, ERROR, WARNING = "i", "e", "w"
    def __init__(self): pass
class Builder:
    def __init__(self, logger):
        logger.log("w", "last log line")
        print("printed last", flush=True)
        HOW
"""


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed.*memory runs out.*last log line"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", r"crashed \(SIGSEGV\).*printed last"),
        ("os._exit(3)", "ended with exit code 3"),
        ("raise RuntimeError('a defect')", "RuntimeError: a defect"),
    ],
)
def test_a_process_that_dies_is_told_in_words(tmp_path: Path, how: str, message: str) -> None:
    """Not TensorRT, but a module in its place that ends as TensorRT may end."""
    (tmp_path / "dying_tensorrt.py").write_text(WEDGED.replace("HOW", how))
    path = models.save(models.conv(), tmp_path / "model.onnx")
    with pytest.raises(EngineError, match=message) as error:
        build(path, SETTINGS, home=TensorRtHome("dying_tensorrt", site=tmp_path))
    assert error.value.kind == "died"


def test_an_old_tensorrt_is_refused(tmp_path: Path) -> None:
    """Before 10, strong typing was not what it is now; the module here only has the version of such a one."""
    (tmp_path / "old_tensorrt.py").write_text(WEDGED.replace('"10.0"', '"8.6.1"').replace("HOW", "pass"))
    path = models.save(models.conv(), tmp_path / "model.onnx")
    with pytest.raises(EngineError, match=r"TensorRT 8\.6\.1 is too old.*expected TensorRT 10 or newer"):
        build(path, SETTINGS, home=TensorRtHome("old_tensorrt", site=tmp_path))


def test_the_worker_dies_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "dying_tensorrt.py").write_text(
        WEDGED.replace("HOW", f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    )
    path = models.save(models.conv(), tmp_path / "model.onnx")
    source = (
        "from pathlib import Path\nfrom tritonstack_export.engine.build import build\n"
        "from tritonstack_export.engine.home import TensorRtHome\n"
        "from tritonstack_export.engine.settings import BuildSettings\n"
        f"home = TensorRtHome('dying_tensorrt', site=Path({str(tmp_path)!r}))\n"
        f"build(Path({str(path)!r}), BuildSettings(), home=home)"
    )
    parent = subprocess.Popen([sys.executable, "-c", source])
    worker = int(wait_for(tmp_path / "pid"))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(100):
        if not running(worker):
            return
        time.sleep(0.05)
    raise AssertionError("the worker outlived its parent")


def wait_for(path: Path) -> str:
    for _ in range(400):
        if path.is_file() and (text := path.read_text()):
            return text
        time.sleep(0.05)
    raise AssertionError(f"{path} never came")


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_builds_in_threads_do_not_meet(tmp_path: Path, rtx: RtxHome) -> None:
    path = models.save(models.conv(), tmp_path / "model.onnx")
    sizes: list[int] = []
    threads = [threading.Thread(target=lambda: sizes.append(build_one(path, rtx).plan_bytes)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(sizes)) == 1 and len(sizes) == 3


def test_nothing_but_the_standard_library_is_needed(tmp_path: Path) -> None:
    """The worker's modules import under an interpreter that has no packages at all."""
    source = (
        "import tritonstack_export.engine.worker.__main__ as m, sys; print(sorted({'numpy','onnx'} & set(sys.modules)))"
    )
    import tritonstack_export

    folder = str(Path(tritonstack_export.__path__[0]).parent)
    result = subprocess.run(
        [sys.executable, "-S", "-P", "-c", source],
        env={**os.environ, "PYTHONPATH": folder},
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stdout) == (0, "[]\n"), result.stderr
