"""Every TensorRT name that the worker uses exists in the real bindings of TensorRT 10, 11 and RTX.

The bindings are NVIDIA's own wheels; the libraries behind them are not on PyPI, so a stub with the nine symbols that
they import stands in. It makes no builder, which is also what TensorRT does on a machine without a GPU.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import engine_models as models
import pytest

from tritonstack_export.engine import worker
from tritonstack_export.engine.build import build, probe
from tritonstack_export.engine.engine_error import EngineError
from tritonstack_export.engine.home import RtxHome, TensorRtHome
from tritonstack_export.engine.settings import Bounds, BuildSettings

WHEELS = {
    "10": ("10.16.1.11", {"311": "f986d47980d042cc126506a9b84586e55ad13737a7a46826fe45457c04d66294"}),
    "11": ("11.4.0.106", {"311": "d072ac2a095e2be749fefc847adfb25d5ebe70303401df62ede8fe67a59f27fc"}),
}
SYMBOLS = (
    "createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL", "createNvOnnxParser_INTERNAL", "getBuilderPluginRegistry",
    "getNvOnnxParserVersion", "getPluginRegistry", "initLibNvInferPlugins",
)  # fmt: skip
LIBRARIES = ("libnvinfer", "libnvinfer_plugin", "libnvonnxparser")
# The stub says another version than the wheel, as an image's library may.
STUB_VERSION = {"10": "10.14.1.48", "11": "11.2.1.2"}
# The worker's name for an object -> its class in TensorRT.
CLASSES = {
    "builder": "Builder", "network": "INetworkDefinition", "config": "IBuilderConfig", "parser": "OnnxParser",
    "profile": "IOptimizationProfile", "engine": "ICudaEngine", "runtime": "Runtime", "inspector": "EngineInspector",
    "cache": "ITimingCache", "layer": "ILayer", "tensor": "ITensor", "problem": "ParserError", "plan": "IHostMemory",
}  # fmt: skip


@pytest.fixture(scope="session", params=list(WHEELS))
def binding(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, TensorRtHome]:
    """(major version, a home whose binding is real and whose libraries are stubs)."""
    major: str = request.param
    wheel = fetched(major)
    folder = tmp_path_factory.mktemp(f"tensorrt{major}")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    libraries = folder / "lib"
    libraries.mkdir()
    for name in LIBRARIES:
        make_stub(libraries / f"{name}.so.{major}", major, folder)
    return major, TensorRtHome("tensorrt_bindings", site=folder / "site", library_path=(libraries,))


def fetched(major: str) -> Path:
    """The wheel of the binding, downloaded once and compared with its digest."""
    version, digests = WHEELS[major]
    python = f"{sys.version_info.major}{sys.version_info.minor}"
    digest = digests.get(python)
    if digest is None:
        pytest.skip(f"the binding of TensorRT {version} is pinned for Python 3.11 only")
    cache = Path(os.environ.get("TRITONSTACK_CACHE", Path.home() / ".cache" / "tritonstack")) / "test-wheels"
    cache.mkdir(parents=True, exist_ok=True)
    name = f"tensorrt_cu13_bindings-{version}-cp{python}-none-manylinux_2_28_x86_64.whl"
    path = cache / name
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        path.unlink(missing_ok=True)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", cache,
             f"tensorrt-cu13-bindings=={version}"],
            check=True, timeout=200,
        )  # fmt: skip
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    return path


def make_stub(target: Path, major: str, work: Path) -> None:
    lines = [f"void* {name}(void) {{ return 0; }}" for name in SYMBOLS]
    if target.name.startswith("libnvinfer.so"):
        parts = zip(("Major", "Minor", "Patch", "Build"), STUB_VERSION[major].split("."), strict=True)
        lines += [f"int getInferLib{part}Version(void) {{ return {number}; }}" for part, number in parts]
    source = work / "stub.c"
    source.write_text("\n".join(lines) + "\n")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{target.name}", "-o", target, source], check=True, timeout=60
    )


def names_used() -> dict[str, set[str]]:
    """`trt` -> dotted names, and class -> attributes, that the worker uses without asking whether they exist."""
    found: dict[str, set[str]] = {"trt": set()}
    for path in sorted(Path(worker.__path__[0]).glob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            guarded = guards(function)
            for node in ast.walk(function):
                name = dotted(node) if isinstance(node, ast.Attribute) else None
                if name is None:
                    continue
                first, _, rest = name.partition(".")
                if first == "trt" and not any(name == guard or name.startswith(f"{guard}.") for guard in guarded):
                    found["trt"].add(rest)
                elif first in CLASSES and name not in guarded:
                    found.setdefault(CLASSES[first], set()).add(rest.partition(".")[0])
    return found


def guards(function: ast.FunctionDef) -> set[str]:
    """Names that `hasattr` asks for within a function: hasattr(trt.A, "B") guards trt.A.B."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hasattr":
            owner, word = node.args
            if isinstance(word, ast.Constant) and (base := dotted(owner)) is not None:
                names.add(f"{base}.{word.value}")
    return names


def dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)) is not None:
        return f"{base}.{node.attr}"
    return None


ASK = """
import json, sys
from tritonstack_export.engine.worker.loading import load_tensorrt
request = json.load(sys.stdin)
trt = load_tensorrt(request["home"])
def missing(owner, name):
    for part in name.split("."):
        if not hasattr(owner, part):
            return True
        owner = getattr(owner, part)
    return False
lost = [name for name in request["names"].pop("trt") if missing(trt, name)]
for owner, names in request["names"].items():
    lost += [f"{owner}.{name}" for name in names if not hasattr(getattr(trt, owner), name)]
print(json.dumps({"lost": lost, "version": trt.__version__,
                  "fp16_flag": hasattr(trt.BuilderFlag, "FP16"), "flags": sorted(trt.BuilderFlag.__members__)}))
"""


def ask(home: TensorRtHome | RtxHome) -> Any:
    names = {owner: sorted(used) for owner, used in names_used().items()}
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, home.library_path))}
    result = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps({"home": home.request(), "names": names}),
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_the_walk_sees_what_is_used() -> None:
    used = names_used()
    assert {"Builder", "OnnxParser", "Runtime", "BuilderFlag.TF32", "MemoryPoolType.WORKSPACE"} <= used["trt"]
    assert "set_memory_pool_limit" in used["IBuilderConfig"]
    assert {"parse_from_file", "num_errors", "get_error"} <= used["OnnxParser"]
    assert {"node_name", "node_operator"} <= used["ParserError"]
    assert "create_timing_cache" not in used["trt"]
    assert not any("STRONGLY_TYPED" in name or "HardwareCompatibilityLevel" in name for name in used["trt"])


def test_precision_flags_are_never_named() -> None:
    text = "".join(path.read_text() for path in Path(worker.__path__[0]).glob("*.py"))
    for word in (
        "BuilderFlag.FP16",
        "BuilderFlag.INT8",
        "EXPLICIT_BATCH",
        "Calibrator",
        "platform_has",
        "PRECISION_CON",
    ):
        assert word not in text


def test_every_name_exists_in_the_real_bindings(binding: tuple[str, TensorRtHome]) -> None:
    major, home = binding
    answer = ask(home)
    assert answer["lost"] == []
    assert answer["version"] == WHEELS[major][0]
    assert answer["fp16_flag"] == (major == "10")
    # The flags behind the policy words, of which the worker asks at run time whether they are there.
    policies = {"VERSION_COMPATIBLE", "REFIT", "STRIP_PLAN", "REFIT_IDENTICAL", "SPARSE_WEIGHTS", "TF32"}
    assert policies <= set(answer["flags"])


def test_every_name_exists_in_rtx(rtx: RtxHome) -> None:
    assert ask(rtx)["lost"] == []


def test_no_usable_gpu_is_a_sentence(binding: tuple[str, TensorRtHome], tmp_path: Path) -> None:
    """`factory function returned nullptr` is TensorRT's own text for it."""
    path = models.save(models.conv(), tmp_path / "model.onnx")
    settings = BuildSettings(({"x": Bounds((1, 3, 8, 8), (1, 3, 8, 8), (2, 3, 8, 8))},))
    with pytest.raises(EngineError, match=r"TensorRT found no usable GPU here.*where the GPU is") as error:
        build(path, settings, home=binding[1], output=tmp_path / "model.plan")
    assert error.value.kind == "gpu" and "Traceback" not in " ".join(error.value.log)
    assert not (tmp_path / "model.plan").exists()


def test_the_version_is_that_of_the_library(binding: tuple[str, TensorRtHome]) -> None:
    major, home = binding
    assert probe(home).tensorrt == STUB_VERSION[major]


def test_a_binding_without_its_libraries(binding: tuple[str, TensorRtHome]) -> None:
    home = TensorRtHome("tensorrt_bindings", site=binding[1].site)
    with pytest.raises(EngineError, match=r"TensorRT cannot be loaded: .*\.so.*Triton image"):
        probe(home)


def test_no_tensorrt_at_all(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be loaded: No module named 'no_tensorrt'"):
        probe(TensorRtHome("no_tensorrt", site=tmp_path))
