"""An entry of a repository as something to build engines of: its ONNX files, and how each is to be built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonstack.errors import RepositoryError
from tritonstack_export.engine.engine_config import is_onnxruntime, is_tensorrt, kind_without_engines
from tritonstack_export.engine.engine_error import EngineError
from tritonstack_export.engine.manifest_build import manifest_build
from tritonstack_export.engine.onnx_facts import OnnxFacts, read_facts
from tritonstack_export.engine.profile import BATCH, Extent, InputShape, profiles_for_graph, profiles_from_spec
from tritonstack_export.engine.settings import BuildSettings, Precision, settings_from_spec
from tritonstack_export.repository import manifest, parse_config, read_config_text
from tritonstack_export.repository.layout import ONNX_NAME, EntryPaths

if TYPE_CHECKING:
    from tritonstack_export.repository import ModelConfig

ONNX_CONFIG = Path("configs") / "onnxruntime.pbtxt"
"""Where the config for ONNX Runtime is kept, below the model's folder. Triton leaves the folder `configs` alone, and
serves from a file in it when started with `--model-config-name onnxruntime`."""


@dataclass(frozen=True)
class EngineEntry:
    """An entry that ONNX Runtime serves, or that was switched from it to engines.

    `config`: the one for ONNX Runtime, and `text` as it is written, comments and all. `switched`: whether config.pbtxt
    is for an engine at the moment.
    """

    paths: EntryPaths
    config: ModelConfig
    text: bytes
    switched: bool

    @property
    def name(self) -> str:
        return self.paths.name

    @property
    def onnx_name(self) -> str:
        return self.config.default_model_filename or ONNX_NAME


@dataclass(frozen=True)
class VersionSource:
    """One version: its ONNX file, what the file holds, and how its engine is to be built."""

    version: int
    onnx: Path
    facts: OnnxFacts
    inputs: tuple[InputShape, ...]
    settings: BuildSettings


def read_entry(paths: EntryPaths) -> EngineEntry | str:
    """The entry, or why it is none to build engines of. Raises RepositoryError for a config that cannot be read."""
    text = read_config_text(paths.config)
    config = parse_config(text, path=paths.config)
    kept = paths.folder / ONNX_CONFIG
    if is_tensorrt(config):
        if not kept.is_file():
            return "it has an engine that was not built from an ONNX file here"
        text = read_config_text(kept)
        return EngineEntry(paths, parse_config(text, path=kept), text, switched=True)
    if not is_onnxruntime(config):
        is_ensemble = config.platform == "ensemble" or config.HasField("ensemble_scheduling")
        server = "ensemble" if is_ensemble else config.backend or config.platform or "an unnamed backend"
        return f"it is served by {server}, not by ONNX Runtime"
    kind = kind_without_engines(config)
    if kind is not None:
        where = "on the CPU (KIND_CPU)" if kind == "KIND_CPU" else f"by {kind} instances, and engines run on GPUs only"
        return f"it is to be served {where}"
    if not paths.versions():
        return "it has no version"
    return EngineEntry(paths, config, text, switched=False)


def read_version(entry: EngineEntry, version: int, *, timing_cache: Path | None = None) -> VersionSource:
    """How the engine of one version is to be built: by its manifest, or by config and graph where there is none.

    Raises UsageError for profiles that do not fit, EngineError (precision) when the manifest names a precision that
    the graph does not carry, InputError and RepositoryError for broken files.
    """
    onnx = entry.paths.model_file(version, entry.onnx_name)
    if not onnx.is_file():
        raise RepositoryError(f"{onnx} is missing", next_step="export the version again")
    facts = read_facts(onnx)
    fields: Mapping[str, Any] = {}
    if entry.paths.manifest(version).is_file():
        fields = manifest.read(entry.paths.version(version)).fields
    said = manifest_build(fields, path=entry.paths.manifest(version))
    precision = _precision(said.precision, facts, onnx)
    inputs = facts.inputs
    if said.dimensions:
        inputs = _named(facts.inputs, said.inputs, said.dimensions)
        profiles = profiles_from_spec(said.engine, inputs, said.dimensions)
    else:
        profiles = profiles_for_graph(inputs, max_batch_size=entry.config.max_batch_size)
    settings = settings_from_spec(
        said.engine, profiles, precision=precision, folder=entry.paths.folder, timing_cache=timing_cache
    )
    return VersionSource(version, onnx, facts, inputs, settings)


def _precision(wanted: Precision | None, facts: OnnxFacts, onnx: Path) -> Precision:
    if wanted is None:
        return facts.precision
    if wanted != "fp32" and wanted not in facts.carried:
        raise EngineError(
            f"the manifest calls {onnx.name} {wanted}, but its graph holds none: TensorRT would run it in FP32",
            kind="precision",
            expected="Quantize and Dequantize nodes" if wanted == "int8" else f"{wanted} weights or casts",
            next_step=f"export it again with `tritonstack export --precision {wanted}`",
        )
    return wanted


def _named(
    inputs: tuple[InputShape, ...], written: tuple[InputShape, ...], dimensions: Mapping[str, Extent]
) -> tuple[InputShape, ...]:
    """The graph's inputs with the dimension names of the manifest, which a ready ONNX file may spell differently."""
    shapes = {tensor.name: tensor.shape for tensor in written}
    named = []
    for tensor in inputs:
        shape: list[int | str] = []
        said = shapes.get(tensor.name, tensor.shape)
        for position, axis in enumerate(tensor.shape):
            name = said[position] if len(said) == len(tensor.shape) else axis
            if isinstance(axis, int):
                shape.append(axis)
            elif isinstance(name, str) and name in dimensions:
                shape.append(name)
            elif position == 0 and BATCH in dimensions:
                shape.append(BATCH)
            else:
                shape.append(axis)
        named.append(InputShape(tensor.name, tuple(shape)))
    return tuple(named)
