"""How an engine is built: settings without TensorRT in them, as they enter the cache key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tritonstack_export.spec_precision import EngineSpec

Hardware = Literal["same", "same_compute_capability", "ampere_plus"]
Weights = Literal["fixed", "refit", "stripped"]
Precision = Literal["fp32", "fp16", "bf16", "int8"]


@dataclass(frozen=True)
class Bounds:
    """Smallest, best and largest shape of one input within a profile, the batch included, all of one rank."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]

    def as_lists(self) -> list[list[int]]:
        return [list(self.min), list(self.opt), list(self.max)]


Profile = Mapping[str, Bounds]
"""One optimisation profile: every dynamic input -> its bounds."""


@dataclass(frozen=True)
class BuildSettings:
    """Everything that shapes an engine besides the ONNX file, TensorRT and the GPU.

    `precision`: what the ONNX graph has to hold (it decides, not the builder); None: not checked.
    `workspace_bytes`: None leaves TensorRT's default, the whole memory of the GPU. `timing_cache`: a file; it changes
    which kernels are measured again, not what is asked for, so it is no part of the key. `plugins`: libraries to load.
    """

    profiles: tuple[Profile, ...] = ()
    precision: Precision | None = None
    workspace_bytes: int | None = None
    optimization_level: int = 3
    version_compatible: bool = False
    hardware: Hardware = "same"
    weights: Weights = "fixed"
    sparsity: bool = False
    tf32: bool = True
    plugins: tuple[Path, ...] = ()
    timing_cache: Path | None = None

    def as_key(self) -> dict[str, Any]:
        """JSON-ready values of what shapes the engine. Plugins are left to the caller, who knows their digests."""
        return {
            "profiles": [
                {name: bounds.as_lists() for name, bounds in sorted(profile.items())} for profile in self.profiles
            ],
            "precision": self.precision,
            "workspace_bytes": self.workspace_bytes,
            "optimization_level": self.optimization_level,
            "version_compatible": self.version_compatible,
            "hardware": self.hardware,
            "weights": self.weights,
            "sparsity": self.sparsity,
            "tf32": self.tf32,
        }

    def for_rtx(self) -> tuple[BuildSettings, tuple[str, ...]]:
        """These settings without what TensorRT-RTX cannot do on a machine without a GPU, and the words left out."""
        plain = replace(self, hardware="same", version_compatible=False, weights="fixed", timing_cache=None)
        words = (
            (f"hardware: {self.hardware}", self.hardware != plain.hardware),
            ("version_compatible", self.version_compatible),
            (f"weights: {self.weights}", self.weights != plain.weights),
        )
        return plain, tuple(word for word, left_out in words if left_out)


def settings_from_spec(
    engine: EngineSpec,
    profiles: Sequence[Profile],
    *,
    precision: Precision | None,
    folder: Path | None = None,
    timing_cache: Path | None = None,
) -> BuildSettings:
    """Settings from the spec's `engine` key. Relative plugin paths start at `folder`."""
    return BuildSettings(
        profiles=tuple(profiles),
        precision=precision,
        # MiB, as nvidia-smi counts GPU memory.
        workspace_bytes=None if engine.workspace_mb is None else engine.workspace_mb << 20,
        optimization_level=engine.optimization_level,
        version_compatible=engine.version_compatible,
        hardware=engine.hardware,
        weights=engine.weights,
        sparsity=engine.sparsity,
        tf32=engine.tf32,
        plugins=tuple((folder or Path()) / name for name in engine.plugins),
        timing_cache=timing_cache,
    )
