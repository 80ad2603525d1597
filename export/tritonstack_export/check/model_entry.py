"""One model of a repository as the walk found it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tritonstack_export.check.finding import FindingList
from tritonstack_export.repository.config_text import ModelConfig


@dataclass
class ModelEntry:
    """A model folder under check.

    `versions` are the version folders Triton would accept, ascending; `served` those its version policy picks,
    `ignored` other folders in it.
    `config` is None until it parsed; `backend` is empty until known and ``ensemble`` for ensembles.
    """

    name: str
    path: Path
    findings: FindingList
    versions: tuple[int, ...] = ()
    version_paths: dict[int, Path] = field(default_factory=dict)
    served: tuple[int, ...] = ()
    ignored: tuple[str, ...] = ()
    config: ModelConfig | None = None
    backend: str = ""

    @property
    def config_path(self) -> Path:
        return self.path / "config.pbtxt"

    @property
    def is_ensemble(self) -> bool:
        return self.backend == "ensemble"
