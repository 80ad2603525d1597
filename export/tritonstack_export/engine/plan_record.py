"""`model.plan.json`: what an engine was built from, with what and for which GPU, beside the engine file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonstack.errors import RepositoryError
from tritonstack_export.engine.plan_header import same_release, version_numbers

PLAN_NAME = "model.plan"
RECORD_NAME = "model.plan.json"
SCHEMA_VERSION = 1
_AMPERE = (8, 0)


@dataclass(frozen=True)
class Target:
    """What an engine is to run on; None: unknown, so not judged. `compute_capabilities`: of the visible GPUs."""

    tensorrt: str | None = None
    compute_capabilities: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        gpus = " and ".join(map(sm, self.compute_capabilities))
        return " / ".join(filter(None, (gpus, self.tensorrt if gpus else f"TensorRT {self.tensorrt}")))


@dataclass(frozen=True)
class PlanRecord:
    """A record as read. `fields` holds all of it; the two that decide where the engine runs have to be there."""

    tensorrt: str
    compute_capability: str
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def version_compatible(self) -> bool:
        return bool(self._setting("version_compatible"))

    @property
    def hardware(self) -> str:
        return str(self._setting("hardware") or "same")

    def _setting(self, name: str) -> Any:
        settings = self.fields.get("settings")
        return settings.get(name) if isinstance(settings, dict) else None

    def misfit(self, target: Target) -> str | None:
        """Why the engine does not run on `target`, in one line; None when it does, as far as is known."""
        wrong_version = target.tensorrt is not None and not self._version_fits(target.tensorrt)
        wrong_gpus = any(not self._gpu_fits(gpu) for gpu in target.compute_capabilities)
        if not wrong_version and not wrong_gpus:
            return None
        built = f"engine built for {sm(self.compute_capability)} with TensorRT {self.tensorrt}"
        return f"{built}, this machine is {target.text}"

    def _version_fits(self, server: str) -> bool:
        ours, theirs = version_numbers(self.tensorrt), version_numbers(server)
        if ours is None or theirs is None:
            return True
        return same_release(ours, theirs) or (self.version_compatible and theirs[:3] >= ours[:3])

    def _gpu_fits(self, capability: str) -> bool:
        if self.hardware == "ampere_plus":
            return (version_numbers(capability) or ()) >= _AMPERE
        return capability == self.compute_capability


def sm(capability: str) -> str:
    """`sm_90` for compute capability 9.0."""
    return f"sm_{capability.replace('.', '')}"


def read_record(path: Path) -> PlanRecord:
    """The record at `path`. Raises RepositoryError where it is no JSON object or lacks what decides where it runs."""
    again = "build the engine again with `tritonstack build-engines`"
    try:
        fields = json.loads(path.read_bytes())
    except OSError as error:
        raise RepositoryError(f"{path.name} cannot be read: {error.strerror}", next_step=again) from None
    except ValueError as error:
        raise RepositoryError(f"{path.name} is no JSON: {error}", next_step=again) from None
    given = fields if isinstance(fields, dict) else {}
    missing = [
        key
        for key in ("tensorrt", "compute_capability")
        if not isinstance(given.get(key), str) or version_numbers(given[key]) is None
    ]
    if missing:
        raise RepositoryError(f"{path.name} does not say {' and '.join(missing)}", next_step=again)
    return PlanRecord(given["tensorrt"], given["compute_capability"], given)
