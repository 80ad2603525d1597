"""The model before export: a torch module with its weights, or a ready ONNX file, and what identifies it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tritonstack_export import onnx_tensors
from tritonstack_export.captured_output import captured_output
from tritonstack_export.checkpoint import load_checkpoint, resolve_resource
from tritonstack_export.digest import file_sha256, json_sha256, weights_sha256
from tritonstack_export.factory import BuiltModel, build_model
from tritonstack_export.spec import ModelSpec


@dataclass(frozen=True)
class LoadedModel:
    """A model before export: either a module or a ready ONNX file, and what identifies it."""

    built: BuiltModel | None
    onnx: Path | None
    weights_sha256: str
    source_sha256: str
    parameters: int


def load(spec: ModelSpec, folder: Path, *, trust: bool) -> LoadedModel:
    """Build the module and fill in its weights, or find the ONNX file."""
    if spec.model.onnx is not None:
        path = resolve_resource(spec.model.onnx, folder=folder, key="model.onnx")
        proto = onnx_tensors.read_proto(path)
        spans = [onnx_tensors.external_span(t, path.parent) for t in onnx_tensors.external_tensors(proto)]
        digests = {"graph": file_sha256(path)}
        for file in sorted({span[0] for span in spans}):
            digests[file.name] = file_sha256(file)
        count = sum(int(np.prod(t.dims, dtype=np.int64)) for t in proto.graph.initializer)
        return LoadedModel(None, path, json_sha256(digests), digests["graph"], count)
    with captured_output():
        built = build_model(spec.model.factory or "", spec.model.arguments, folder=folder, seed=spec.parity.seed)
        if spec.model.checkpoint is not None:
            load_checkpoint(built.module, spec.model.checkpoint, folder=folder, trust=trust)
    state = built.module.state_dict()
    source = json_sha256(sorted({file_sha256(file) for file in built.sources}))
    count = sum(parameter.numel() for parameter in built.module.parameters())
    return LoadedModel(built, None, weights_sha256(state), source, count)
